"""The topics to load: those in `topics.yaml`, and the loads that were put to this host's agent.

Owns how both are read, and their errors; `warehouse.schedule` defines a schedule's fields. Imports nothing of
Airflow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.coordination.declared import DECLARATIONS
from headrace.process import yaml_text
from headrace.process.yaml_text import YamlError, shown
from headrace.warehouse.schedule import FIELDS, LoadSchedule, LoadScheduleError, parse_schedule

TOPICS_MAX: Final = 1_000
# The agent stores one file per topic, <home>/loads/<topic>.json.
HOME_VARIABLE: Final = "HEADRACE_HOME"
LOADS_FOLDER: Final = "loads"
# Not a field of a load: `headrace up` puts it into the topic's own settings.
PRODUCERS: Final = "producers"


class TopicsFileError(ValueError):
    """A `topics.yaml` or a stored load is invalid. The message names file, topic, field and value."""


def read_topics(path: Path) -> tuple[LoadSchedule, ...]:
    """Returns the schedules in a `topics.yaml`. Raises `TopicsFileError`."""
    return parse_topics(_text(path) or "", where=str(path))


def read_loads(environment: Mapping[str, str] = os.environ) -> tuple[LoadSchedule, ...]:
    """Returns the schedules stored by the agent that runs this Airflow; none if no agent does.

    Raises `TopicsFileError`.
    """
    home = environment.get(HOME_VARIABLE)
    return tuple(map(_read_load, sorted((Path(home) / LOADS_FOLDER).glob("*.json")))) if home else ()


def read_all(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[LoadSchedule, ...]:
    """Returns the schedules of both; a load at the agent overrides the file's schedule of the same topic."""
    schedules = {schedule.topic: schedule for schedule in (*read_topics(path), *read_loads(environment))}
    return tuple(schedules.values())


def _read_load(path: Path) -> LoadSchedule:
    try:
        fields = _mapping(json.loads(path.read_bytes()), str(path), known=None)
    except (OSError, ValueError, RecursionError) as error:
        raise TopicsFileError(f"{path} cannot be read: {error}") from error
    return _schedule(path.stem, fields, f"{path}: topic {path.stem}")


def parse_topics(text: str, *, where: str) -> tuple[LoadSchedule, ...]:
    """Returns the schedules in a text of `defaults: {…}` and `topics: {NAME: {…}, …}`.

    Raises `TopicsFileError`, one line that begins with `where`.
    """
    return tuple(
        _schedule(name, {field: value for field, value in fields.items() if field != PRODUCERS}, here)
        for name, fields, here in _topics(text, where)
    )


def parse_declarations(text: str, *, where: str) -> dict[str, str]:
    """Returns what topics declare about their producers, for those that have the field `producers`.

    Raises `TopicsFileError`.
    """
    declared: dict[str, str] = {}
    for name, fields, here in _topics(text, where):
        if PRODUCERS in fields:
            if fields[PRODUCERS] not in DECLARATIONS:
                expected = " or ".join(DECLARATIONS)
                raise TopicsFileError(f"{here}: {PRODUCERS} {shown(fields[PRODUCERS])} is not {expected}")
            declared[name] = fields[PRODUCERS]
    return declared


def read_declarations(path: Path) -> dict[str, str]:
    """Returns the declarations in a `topics.yaml`; none without the file. Raises `TopicsFileError`."""
    text = _text(path, may_lack=True)
    return {} if text is None else parse_declarations(text, where=str(path))


def read_defaults(path: Path) -> dict[str, Any]:
    """Returns the fields of a load that a `topics.yaml` gives to all its topics; none without the file.

    Raises `TopicsFileError`.
    """
    text = _text(path, may_lack=True)
    if text is None:
        return {}
    fields = _document(text, str(path))[0]
    return {name: value for name, value in fields.items() if name != PRODUCERS}


def _text(path: Path, *, may_lack: bool = False) -> str | None:
    """Returns a file's text; None if there is none, and there need not be. Raises `TopicsFileError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if may_lack:
            return None
        raise TopicsFileError(f"{path} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise TopicsFileError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopicsFileError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error


def _topics(text: str, where: str) -> list[tuple[str, dict[str, Any], str]]:
    """Returns each topic's name, its fields with the defaults, and its place for errors."""
    defaults, topics = _document(text, where)
    if not topics:
        raise TopicsFileError(f"{where}: topics is empty; name at least one topic")
    if len(topics) > TOPICS_MAX:
        raise TopicsFileError(f"{where}: {len(topics)} topics; a file may have at most {TOPICS_MAX}")
    places = {name: f"{where}: topic {name}" for name in topics}
    return [
        (name, {**defaults, **_mapping(fields or {}, places[name], known=None)}, places[name])
        for name, fields in topics.items()
    ]


def _document(text: str, where: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the defaults, and the topics."""
    try:
        data = yaml_text.load(text)
    except YamlError as error:
        raise TopicsFileError(f"{where} {error}") from error
    document = _mapping(data, where, known=("defaults", "topics"))
    known = (*FIELDS, PRODUCERS)
    defaults = _mapping(document.get("defaults") or {}, f"{where}: defaults", known=known)
    return defaults, _mapping(document.get("topics"), f"{where}: topics", known=None)


def _mapping(value: object, where: str, *, known: tuple[str, ...] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopicsFileError(f"{where} must be a mapping of names to values, not {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise TopicsFileError(f"{where}: {shown(key)} is not a name; quote it")
        if known is not None and key not in known:
            raise TopicsFileError(f"{where}: unknown field {key!r}; known are {', '.join(known)}")
    return value


def _schedule(topic: str, fields: Mapping[str, Any], where: str) -> LoadSchedule:
    try:
        return parse_schedule(topic, fields)
    except LoadScheduleError as error:
        raise TopicsFileError(f"{where}: {error}") from error
