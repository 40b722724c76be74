"""The topics to load: those in `topics.yaml`, and the loads that were put to this host's agent.

Owns how both are read, and their errors; `warehouse.schedule` defines a schedule's fields. Imports nothing of
Airflow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headrace.coordination.declared import DECLARATIONS
from headrace.process import yaml_text
from headrace.process.nearest import question
from headrace.process.yaml_lines import line_of, lines_of
from headrace.process.yaml_text import YamlError, shown
from headrace.warehouse.schedule import FIELDS, LoadSchedule, LoadScheduleError, parse_schedule

TOPICS_MAX: Final = 1_000
PROBLEMS_SHOWN_MAX: Final = 20
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


class StoredLoads(NamedTuple):
    """What an agent stores: the schedules that can be read, and of other topics why theirs cannot."""

    schedules: tuple[LoadSchedule, ...] = ()
    problems: Mapping[str, str] = MappingProxyType({})

    @property
    def topics(self) -> set[str]:
        return {schedule.topic for schedule in self.schedules} | self.problems.keys()


def read_loads(environment: Mapping[str, str] = os.environ) -> StoredLoads:
    """Returns the schedules stored by the agent that runs this Airflow; none if no agent does.

    One that cannot be read keeps no other topic from its DAGs: see `check_loads`. Raises `TopicsFileError` if
    it is not known which there are.
    """
    home = environment.get(HOME_VARIABLE)
    schedules, problems = [], {}
    for path in _files_in(Path(home) / LOADS_FOLDER) if home else ():
        try:
            schedules.append(_read_load(path))
        except TopicsFileError as error:
            problems[path.stem] = str(error)
    return StoredLoads(tuple(schedules), problems)


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")  # `glob` hides errors
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TopicsFileError(f"{folder} cannot be read: {error}") from error


def check_loads(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `TopicsFileError` that names the stored loads that cannot be read, if there are any."""
    problems = list(read_loads(environment).problems.values())
    if len(problems) > PROBLEMS_SHOWN_MAX:
        problems[PROBLEMS_SHOWN_MAX:] = [f"and {len(problems) - PROBLEMS_SHOWN_MAX} more"]
    if problems:
        raise TopicsFileError("; ".join(problems))


