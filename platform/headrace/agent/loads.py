"""The loads of this host's Airflow, as they were put: one file a topic, which the DAGs read.

Owns `<home>/loads/<topic>.json`. What a load may say is `warehouse.schedule`'s, which the DAGs ask as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from headrace.agent.errors import (
    AgentError,
    ConfigurationError,
    FieldProblem,
    shortened,
)
from headrace.agent.folders import remove_durably, write_durably
from headrace.agent.report import Outcome
from headrace.warehouse.schedule import DEFAULTS, FIELDS, TOPIC_PATTERN, LoadScheduleError, parse_schedule

LOADS_MAX: Final = 1000


class LoadUnknownError(AgentError):
    code: ClassVar[str] = "load_unknown"
    status: ClassVar[int] = 404


class TooManyLoadsError(AgentError):
    code: ClassVar[str] = "too_many_loads"
    status: ClassVar[int] = 409


class Loads:
    """The loads of one home. Any thread may call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def topics(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def load(self, topic: str) -> dict[str, Any]:
        """What was put, with every field. Raises `LoadUnknownError`."""
        try:
            return _complete(json.loads(self._path(topic).read_bytes()))
        except FileNotFoundError:
            raise LoadUnknownError(f"topic {shortened(topic)} is not loaded by this host; PUT it") from None

    def put(self, topic: str, said: object, *, dry_run: bool = False) -> Outcome:
        """Raises `ConfigurationError`, `TooManyLoadsError`."""
        wanted = _checked(topic, said)
        with self._lock:
            there = self.topics()
            if topic in there:
                if self.load(topic) == wanted:
                    return Outcome.UNCHANGED
                outcome = Outcome.CHANGED
            elif len(there) >= LOADS_MAX:
                raise TooManyLoadsError(
                    f"{topic} would be one more than {LOADS_MAX}, a host's most; delete another"
                )
            else:
                outcome = Outcome.CREATED
            if not dry_run:
                write_durably(self._path(topic), json.dumps(wanted, indent=1))
            return outcome

    def delete(self, topic: str) -> None:
        """Its data in HDFS stays. Raises `LoadUnknownError`."""
        with self._lock:
            self.load(topic)
            remove_durably(self._path(topic))

    def _path(self, topic: str) -> Path:
        if not TOPIC_PATTERN.fullmatch(topic):
            raise LoadUnknownError(f"{shortened(repr(topic))} is no name of a topic")
        return self.directory / f"{topic}.json"


def _complete(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said.get(name, DEFAULTS.get(name)) for name in FIELDS}


def _checked(topic: str, said: object) -> dict[str, Any]:
    """The load with every field, as it is written. Raises `ConfigurationError`."""
    if not isinstance(said, dict):
        problem = FieldProblem("load", shortened(repr(said)), "expected an object")
        raise ConfigurationError(topic, [problem], what="load")
    try:
        parse_schedule(topic, said)
    except LoadScheduleError as error:
        name = error.field or "topic"
        value = topic if error.field is None else said.get(name)
        problem = FieldProblem(name, repr(value), str(error))
        raise ConfigurationError(topic, [problem], what="load") from error
    return _complete(said)
