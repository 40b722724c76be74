"""Hours as text in params, partition keys and mapped tasks.

Owns how hours are parsed, formatted and grouped into days. Pure; imports nothing of Airflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

HOUR: Final = timedelta(hours=1)


class HourFormatError(ValueError):
    """A text that users wrote is not an hour, or two are not a window."""


def parse_hour(text: str, *, what: str = "hour") -> datetime:
    """Returns the start, in UTC, of the hour of an ISO 8601 time. A time without an offset is UTC.

    Raises `HourFormatError`, which names `what`.
    """
    try:
        time = datetime.fromisoformat(text.strip())
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise HourFormatError(
            f"{what} {text!r} is not a time such as 2015-05-17T10:00 or 2015-05-17T12:00+02:00"
        ) from error
    return time.replace(minute=0, second=0, microsecond=0)


def hour_list(hours: str | Sequence[str]) -> list[str]:
    """Returns the `hours` of a task, which may be a single one."""
    return [hours] if isinstance(hours, str) else list(hours)


def hour_key(hour: datetime) -> str:
    """Returns an hour's partition key: `2015-05-17T10:00:00`, in UTC, as Airflow's own mappers expect it."""
    # Not by strftime, which writes the year 1 with one digit.
    return hour.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def window(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Returns the range of hours [since, until); None or an empty text leaves a side open.

    Raises `HourFormatError` if a text is not a time or the range is empty.
    """
    start = parse_hour(since, what="from") if since else None
    end = parse_hour(until, what="to") if until else None
    if start is not None and end is not None and start >= end:
        raise HourFormatError(f"the window from {hour_key(start)} to {hour_key(end)} is empty")
    return start, end


def by_day(hours: Iterable[datetime]) -> list[list[datetime]]:
    """Returns the hours grouped by day in UTC, sorted, without duplicates."""
    days: dict[str, list[datetime]] = {}
    for hour in sorted(set(hours)):
        days.setdefault(hour.astimezone(UTC).date().isoformat(), []).append(hour)
    return list(days.values())


def span(hours: Sequence[datetime]) -> tuple[datetime, datetime]:
    """Returns the smallest range [from, to) with all of the hours. `hours` must not be empty."""
    return min(hours), max(hours) + HOUR
