"""The contract of a topic, as its service's own tests check it: `headrace topics new` writes such a test.

A schema keeps to it if events have the header, if every registered version may be followed by it, and if the
service's events are what it says. Registers nothing and publishes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.events.header import Origin, header_problems
from headrace.process.clock import now_ms
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.errors import SUBJECT_NOT_FOUND, RegistryError
from headrace.registry.schemas import InvalidSchemaError, parse
from headrace.registry.serializers import AvroSerializer, topic_name
from headrace.registry.value_reading import ValueReader
from headrace.registry.value_validation import SerializationError


class ContractError(AssertionError):
    """The contract is broken. The message names the schema's file and the problem."""


@dataclass(frozen=True)
class Contract:
    """The schema in a file, for events of a topic whose subject is at a registry (`http://HOST:PORT`).

    Every check raises `ContractError`; `check_compatibility` also the errors of the registry's client.
    """

    topic: str
    schema_file: Path
    registry_url: str

    def check_header(self) -> None:
        """The schema begins with the header, with all its fields, so that audit and loads know the time."""
        if problems := header_problems(json.loads(parse(self._text()).normal_text)):
            raise ContractError(f"{self.schema_file}: {'; '.join(problems)}")

    def check_compatibility(self) -> None:
        """The schema may follow the registered versions, by the subject's compatibility level."""
        text, subject = self._text(), topic_name(self.topic, "")
        with SchemaRegistryClient(self.registry_url) as registry:
            try:
                numbers = sorted(registry.versions(subject))
            except RegistryError as error:
                if error.error_code != SUBJECT_NOT_FOUND:
                    raise
                raise ContractError(
                    f"the registry at {self.registry_url} has no subject {subject}: has the topic been made "
                    f"there? `headrace topics new {self.topic} {self.schema_file.name}`"
                ) from None
            earlier = [(number, registry.version(subject, number).schema) for number in numbers]
            level = Level(registry.config(subject))
        if problems := incompatibilities(level, text, earlier):
            raise ContractError(
                f"{self.schema_file} may not follow version {numbers[-1]} of {subject}: {'; '.join(problems)}"
            )

    def check_event(self, event: Mapping[str, Any]) -> None:
        """An event, without its header, is written by the schema and read back as the same."""
        if "header" in event:
            raise ContractError("leave out the header of the example: publishers add it")
        text = self._text()
        record = {"header": Origin("east", "server", "service").header(now_ms()), **event}
        with SchemaRegistryClient(self.registry_url) as registry:
            serializer = AvroSerializer(registry, text)
            try:
                payload = serializer.encode(record)
            except SerializationError as error:
                raise ContractError(f"{self.schema_file}: {error}") from None
            found, left = ValueReader(text).read(payload)
            if left or serializer.encode(found) != payload:
                raise ContractError(f"{self.schema_file}: {event!r} is read back as {found!r}")

    def _text(self) -> str:
        try:
            text = self.schema_file.read_text()
            parse(text)
        except OSError as error:
            raise ContractError(f"the schema {self.schema_file} cannot be read: {error.strerror}") from None
        except InvalidSchemaError as error:
            raise ContractError(f"{self.schema_file} is not an Avro schema: {error}") from None
        return text
