"""Moments as people write them in programs: texts, datetimes, Unix milliseconds. Pure."""

from datetime import UTC, date, datetime
from typing import Final

from headrace.process.timestamps import time_problem

FORMS: Final = "2026-11-20, 2026-11-20T18, 2026-11-20T18:05:00Z, a datetime, or Unix milliseconds"

Moment = str | int | date


class MomentError(ValueError):
    """A value is no moment, or no version of a table."""


def moment_ms(value: Moment, name: str) -> int:
    """Returns Unix ms. A time without a zone is UTC. `name` is the argument's. Raises `MomentError`."""
    if isinstance(value, bool) or not isinstance(value, str | int | date):
        raise MomentError(f"{name}={value!r} is not a time; write {FORMS}")
    if isinstance(value, int):
        if problem := time_problem(value):
            raise MomentError(f"{name}: {problem}")
        return value
    moment = _parsed(value, name) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def as_of(value: Moment | None) -> tuple[int | None, int | None]:
    """Returns the sequence number of a change, or Unix ms: a number is a sequence number."""
    if value is None:
        return None, None
    if isinstance(value, int) and not isinstance(value, bool):
        if not time_problem(value):
            raise MomentError(
                f"as_of={value} looks like a time, and a number is the sequence number of a change; "
                "give times as a text or a datetime"
            )
        return value, None
    return None, moment_ms(value, "as_of")


def _parsed(text: str, name: str) -> datetime:
    candidate = text.strip()
    if len(candidate) == len("2026-11-20T18"):
        candidate += ":00"
    try:
        return datetime.fromisoformat(candidate)
    except ValueError:
        raise MomentError(f"{name}={text!r} is not a time; write {FORMS}") from None
