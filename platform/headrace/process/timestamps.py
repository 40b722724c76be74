"""Times in the wrong unit: a number of seconds or microseconds that is given as milliseconds.

Such a number is a valid time, of 1970 or of the year 50000, and nothing later can tell that it is wrong.
"""

from __future__ import annotations

from typing import Final

OLDEST_MS: Final = 631_152_000_000
"""1990-01-01. An event that claims to be older is more likely one in the wrong unit."""
LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: nothing prints a later time."""
_UNIT_LATEST_MS: Final = 4_102_444_800_000
"""2100-01-01. A number that lies between 1990 and then in another unit is taken to be in that unit."""
_UNITS: Final = (("seconds", 1, 1000), ("microseconds", 1000, 1), ("nanoseconds", 1_000_000, 1))


def time_problem(time_ms: int, *, allow_before_1990: bool = False) -> str:
    """Returns why this is no time of an event in milliseconds since 1970; "" if it is one."""
    oldest_ms = 0 if allow_before_1990 else OLDEST_MS
    if oldest_ms <= time_ms <= LATEST_MS:
        return ""
    for name, divisor, factor in _UNITS:
        if OLDEST_MS * divisor <= time_ms * factor <= _UNIT_LATEST_MS * divisor:
            return f"{time_ms} looks like {name} instead of milliseconds since 1970"
    if 0 <= time_ms < OLDEST_MS:
        return f"{time_ms} milliseconds lie before 1990"
    return f"{time_ms} is not a number of milliseconds since 1970, before the year 10000"