def read_all(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[LoadSchedule, ...]:
    """Returns the schedules of both; a load at the agent overrides the file's schedule of the same topic. One
    that cannot be read does, too: the file's may have another output. Raises `TopicsFileError`.
    """
    put = read_loads(environment)
    listed = {schedule.topic: schedule for schedule in read_topics(path)}
    known = {topic: schedule for topic, schedule in listed.items() if topic not in put.problems}
    return tuple((known | {schedule.topic: schedule for schedule in put.schedules}).values())


def _read_load(path: Path) -> LoadSchedule:
    try:
        fields = _mapping(json.loads(path.read_bytes()), str(path), known=None)
    except (OSError, ValueError, RecursionError) as error:
        raise TopicsFileError(f"{path} cannot be read: {error}") from error
    try:
        return parse_schedule(path.stem, fields)
    except LoadScheduleError as error:
        raise TopicsFileError(f"{path}: topic {path.stem}: {error}") from error


def parse_topics(text: str, *, where: str) -> tuple[LoadSchedule, ...]:
    """Returns the schedules in a text of `defaults: {…}` and `topics: {NAME: {…}, …}`.

    Raises `TopicsFileError`, one line that begins with `where` and has every problem with its line.
    """
    topics, problems = _topics(text, where)
    schedules = []
    for topic in topics:
        fields = {field: value for field, value in topic.fields.items() if field != PRODUCERS}
        try:
            schedules.append(parse_schedule(topic.name, fields))
        except LoadScheduleError as error:
            problems += [topic.problem(each.field, each.message) for each in error.problems]
    _raise_if(problems, text, where)
    return tuple(schedules)


def parse_declarations(text: str, *, where: str) -> dict[str, str]:
    """Returns what topics declare about their producers, for those that have the field `producers`.

    Raises `TopicsFileError`.
    """
    declared: dict[str, str] = {}
    topics, problems = _topics(text, where)
    for topic in topics:
        if PRODUCERS in topic.fields:
            value = topic.fields[PRODUCERS]
            if value in DECLARATIONS:
                declared[topic.name] = value
            else:
                message = f"{PRODUCERS} {shown(value)} is not {' or '.join(DECLARATIONS)}"
                problems.append(topic.problem(PRODUCERS, message))
    _raise_if(problems, text, where)
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
    _raise_if(_unknown(fields), text, str(path))
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


class _Problem(NamedTuple):
    """Something wrong, with its place in the file's values."""

    path: tuple[str, ...]
    message: str


class _Topic(NamedTuple):
    """A topic of the file: its fields with the defaults, and which of them are its own."""

    name: str
    fields: Mapping[str, Any]
    own: Container[str]

    def problem(self, field: str | None, message: str) -> _Problem:
        if field is None or field not in self.fields:
            return _Problem(("topics", self.name), f"topic {self.name}: {message}")
        if field not in self.own:
            return _Problem(("defaults", field), f"defaults: {message}")
        return _Problem(("topics", self.name, field), f"topic {self.name}: {message}")


def _raise_if(problems: Sequence[_Problem], text: str, where: str) -> None:
    """Raises `TopicsFileError` with all problems, those of a default once, each with its line."""
    if not problems:
        return
    lines = lines_of(text)
    found = sorted({(line_of(lines, each.path) or 0, each.message) for each in problems})
    more = f"; and {len(found) - PROBLEMS_SHOWN_MAX} more" if len(found) > PROBLEMS_SHOWN_MAX else ""
    told = [f"line {line}: {message}" for line, message in found[:PROBLEMS_SHOWN_MAX]]
    raise TopicsFileError(f"{where}: {'; '.join(told)}{more}")


def _unknown(defaults: Mapping[str, Any]) -> list[_Problem]:
    """The defaults that no load has."""
    known = (*FIELDS, PRODUCERS)
    return [
        _Problem(
            ("defaults", name),
            f"defaults: unknown field {name!r}{question(name, known)}; known are {', '.join(known)}",
        )
        for name in defaults
        if name not in known
    ]


def _topics(text: str, where: str) -> tuple[list[_Topic], list[_Problem]]:
    """Returns all topics, and what is wrong with the defaults.

    Raises `TopicsFileError` if the text is not what such a file is made of.
    """
    defaults, topics = _document(text, where)
    if not topics:
        raise TopicsFileError(f"{where}: topics is empty; name at least one topic")
    if len(topics) > TOPICS_MAX:
        raise TopicsFileError(f"{where}: {len(topics)} topics; a file may have at most {TOPICS_MAX}")
    found = []
    unknown = _unknown(defaults)
    shared = {name: value for name, value in defaults.items() if name in (*FIELDS, PRODUCERS)}
    for name, fields in topics.items():
        own = _mapping(fields or {}, f"{where}: topic {name}", known=None)
        found.append(_Topic(name, {**shared, **own}, own))
    return found, unknown


def _document(text: str, where: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the defaults, and the topics."""
    try:
        data = yaml_text.load(text)
    except YamlError as error:
        raise TopicsFileError(f"{where} {error}") from error
    document = _mapping(data, where, known=("defaults", "topics"))
    defaults = _mapping(document.get("defaults") or {}, f"{where}: defaults", known=None)
    return defaults, _mapping(document.get("topics"), f"{where}: topics", known=None)


def _mapping(value: object, where: str, *, known: tuple[str, ...] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopicsFileError(f"{where} must be a mapping of names to values, not {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise TopicsFileError(f"{where}: {shown(key)} is not a name; quote it")
        if known is not None and key not in known:
            hint = question(key, known)
            raise TopicsFileError(f"{where}: unknown field {key!r}{hint}; known are {', '.join(known)}")
    return value
