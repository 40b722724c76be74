"""Whether the event loop turns, for those who look from outside of it.

Owns the moment at which it was seen last. A status is answered by a thread of its own: without this it would
show a broker whose loop stands still, and that serves nobody, as one that serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

BEAT_INTERVAL_MS: Final = 1_000
STUCK_MS: Final = 10_000
"""Longer than any work of the loop, and than a pause of a busy machine. After that it is called stuck."""


class Pulse:
    """`beat` is called on the loop's thread, each `BEAT_INTERVAL_MS` from `begin` on; `status` by any."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._beat_s: float | None = None

    def begin(self, every: Callable[[float, Callable[[], None]], None]) -> None:
        """Called just before the loop turns: one whose first turn never ends is stuck, too."""
        self.beat()
        every(BEAT_INTERVAL_MS, self.beat)

    def beat(self) -> None:
        self._beat_s = self._clock_s()

    def status(self) -> dict[str, Any]:
        """Returns figures for the status page. Any thread."""
        beat_s = self._beat_s
        if beat_s is None:
            return {"late_ms": None, "is_stuck": False}
        late_ms = max(0, round((self._clock_s() - beat_s) * 1000) - BEAT_INTERVAL_MS)
        return {"late_ms": late_ms, "is_stuck": late_ms > STUCK_MS}
