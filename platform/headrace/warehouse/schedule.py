"""When and how a topic is loaded, and who is responsible for it.

Owns the fields of a load's schedule, their defaults and their bounds, wherever a schedule is written:
`dags/topics.yaml` (`airflow.topics`), a host's agent (`agent.loads`) and, through the agent, Terraform. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from headrace.process.nearest import question
from headrace.process.yaml_text import shown

# Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic), within Airflow's bound for ids.
TOPIC_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
RETRIES_MAX: Final = 20
# What Airflow's database can hold. One load beyond would take the DAGs of all topics along: they are written
# together.
OWNER_MAX_CHARS: Final = 200
CRON_MAX_CHARS: Final = 180
"""Airflow stores its description in words, too, in 1,000 characters."""
OUTPUT_MAX_CHARS: Final = 1_000
"""It is a part of the URIs of assets, which are ASCII and have at most 1,500 characters."""
DURATION_MAX: Final = timedelta(days=3660)
RETENTION_MIN: Final = timedelta(hours=1)
"""`6m` are minutes: whoever means months would have every hour deleted before it is sealed."""
_DURATION_PATTERN: Final = re.compile(r"(\d+)\s*([smhd])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class LoadScheduleError(ValueError):
    """A schedule is invalid. `field` is None if the topic's name is. The message, one line, has the value.

    `problems`: an error for each thing that is wrong, this one alone unless others are given.
    """

    def __init__(self, field: str | None, message: str, problems: Sequence[LoadScheduleError] = ()) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.problems = tuple(problems) or (self,)


def _parsed_duration(text: object) -> timedelta:
    match = _DURATION_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else -1
    if not 0 <= seconds <= DURATION_MAX.total_seconds():
        raise ValueError
    return timedelta(seconds=seconds)


def _one_hour_at_least(duration: timedelta) -> timedelta:
    if duration < RETENTION_MIN:
        raise ValueError
    return duration


def _written_duration(duration: timedelta) -> str:
    seconds = int(duration.total_seconds())
    unit = next(unit for unit, size in reversed(_UNITS_S.items()) if seconds % size == 0)
    return f"{seconds // _UNITS_S[unit]}{unit}"


def _is_owner(text: str) -> bool:
    return bool(text.strip()) and len(text) <= OWNER_MAX_CHARS and text.isprintable()


def _is_cron(text: str) -> bool:
    # Imported here because Terraform's provider starts often and rarely needs it. Airflow uses it, too.
    from croniter import CroniterBadDateError, croniter

    if len(text) > CRON_MAX_CHARS or not croniter.is_valid(text):
        return False
    try:
        croniter(text).get_next()
    except CroniterBadDateError:
        return False  # such as the 30th of February: nothing would ever be loaded
    return True


def _is_directory(path: str) -> bool:
    is_text = len(path) <= OUTPUT_MAX_CHARS and path.isascii() and path.isprintable()
    return is_text and path.startswith("/") and ".." not in path.split("/")


def _must(hold: Callable[[str], object]) -> AfterValidator:
    def check(value: str) -> str:
        if not hold(value):
            raise ValueError
        return value

    return AfterValidator(check)


_Duration = Annotated[timedelta, BeforeValidator(_parsed_duration), PlainSerializer(_written_duration)]
_Age = Annotated[_Duration, AfterValidator(_one_hour_at_least)]


@dataclass(frozen=True, slots=True)
class LoadSchedule:
    """When and how one topic is loaded.

    `schedule` is a cron expression in UTC; None loads only by hand. `output` is the warehouse's root
    directory in HDFS. An hour is closed once `grace` has passed since its end. It is sealed once the audit
    proves that at least the share `completeness` of its events arrived (1.0: every one). A missing event
    counts as late, not lost, until `audit_delay` has passed; a seal waits `audit_wait` for the audit's
    verdict. `retention` is the age at which hours are deleted, an hour at least; None keeps them. `owner` is
    the contact for the topic.
    """

    topic: str
    owner: Annotated[StrictStr, _must(_is_owner)]
    schedule: Annotated[StrictStr, _must(_is_cron)] | None = "*/10 * * * *"
    output: Annotated[StrictStr, _must(_is_directory)] = "/data"
    completeness: Annotated[StrictFloat, Field(gt=0, le=1)] = 1.0
    grace: _Duration = timedelta(minutes=10)
    audit_delay: _Duration = timedelta(minutes=5)
    audit_wait: _Duration = timedelta(minutes=30)
    retention: _Age | None = None
    retries: Annotated[StrictInt, Field(ge=0, le=RETRIES_MAX)] = 3
    retry_delay: _Duration = timedelta(seconds=30)


_EXPECTED_DURATION: Final = f"a duration such as 30s, 10m, 6h or 90d, up to {DURATION_MAX.days}d"
_EXPECTED: Final = {
    "owner": f"a contact of at most {OWNER_MAX_CHARS} printable characters",
    "schedule": f"a cron expression such as '*/10 * * * *', of at most {CRON_MAX_CHARS} characters, or null "
    "for loads by hand",
    "output": f"an absolute HDFS directory such as /data, of at most {OUTPUT_MAX_CHARS} printable characters "
    "of ASCII",
    "completeness": "a share above 0 and up to 1.0 (every event)",
    "retention": f"an age of 1h at least, such as 36h or 90d, up to {DURATION_MAX.days}d (m: minutes); null "
    "keeps all hours",
    "retries": f"a number from 0 to {RETRIES_MAX}",
}
_SCHEDULES: Final = TypeAdapter(LoadSchedule)
FIELDS: Final = tuple(field.name for field in fields(LoadSchedule) if field.name != "topic")
DEFAULTS: Final[Mapping[str, Any]] = {
    name: value
    for name, value in _SCHEDULES.dump_python(LoadSchedule(topic="", owner="")).items()
    if name not in ("topic", "owner")
}
"""The value of each field that is left out, as it would be written."""


def parse_schedule(topic: str, values: Mapping[str, Any]) -> LoadSchedule:
    """Returns a topic's schedule from its fields as written (`grace: 10m`).

    Raises `LoadScheduleError` with everything that is wrong.
    """
    problems = []
    if not TOPIC_PATTERN.fullmatch(topic) or topic in (".", ".."):
        rule = LoadScheduleError(
            None, "not a valid topic name; Kafka allows letters, digits, '.', '_' and '-', up to 200 of them"
        )
        problems.append(rule)
    for name in (each for each in values if each not in FIELDS):
        hint = question(str(name), FIELDS)
        known = ", ".join(FIELDS)
        problems.append(LoadScheduleError(str(name), f"unknown field {shown(name)}{hint}; known are {known}"))
    ours = {name: value for name, value in values.items() if name in FIELDS}
    try:
        schedule = _SCHEDULES.validate_python({"topic": topic, **ours})
    except ValidationError as error:
        names = dict.fromkeys(str(row["loc"][0]) for row in error.errors())
        problems += [_wrong(name, values.get(name)) for name in names]
    if problems:
        raise LoadScheduleError(problems[0].field, "; ".join(each.message for each in problems), problems)
    return schedule


def _wrong(name: str, value: object) -> LoadScheduleError:
    if name == "owner" and not (isinstance(value, str) and value.strip()):
        return LoadScheduleError(name, "owner is missing; name a contact for this topic")
    expected = _EXPECTED.get(name, _EXPECTED_DURATION)
    return LoadScheduleError(name, f"{name} {shown(value)} is not {expected}")
