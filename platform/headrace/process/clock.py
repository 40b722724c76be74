"""The clocks of a process: the time of day, and a time that nobody sets.

Only what names a moment to others (a timestamp in a record, a line of a log) is the time of day. Durations
and deadlines are measured with the monotonic clock: a step of the wall clock must change nothing.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Returns milliseconds since an arbitrary moment; never goes back, and no other process shares it."""
    return time.monotonic_ns() // 1_000_000
