"""Latencies as counts by millisecond, which are small, exact and easy to add up across processes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

# A longer latency counts as this long, which bounds the size of the table.
LATENCY_MAX_MS: Final = 10 * 60 * 1000


class Latencies:
    """A multiset of latencies, in ms."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts or {})

    def add(self, latency_ms: int, count: int = 1) -> None:
        # A clock that was set back in between would make a latency negative.
        self.counts[min(max(latency_ms, 0), LATENCY_MAX_MS)] += count

    def update(self, others: Iterable[Latencies]) -> None:
        for other in others:
            self.counts.update(other.counts)

    def __len__(self) -> int:
        return self.counts.total()

    def quantile(self, share: float) -> int | None:
        """Returns the smallest latency (ms) that a `share` (0 to 1) of all do not exceed; None if empty."""
        total = len(self)
        seen = 0
        for latency_ms, count in sorted(self.counts.items()):
            seen += count
            if seen >= share * total:
                return latency_ms
        return None

    def to_json(self) -> dict[str, int]:
        return {str(latency_ms): count for latency_ms, count in self.counts.items()}

    @staticmethod
    def from_json(data: Mapping[str, int]) -> Latencies:
        return Latencies({int(latency_ms): count for latency_ms, count in data.items()})
