"""The partitions that a consumer cannot read for a while: its log says which, and why.

A consumer tries again without end. Without these lines a topic whose name is misspelt, or whose broker is
down, looks like a topic without news. For one thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from headrace.client.cluster import TopicPartition
from headrace.client.errors import ClientError
from headrace.client.network import Network
from headrace.client.obstacles import obstacle
from headrace.client.partition_fetch import PartitionFetch

logger = logging.getLogger(__name__)

TELL_AFTER_S: Final = 10.0
"""Restarts of brokers and elections take less. A leader without news may wait for the consumer's
`fetch_max_wait_ms` besides."""
AWAY_MAX_S: Final = 1.0
"""What the time between two calls of the application counts at most: nobody asks for anything then."""
TELL_AGAIN_S: Final = 300.0
NAMED_MAX: Final = 5


class Unread:
    """Since when, and why, partitions cannot be read. `answer_max_s`: how long leaders without news wait."""

    def __init__(self, network: Network, clock: Callable[[], float], answer_max_s: float) -> None:
        self._network = network
        self._clock = clock
        self._answer_max_s = answer_max_s
        self._looked_s = clock()
        self._since_s: dict[TopicPartition, float] = {}
        self._errors: dict[TopicPartition, ClientError] = {}
        self._told: set[TopicPartition] = set()
        self._next_s = math.inf

    def add(self, key: TopicPartition, error: ClientError | None = None) -> None:
        """The partition cannot be asked for, or its leader refused it with `error`."""
        if key not in self._since_s:
            self._since_s[key] = self._clock()
            self._next_s = min(self._next_s, self._since_s[key] + self._tell_after_s)
        if error is not None:
            self._errors[key] = error

    def remove(self, key: TopicPartition) -> None:
        """Its leader has answered."""
        if self._since_s.pop(key, None) is None:
            return
        self._errors.pop(key, None)
        if key in self._told:
            self._told.discard(key)
            logger.info("%s-%d can be read again", *key)

    @property
    def _tell_after_s(self) -> float:
        return TELL_AFTER_S + self._answer_max_s

    def resume(self) -> None:
        """The application reads again: what it did since it read last is not counted. A call that raises may
        end before `tell`."""
        now_s = self._clock()
        away_s, self._looked_s = now_s - self._looked_s - AWAY_MAX_S, now_s
        if away_s > 0:
            self._since_s = {key: since_s + away_s for key, since_s in self._since_s.items()}
            self._next_s += away_s

    def tell(self, states: Mapping[TopicPartition, PartitionFetch]) -> None:
        """Warns of the partitions that have been unread for long, then each `TELL_AGAIN_S`. Those
        that are no longer assigned, or are paused, are forgotten.
        """
        now_s = self._looked_s = self._clock()
        if now_s < self._next_s:
            return
        for key in [key for key in self._since_s if key not in states or states[key].paused]:
            del self._since_s[key]
            self._errors.pop(key, None)
            self._told.discard(key)
        after_s = self._tell_after_s
        due = [key for key, since_s in self._since_s.items() if now_s - since_s >= after_s]
        waiting = [since_s for since_s in self._since_s.values() if now_s - since_s < after_s]
        self._next_s = min(waiting, default=math.inf) + after_s
        if due:
            self._next_s = min(self._next_s, now_s + TELL_AGAIN_S)
            self._told.update(due)
            logger.warning("%s", self._sentence(due, now_s))

    def _sentence(self, due: list[TopicPartition], now_s: float) -> str:
        parts = [
            f"{key[0]}-{key[1]} cannot be read for {now_s - self._since_s[key]:.0f} s: {self._why(key)}"
            for key in islice(due, NAMED_MAX)
        ]
        if len(due) > NAMED_MAX:
            parts.append(f"nor can {len(due) - NAMED_MAX} more partitions")
        return "; ".join(parts)

    def _why(self, key: TopicPartition) -> object:
        found = obstacle(self._network, *key) or self._errors.get(key) or self._network.last_error
        return found or "no broker has answered"
