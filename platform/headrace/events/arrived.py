"""The last report of a publisher of which the brokers said that it arrived, as its journal notes it. Pure.

A journal has one number of 64 bits for it, which a single store writes: no SIGKILL leaves half of it.

    bit 0            the journal overflowed
    bits 1 to 31     the report's number; 0: none arrived, or an earlier version wrote the journal
    bits 32 to 62    when it was made, in seconds after the publisher's start, rounded up

Earlier versions look at bit 0 alone, so they read such journals, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NUMBER_MAX: Final = 2**31 - 1
SECONDS_MAX: Final = 2**31 - 1
_OVERFLOWED: Final = 1
_NUMBER_SHIFT: Final = 1
_SECONDS_SHIFT: Final = 32


class Arrived(NamedTuple):
    """A report that arrived. `made_ms`: when it was made, by the publisher's clock, or shortly after."""

    report_number: int
    made_ms: int


def packed(arrived: Arrived | None, started_ms: int, *, overflowed: bool) -> int:
    """Returns the journal's number. A report that it cannot tell is left out: nobody misses that one then."""
    word = _OVERFLOWED if overflowed else 0
    if arrived is None:
        return word
    seconds = max(0, -(-(arrived.made_ms - started_ms) // 1_000))
    if not 0 < arrived.report_number <= NUMBER_MAX or seconds > SECONDS_MAX:
        return word
    return word | arrived.report_number << _NUMBER_SHIFT | seconds << _SECONDS_SHIFT


def unpacked(word: int, started_ms: int) -> tuple[Arrived | None, bool]:
    """Returns the report, None if the journal tells none; and whether the journal overflowed.

    Raises `ValueError` for a number that no version writes.
    """
    number, seconds = word >> _NUMBER_SHIFT & NUMBER_MAX, word >> _SECONDS_SHIFT
    if word < 0 or (seconds and not number):
        raise ValueError(f"{word} as its flags")
    arrived = Arrived(number, started_ms + seconds * 1_000) if number else None
    return arrived, bool(word & _OVERFLOWED)
