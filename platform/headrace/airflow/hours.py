"""Hours as Airflow's side names them: in params, partition keys and mapped tasks.

Owns the text forms of an hour and how hours are grouped into days. Pure; knows no Airflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

HOUR: Final = timedelta(hours=1)
# The form that Airflow's own mappers from hours to days, weeks and months read.
KEY_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"


class HourFormatError(ValueError):
    """A text does not name an hour; whoever wrote it can mend it."""


def parse_hour(text: str, *, what: str = "hour") -> datetime:
    """The start of the hour that a time in ISO 8601 falls into, in UTC; without an offset it is UTC already.

    Raises `HourFormatError`, which names `what`.
    """
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise HourFormatError(
            f"{what} {text!r} is not a time such as 2015-05-17T10:00 or 2015-05-17T12:00+02:00"
        ) from error
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return time.replace(minute=0, second=0, microsecond=0)


def hour_key(hour: datetime) -> str:
    """An hour as a partition key: `2015-05-17T10:00:00`, in UTC."""
    return hour.astimezone(UTC).strftime(KEY_FORMAT)


def window(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """The hours [since, until) that params name; None or an empty text leaves a side open.

    Raises `HourFormatError` for a text that is no time, and for a window with nothing in it.
    """
    start = parse_hour(since, what="from") if since else None
    end = parse_hour(until, what="to") if until else None
    if start is not None and end is not None and start >= end:
        raise HourFormatError(f"the window from {hour_key(start)} to {hour_key(end)} holds no hour")
    return start, end


def by_day(hours: Iterable[datetime]) -> list[list[datetime]]:
    """Hours grouped by their day in UTC, days and hours in order, each hour once."""
    days: dict[str, list[datetime]] = {}
    for hour in sorted(set(hours)):
        days.setdefault(hour.astimezone(UTC).date().isoformat(), []).append(hour)
    return list(days.values())


def span(hours: Sequence[datetime]) -> tuple[datetime, datetime]:
    """The smallest [from, to) that holds all of the hours. `hours` must not be empty."""
    return min(hours), max(hours) + HOUR
