"""The clocks of a process: the time of day, and a time that nobody sets.

Only what names a moment to others (a timestamp in a record, a line of a log) is the time of day. Durations
and deadlines are measured with the monotonic clock: a step of the wall clock must change nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def now_ms() -> int:
    """Returns the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Returns milliseconds since an arbitrary moment; never goes back, and no other process shares it."""
    return time.monotonic_ns() // 1_000_000


def elapsed_s() -> float:
    """Returns seconds since an arbitrary moment, as `time.monotonic`; those count, too, in which the machine
    was suspended: other machines were not.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_age_s() -> float:
    """Returns how long ago this process began, before its interpreter started; Linux tells it in ticks."""
    # The name of the program, in brackets, may hold anything; the start is the 20th field behind it.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
