"""Which topics are loaded, when, and by whom: `topics.yaml`, and what was put to this host's agent.

Owns the file's shape, the folder's, and their errors; what a plan may say is `warehouse.schedule`'s. Imports
nothing of Airflow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.warehouse.schedule import FIELDS, LoadSchedule, LoadScheduleError, parse_schedule

TOPICS_MAX: Final = 1_000
# The agent of this host keeps it: one file a topic, <home>/loads/<topic>.json.
HOME_VARIABLE: Final = "HEADRACE_HOME"
LOADS_FOLDER: Final = "loads"


class TopicsFileError(ValueError):
    """`topics.yaml` is wrong and can be mended. The message names file, topic, field and value."""


def read_topics(path: Path) -> tuple[LoadSchedule, ...]:
    """The plans of a `topics.yaml`. Raises `TopicsFileError`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise TopicsFileError(f"{path} cannot be read: {error.strerror}") from error
    return parse_topics(text, where=str(path))


def read_loads(environment: Mapping[str, str] = os.environ) -> tuple[LoadSchedule, ...]:
    """The plans that were put to the agent whose unit this is; none where there is no agent.

    Raises `TopicsFileError`.
    """
    home = environment.get(HOME_VARIABLE)
    return tuple(map(_read_load, sorted((Path(home) / LOADS_FOLDER).glob("*.json")))) if home else ()


def read_all(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[LoadSchedule, ...]:
    """Both: for a topic that both name, what was put to the agent is the newer word."""
    plans = {plan.topic: plan for plan in (*read_topics(path), *read_loads(environment))}
    return tuple(plans.values())


def _read_load(path: Path) -> LoadSchedule:
    try:
        said = _mapping(json.loads(path.read_bytes()), str(path), known=None)
    except (OSError, ValueError) as error:
        raise TopicsFileError(f"{path} cannot be read: {error}") from error
    return _plan(path.stem, said, f"{path}: topic {path.stem}")


def parse_topics(text: str, *, where: str) -> tuple[LoadSchedule, ...]:
    """The plans in a text of `defaults: {…}` and `topics: {NAME: {…}, …}`; `where` names it in errors.

    Raises `TopicsFileError`, one line.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopicsFileError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    document = _mapping(data, where, known=("defaults", "topics"))
    defaults = _mapping(document.get("defaults") or {}, f"{where}: defaults", known=FIELDS)
    topics = _mapping(document.get("topics"), f"{where}: topics", known=None)
    if not topics:
        raise TopicsFileError(f"{where}: topics is empty; name at least one topic")
    if len(topics) > TOPICS_MAX:
        raise TopicsFileError(f"{where}: {len(topics)} topics; one file may hold {TOPICS_MAX}")
    plans = []
    for name, said in topics.items():
        here = f"{where}: topic {name}"
        plans.append(_plan(name, {**defaults, **_mapping(said or {}, here, known=None)}, here))
    return tuple(plans)


def _mapping(value: object, where: str, *, known: tuple[str, ...] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopicsFileError(f"{where} must be a mapping of names to values, not {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise TopicsFileError(f"{where}: {key!r} is not a name; quote it")
        if known is not None and key not in known:
            raise TopicsFileError(f"{where}: unknown field {key!r}; known are {', '.join(known)}")
    return value


def _plan(topic: str, said: Mapping[str, Any], where: str) -> LoadSchedule:
    try:
        return parse_schedule(topic, said)
    except LoadScheduleError as error:
        raise TopicsFileError(f"{where}: {error}") from error
