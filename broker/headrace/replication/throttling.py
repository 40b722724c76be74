"""How fast replicas that are not in sync may be copied (KIP-73). Pure: time is an argument.

Whom a throttle concerns is a setting of the topic, how fast it is a setting of each broker, for what it sends
as a leader and for what it fetches as a follower.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

UNBOUNDED: Final = 2**63 - 1
BURST_S: Final = 1.0
"""What was not used in so long may be used at once."""
SHARE_MIN_BYTES: Final = 64 * 1024
"""The least that a follower asks for of one throttled partition: less would be more requests than bytes."""
WAIT_MAX_MS: Final = 1_000.0

_PAIRS: Final = re.compile(r"\d{1,10}:\d{1,10}(,\d{1,10}:\d{1,10})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """Some replicas of a topic: pairs of partition and broker. `is_all`: every one."""

    is_all: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()

    def cover(self, partition: int, broker_id: int) -> bool:
        return self.is_all or (partition, broker_id) in self.pairs


NO_REPLICAS: Final = ThrottledReplicas()


def parse(text: str) -> ThrottledReplicas:
    """Reads `PARTITION:BROKER,…`, `*` for every replica, or nothing. Raises `ValueError` that says so."""
    text = text.strip()
    if text == "*":
        return ThrottledReplicas(is_all=True)
    if not text:
        return NO_REPLICAS
    if not _PAIRS.fullmatch(text):
        raise ValueError("write PARTITION:BROKER,PARTITION:BROKER,…, or * for every replica")
    pairs = (pair.split(":") for pair in text.split(","))
    return ThrottledReplicas(pairs=frozenset((int(partition), int(broker)) for partition, broker in pairs))


class Quota:
    """Bytes a second, with a burst of `BURST_S`. What is taken beyond it, such as the rest of a large batch,
    is paid back before anything else is allowed, so the rate holds over time.
    """

    __slots__ = ("_at_ms", "_left_bytes", "bytes_per_s")

    def __init__(self) -> None:
        self.bytes_per_s = UNBOUNDED
        self._left_bytes = 0.0
        self._at_ms = 0.0

    @property
    def is_bounded(self) -> bool:
        return self.bytes_per_s != UNBOUNDED

    def set_rate(self, bytes_per_s: int, now_ms: float) -> None:
        """Takes a new rate. A debt of before is forgotten: at a lower rate it could last for hours."""
        if bytes_per_s != self.bytes_per_s:
            self.bytes_per_s = bytes_per_s
            self._left_bytes = bytes_per_s * BURST_S
            self._at_ms = now_ms

    def available_bytes(self, now_ms: float) -> int:
        """Returns what may be taken now; 0 while there is a debt."""
        burst_bytes = self.bytes_per_s * BURST_S
        gained = self.bytes_per_s * max(0.0, now_ms - self._at_ms) / 1000
        self._left_bytes = min(burst_bytes, self._left_bytes + gained)
        self._at_ms = max(self._at_ms, now_ms)
        return max(0, int(self._left_bytes))

    def took(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes

    def wait_ms(self, now_ms: float) -> float:
        """Returns how long nothing is allowed; at most `WAIT_MAX_MS`, since the rate may change."""
        if self.available_bytes(now_ms):
            return 0.0
        if not self.bytes_per_s:
            return WAIT_MAX_MS
        return min(WAIT_MAX_MS, (1 - self._left_bytes) / self.bytes_per_s * 1000)
