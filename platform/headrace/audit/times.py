"""Buckets and hours of event time, and the one bucket of times that no calendar has. Pure.

A record's timestamp is any 64-bit number: a producer that writes µs for ms puts its events into the year
47000. Such times go to one bucket of their own, so that no report has to print them.
"""

from __future__ import annotations

from typing import Final

HOUR_MS: Final = 3_600_000
CORRUPT_HOURS_MAX: Final = 24
END_STALE_MAX_MS: Final = 5_000  # how old the end address in a heartbeat may be
NEXT_REPORT_MS: Final = 30_000
"""For how long after a publisher's last report it may have had events that none tells: three intervals."""
FIRST_NAMED_MS: Final = -62_135_596_800_000  # 0001-01-01 00:00:00
LAST_NAMED_MS: Final = 253_402_300_799_999  # 9999-12-31 23:59:59.999

# The start of the hour before year 1 stands for all times outside of year 1 to 9999.
OUTSIDE_MS: Final = FIRST_NAMED_MS - HOUR_MS
OUTSIDE_NAME: Final = "time outside of year 1 to 9999"


def is_named(time_ms: int) -> bool:
    """Whether a calendar has this time: whether it lies in year 1 to 9999."""
    return FIRST_NAMED_MS <= time_ms <= LAST_NAMED_MS


def bucket_start(time_ms: int, bucket_ms: int) -> int:
    """Returns the start of the time's bucket; `OUTSIDE_MS` for a time outside of year 1 to 9999."""
    return time_ms - time_ms % bucket_ms if is_named(time_ms) else OUTSIDE_MS


def hour_start(time_ms: int) -> int:
    """Returns the start of the time's hour; `OUTSIDE_MS` for a time outside of year 1 to 9999."""
    return bucket_start(time_ms, HOUR_MS)


def named_time(time_ms: int) -> int:
    """Returns the time itself; `OUTSIDE_MS` for a time outside of year 1 to 9999."""
    return time_ms if is_named(time_ms) else OUTSIDE_MS


def corrupt_hours(first_ms: int | None, last_ms: int | None) -> tuple[int, ...]:
    """Returns the hours from one time of a damaged batch to the other; none if they are not known.

    Only the first hour if there are more than `CORRUPT_HOURS_MAX`: so long a batch has a wrong header.
    """
    if first_ms is None or last_ms is None:
        return ()
    first, last = hour_start(first_ms), hour_start(last_ms)
    if last < first or last - first >= CORRUPT_HOURS_MAX * HOUR_MS:
        return (first,)
    return tuple(range(first, last + HOUR_MS, HOUR_MS))
