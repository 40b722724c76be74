"""Has the checkpoints of all logs saved once an interval, a few logs at a time.

A checkpoint is three fsyncs. Those of thousands of logs at once would keep the threads busy for seconds, and
the fsyncs that producers wait for would come behind them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions

TURN_MS: Final = 500.0


class Checkpoints:
    """Called on the loop's thread. `interval_ms`: between two checkpoints of one log that grows."""

    def __init__(self, partitions: Partitions, followed: FollowedPartitions, interval_ms: float) -> None:
        self._partitions = partitions
        self._followed = followed
        self._turns = max(1, int(interval_ms / TURN_MS))
        self._left = 0  # turns of this interval
        self._waiting: deque[Partition | FollowedPartition] = deque()
        self.turn_ms = interval_ms / self._turns
        """How often to call `take_turn`."""

    def take_turn(self) -> None:
        """Saves those whose turn it is, with their next flush, or now if nothing is to be flushed."""
        if not self._left:
            self._left = self._turns
            self._waiting = deque((*self._partitions, *self._followed))
        share = -(-len(self._waiting) // self._left)
        self._left -= 1
        for _ in range(share):
            one = self._waiting.popleft()
            if isinstance(one, Partition):
                self._partitions.checkpoint(one)
            else:
                self._followed.checkpoint(one)
