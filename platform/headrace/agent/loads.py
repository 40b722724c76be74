"""The loads of this host's Airflow, on disk: one file for each topic, which the DAGs read.

Owns `<home>/loads/<topic>.json`. `warehouse.schedule` checks a load, here and in the DAGs.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from headrace.agent.errors import (
    AgentError,
    AgentStateError,
    ConfigurationError,
    FieldProblem,
    shortened,
)
from headrace.agent.folders import remove_durably, write_durably
from headrace.agent.report import ChangeOutcome
from headrace.warehouse.schedule import DEFAULTS, FIELDS, TOPIC_PATTERN, LoadScheduleError, parse_schedule

LOADS_MAX: Final = 1000


class LoadUnknownError(AgentError):
    """The host loads no topic of this name."""

    code: ClassVar[str] = "load_unknown"
    status: ClassVar[int] = 404


class TooManyLoadsError(AgentError):
    """The host has as many loads as an agent accepts."""

    code: ClassVar[str] = "too_many_loads"
    status: ClassVar[int] = 409


class LoadStore:
    """The loads of one home. Any thread may call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def topics(self) -> list[str]:
        """The topics that have a load; a file at another name, such as a copy, is none."""
        names = sorted(path.stem for path in self.directory.glob("*.json"))
        return [name for name in names if TOPIC_PATTERN.fullmatch(name)]

    def all(self) -> dict[str, dict[str, Any]]:
        """The loads of all topics; any of them may be deleted meanwhile. Raises `AgentStateError`."""
        found = {}
        for topic in self.topics():
            with contextlib.suppress(LoadUnknownError):
                found[topic] = self.load(topic)
        return found

    def load(self, topic: str) -> dict[str, Any]:
        """The load of a topic, with every field. Raises `LoadUnknownError`, and `AgentStateError` for a file
        that somebody, or the disk, has damaged.
        """
        path = self._path(topic)
        try:
            return _complete(json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise LoadUnknownError(f"topic {shortened(topic)} is not loaded by this host; PUT it") from None
        except (ValueError, AttributeError, RecursionError) as error:
            raise AgentStateError(
                f"{path} holds no load ({error}): PUT the load again, or DELETE it"
            ) from None

    def _is_stored(self, topic: str, wanted: Mapping[str, Any]) -> bool:
        try:
            return self.load(topic) == wanted
        except AgentStateError:
            return False

    def put(self, topic: str, load: object, *, dry_run: bool = False) -> ChangeOutcome:
        """Stores a load. Raises `ConfigurationError`, `TooManyLoadsError`."""
        wanted = _checked(topic, load)
        with self._lock:
            topics = self.topics()
            if topic in topics:
                if self._is_stored(topic, wanted):
                    return ChangeOutcome.UNCHANGED
                outcome = ChangeOutcome.CHANGED
            elif len(topics) >= LOADS_MAX:
                raise TooManyLoadsError(f"a host has at most {LOADS_MAX} loads; delete one before {topic}")
            else:
                outcome = ChangeOutcome.CREATED
            if not dry_run:
                write_durably(self._path(topic), json.dumps(wanted, indent=1))
            return outcome

    def delete(self, topic: str) -> None:
        """Deletes a load; its data in HDFS stay. Raises `LoadUnknownError`."""
        with self._lock:
            if topic not in self.topics():
                self.load(topic)
            remove_durably(self._path(topic))

    def _path(self, topic: str) -> Path:
        if not TOPIC_PATTERN.fullmatch(topic):
            raise LoadUnknownError(f"{shortened(repr(topic))} is not a topic name")
        return self.directory / f"{topic}.json"


def _complete(load: Mapping[str, Any]) -> dict[str, Any]:
    return {name: load.get(name, DEFAULTS.get(name)) for name in FIELDS}


def _checked(topic: str, load: object) -> dict[str, Any]:
    """The load with every field. Raises `ConfigurationError`."""
    if not isinstance(load, dict):
        problem = FieldProblem("load", shortened(repr(load)), "expected an object")
        raise ConfigurationError(topic, [problem], what="load")
    try:
        parse_schedule(topic, load)
    except LoadScheduleError as error:
        problems = [
            FieldProblem("topic", repr(topic), each.message)
            if each.field is None
            else FieldProblem(each.field, repr(load.get(each.field)), each.message)
            for each in error.problems
        ]
        raise ConfigurationError(topic, problems, what="load") from error
    return _complete(load)
