"""How long to wait before trying again: exponential with jitter, as a function. Randomness comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

JITTER: Final = 0.2


class Backoff(NamedTuple):
    """Waits of `first_ms`, twice that, and so on up to `max_ms`, each up to 20 % shorter or longer
    (KIP-580).
    """

    first_ms: float
    max_ms: float

    def delay_s(self, failures: int, random: Callable[[], float]) -> float:
        """The wait after the `failures`-th failure in a row, counted from 1. `random` draws from [0, 1)."""
        exact_ms = min(self.max_ms, self.first_ms * 2.0 ** min(failures - 1, 32))
        return exact_ms * (1 - JITTER + 2 * JITTER * random()) / 1000
