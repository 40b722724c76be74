"""The wall clock. Measure durations and deadlines with `time.monotonic` instead."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
