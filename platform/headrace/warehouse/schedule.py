"""How a topic is loaded: when, to where, how complete an hour must be, and who answers for it.

Owns the plan's fields, their defaults and what they may hold, for whoever says it: `dags/topics.yaml`
(`airflow.topics`), or a host's agent (`agent.loads`) and through it Terraform. Pure. Whether a schedule
means something to Airflow is asked of `croniter`, which Airflow itself uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

# Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic), within Airflow's bound for ids.
TOPIC_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
RETRIES_MAX: Final = 20
DURATION_PATTERN: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION_MAX: Final = timedelta(days=3660)


class LoadScheduleError(ValueError):
    """A plan that cannot be; `field` is None for the topic's name. The message, one line, names the value."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class LoadSchedule:
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
FIELDS: Final = tuple(field.name for field in fields(LoadSchedule) if field.name != "topic")


def _text(duration: timedelta) -> str:
    seconds = int(duration.total_seconds())
    unit = next(unit for unit, size in reversed(_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: _text(field.default) if isinstance(field.default, timedelta) else field.default
    for field in fields(LoadSchedule)
    if field.name not in ("topic", "owner")
}
"""What a plan says for a field that is left out, as it would be written."""


def parse_schedule(topic: str, said: Mapping[str, Any]) -> LoadSchedule:
    """The plan of a topic, of fields as they are written (`grace: 10m`). Raises `LoadScheduleError`."""
    if not TOPIC_PATTERN.fullmatch(topic) or topic in (".", ".."):
        raise LoadScheduleError(
            None, "no name for a topic; Kafka allows letters, digits, '.', '_' and '-', up to 200 of them"
        )
    for name in said:
        if name not in FIELDS:
            raise LoadScheduleError(name, f"unknown field {name!r}; known are {', '.join(FIELDS)}")
    values = dict(said)
    for name in _DURATIONS:
        if name in values and not (name == "retention" and values[name] is None):
            values[name] = _duration(values[name], name)
    owner = values.get("owner")
    if not isinstance(owner, str) or not owner.strip():
        raise LoadScheduleError("owner", "owner is missing; say whom to ask about this topic")
    plan = LoadSchedule(topic=topic, **values)
    _check(plan)
    return plan


def _check(plan: LoadSchedule) -> None:
    # Whoever needs the defaults alone, such as Terraform's provider at each start, does without.
    from croniter import croniter

    schedule = plan.schedule
    if schedule is not None and not (isinstance(schedule, str) and croniter.is_valid(schedule)):
        raise LoadScheduleError(
            "schedule",
            f"schedule {schedule!r} is not a cron expression such as '*/10 * * * *', "
            "nor null for loads by hand",
        )
    if not isinstance(plan.output, str) or not plan.output.startswith("/") or ".." in plan.output.split("/"):
        raise LoadScheduleError(
            "output", f"output {plan.output!r} is not an absolute HDFS directory such as /data"
        )
    completeness = plan.completeness
    is_number = isinstance(completeness, int | float) and not isinstance(completeness, bool)
    if not is_number or not 0.0 < completeness <= 1.0:
        raise LoadScheduleError(
            "completeness",
            f"completeness {completeness!r} is not a share above 0 and up to 1.0 (every event)",
        )
    if (
        not isinstance(plan.retries, int)
        or isinstance(plan.retries, bool)
        or not 0 <= plan.retries <= RETRIES_MAX
    ):
        raise LoadScheduleError(
            "retries", f"retries {plan.retries!r} is not a number from 0 to {RETRIES_MAX}"
        )


def _duration(value: object, name: str) -> timedelta:
    match = DURATION_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise LoadScheduleError(name, f"{name}: {value!r} is not a duration such as 30s, 10m, 6h or 90d")
    duration = timedelta(seconds=min(int(match[1]), 10**12) * _SECONDS[match[2]])
    if duration > DURATION_MAX:
        raise LoadScheduleError(name, f"{name}: {value} is over the limit of {DURATION_MAX.days}d")
    return duration
