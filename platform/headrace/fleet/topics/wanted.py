"""What a user asks for: a topic's name, its schema file, and the options that were given.

Owns the checks that need no server. Reads one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.events.header import header_problems
from headrace.registry.schema_rules import InvalidSchemaError
from headrace.registry.schemas import parse
from headrace.registry.value_reading import refers_to_itself
from headrace.site.errors import SiteError
from headrace.warehouse.schedule import TOPIC_PATTERN


class NewTopicError(SiteError):
    """The topic cannot be made as it was asked for; nothing was changed. The user can correct it."""


@dataclass(frozen=True)
class EventSchema:
    """A schema file of events: its path, and its text."""

    path: Path
    text: str

    @property
    def tree(self) -> dict[str, Any]:
        """Avro's JSON as objects."""
        tree: dict[str, Any] = json.loads(self.text)
        return tree


@dataclass(frozen=True)
class NewTopic:
    """None, and settings or fields that are missing: whatever is there already, or else the default.

    `settings` have Kafka's names, without the declaration of `producers`. `load` are given fields of a
    `LoadSchedule`, as they are written; `load_defaults` are those of the site. `contract_test`: where that
    file belongs, None for no file.
    """

    name: str
    schema: EventSchema
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    producers: str | None = None
    compatibility: str | None = None
    load: Mapping[str, Any] = field(default_factory=dict)
    load_defaults: Mapping[str, Any] = field(default_factory=dict)
    contract_test: Path | None = None
    replication_factor: int | None = None

    @property
    def subject(self) -> str:
        return f"{self.name}-value"

    @property
    def load_fields(self) -> dict[str, Any]:
        return {**self.load_defaults, **self.load}


def check_name(name: str) -> None:
    """Raises `NewTopicError` for a name that brokers, Airflow or the warehouse cannot have."""
    if not TOPIC_PATTERN.fullmatch(name) or name in (".", ".."):
        raise NewTopicError(
            f"{name!r} is not a name for a topic: give 1 to 200 letters, digits, '.', '_' and '-'"
        )
    if name.startswith("_"):
        raise NewTopicError(f"{name!r} is not a name for a topic of events: _ begins internal ones")


def read_event_schema(path: Path) -> EventSchema:
    """Returns the schema in a file. Raises `NewTopicError` if events of it cannot be published and loaded."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NewTopicError(f"the schema {path} cannot be read: {problem}") from error
    try:
        # As normal text, in which every type has its full name.
        tree = json.loads(parse(text).normal_text)
    except InvalidSchemaError as error:
        raise NewTopicError(f"{path} is not an Avro schema: {error}") from error
    if problems := header_problems(tree):
        raise NewTopicError(
            f"{path} is not the schema of an event: {'; '.join(problems)}. Copy the field `header` from "
            "schemas/page-view.avsc of headrace, as the first field"
        )
    if refers_to_itself(tree):
        raise NewTopicError(
            f"{path}: a type holds itself, which no table can store; use a list of flat records"
        )
    return EventSchema(path, text)
