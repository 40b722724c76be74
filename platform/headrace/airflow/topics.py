"""Which topics are loaded, when, and by whom: `topics.yaml`, read and checked.

Owns the file's shape and its errors. Imports nothing of Airflow: whether a schedule means something to
Airflow is asked of `croniter`, which Airflow itself uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from croniter import croniter

# Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic), within Airflow's bound for ids.
TOPIC_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
TOPICS_MAX: Final = 1_000
RETRIES_MAX: Final = 20
DURATION_PATTERN: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION_MAX: Final = timedelta(days=3660)


class TopicsFileError(ValueError):
    """`topics.yaml` is wrong and can be mended. The message names file, topic, field and value."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How one topic is loaded.

    `schedule` is a cron expression in UTC, or None for loads by hand only. `output` is the warehouse's root
    directory in HDFS. An hour is closed once `grace` has passed since its end; it is sealed when the audit
    proves that at least the share `completeness` of its events arrived (1.0: every one). What is missing is
    taken for late, not lost, until `audit_delay` has passed; `audit_wait` is how long a seal waits for the
    audit to know. `retention` is the age at which hours are deleted, None for
    never. `owner` is who is asked about the topic.
    """

    topic: str
    owner: str
    schedule: str | None = "*/10 * * * *"
    output: str = "/data"
    completeness: float = 1.0
    grace: timedelta = timedelta(minutes=10)
    audit_delay: timedelta = timedelta(minutes=5)
    audit_wait: timedelta = timedelta(minutes=30)
    retention: timedelta | None = None
    retries: int = 3
    retry_delay: timedelta = timedelta(seconds=30)


_DURATIONS: Final = ("grace", "audit_delay", "audit_wait", "retention", "retry_delay")
_FIELDS: Final = tuple(field.name for field in fields(TopicPlan) if field.name != "topic")


def read_topics(path: Path) -> tuple[TopicPlan, ...]:
    """The plans of a `topics.yaml`. Raises `TopicsFileError`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise TopicsFileError(f"{path} cannot be read: {error.strerror}") from error
    return parse_topics(text, where=str(path))


def parse_topics(text: str, *, where: str) -> tuple[TopicPlan, ...]:
    """The plans in a text of `defaults: {…}` and `topics: {NAME: {…}, …}`; `where` names it in errors.

    Raises `TopicsFileError`, one line.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopicsFileError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    document = _mapping(data, where, known=("defaults", "topics"))
    defaults = _mapping(document.get("defaults") or {}, f"{where}: defaults", known=_FIELDS)
    topics = _mapping(document.get("topics"), f"{where}: topics", known=None)
    if not topics:
        raise TopicsFileError(f"{where}: topics is empty; name at least one topic")
    if len(topics) > TOPICS_MAX:
        raise TopicsFileError(f"{where}: {len(topics)} topics; one file may hold {TOPICS_MAX}")
    return tuple(_plan(name, said or {}, defaults, f"{where}: topic {name}") for name, said in topics.items())


def _mapping(value: object, where: str, *, known: tuple[str, ...] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopicsFileError(f"{where} must be a mapping of names to values, not {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise TopicsFileError(f"{where}: {key!r} is not a name; quote it")
        if known is not None and key not in known:
            raise TopicsFileError(f"{where}: unknown field {key!r}; known are {', '.join(known)}")
    return value


def _plan(topic: str, said: object, defaults: Mapping[str, Any], where: str) -> TopicPlan:
    if not TOPIC_PATTERN.fullmatch(topic) or topic in (".", ".."):
        raise TopicsFileError(
            f"{where}: no name for a topic; Kafka allows letters, digits, '.', '_' and '-', up to 200 of them"
        )
    values = {**defaults, **_mapping(said, where, known=_FIELDS)}
    for name in _DURATIONS:
        if name in values and not (name == "retention" and values[name] is None):
            values[name] = _duration(values[name], f"{where}: {name}")
    owner = values.get("owner")
    if not isinstance(owner, str) or not owner.strip():
        raise TopicsFileError(f"{where}: owner is missing; say whom to ask about this topic")
    plan = TopicPlan(topic=topic, **values)
    _check(plan, where)
    return plan


def _check(plan: TopicPlan, where: str) -> None:
    schedule = plan.schedule
    if schedule is not None and not (isinstance(schedule, str) and croniter.is_valid(schedule)):
        raise TopicsFileError(
            f"{where}: schedule {schedule!r} is not a cron expression such as '*/10 * * * *', "
            "nor null for loads by hand"
        )
    if not isinstance(plan.output, str) or not plan.output.startswith("/") or ".." in plan.output.split("/"):
        raise TopicsFileError(
            f"{where}: output {plan.output!r} is not an absolute HDFS directory such as /data"
        )
    completeness = plan.completeness
    is_number = isinstance(completeness, int | float) and not isinstance(completeness, bool)
    if not is_number or not 0.0 < completeness <= 1.0:
        raise TopicsFileError(
            f"{where}: completeness {completeness!r} is not a share above 0 and up to 1.0 (every event)"
        )
    if (
        not isinstance(plan.retries, int)
        or isinstance(plan.retries, bool)
        or not 0 <= plan.retries <= RETRIES_MAX
    ):
        raise TopicsFileError(f"{where}: retries {plan.retries!r} is not a number from 0 to {RETRIES_MAX}")


def _duration(value: object, where: str) -> timedelta:
    match = DURATION_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise TopicsFileError(f"{where}: {value!r} is not a duration such as 30s, 10m, 6h or 90d")
    duration = timedelta(seconds=min(int(match[1]), 10**12) * _SECONDS[match[2]])
    if duration > DURATION_MAX:
        raise TopicsFileError(f"{where}: {value} is over the limit of {DURATION_MAX.days}d")
    return duration
