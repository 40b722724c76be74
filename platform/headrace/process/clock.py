"""The wall clock. Whoever measures a duration or a deadline uses `time.monotonic` instead."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
