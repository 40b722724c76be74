"""How long to wait before a retry: exponential backoff with jitter (KIP-580). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

JITTER: Final = 0.2


class Backoff(NamedTuple):
    """Waits of `first_ms`, twice that, and so on up to `max_ms`, each up to 20 % shorter or longer."""

    first_ms: float
    max_ms: float

    def delay_s(self, failures: int, random: Callable[[], float]) -> float:
        """Returns the wait after `failures` failures in a row (at least 1). `random` draws from [0, 1)."""
        exact_ms = min(self.max_ms, self.first_ms * 2.0 ** min(failures - 1, 32))
        return exact_ms * (1 - JITTER + 2 * JITTER * random()) / 1000
