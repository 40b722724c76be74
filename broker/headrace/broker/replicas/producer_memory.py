"""Bounds what a broker remembers of idempotent producers, over all of its logs, led and followed.

Each partition remembers its own, up to `PRODUCERS_MAX`, for `producer.id.expiration.ms` (a day). Programs
that run for seconds, and write to hundreds of partitions, would fill gigabytes in that time. So those that
are silent are packed, and beyond `PRODUCERS_TOTAL_MAX` the broker forgets the ones that were silent longest.

A producer that was forgotten is taken for a new one, at any sequence number (KIP-360): a batch that it sends
again would be stored twice. So nobody is forgotten here who may still wait for an answer: a producer that
appended in the last `SILENT_MIN_MS` stays, and the bound gives way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.log.producers import ProducerStates
from headrace.process.clock import monotonic_ms

logger = logging.getLogger(__name__)

PRODUCERS_TOTAL_MAX: Final = 1_000_000
"""Of all partitions together: 150 to 250 MB."""
SILENT_MIN_MS: Final = 15 * 60_000
"""A client gives a batch up earlier: after `delivery.timeout.ms`, 2 minutes by default."""
TURN_MS: Final = 500.0
LOGS_PER_TURN_MAX: Final = 500  # half a millisecond
# About 10 ms each.
PACKED_PER_TURN_MAX: Final = 5_000
FORGOTTEN_PER_TURN_MAX: Final = 2_500
SAY_EVERY_MS: Final = 600_000


class ProducerMemory:
    """Called on the loop's thread, as all that appends to these logs is."""

    def __init__(
        self,
        partitions: Partitions,
        followed: FollowedPartitions,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._partitions = partitions
        self._followed = followed
        self._clock_ms = clock_ms
        self._waiting: deque[Partition | FollowedPartition] = deque()
        self._counted = self._total = 0  # producers: so far in this round, in all of the last one
        self._said_ms: int | None = None
        self._forgotten = 0  # since that was said

    def take_turn(self) -> None:
        """Packs some that are silent, in some of the logs; once all logs were looked at, forgets some in each
        turn while there are too many. Called every `TURN_MS`.
        """
        if not self._waiting:
            self._waiting.extend((*self._partitions, *self._followed))
            self._counted = 0
        left = PACKED_PER_TURN_MAX
        for _ in range(min(LOGS_PER_TURN_MAX, len(self._waiting))):
            states = _states_of(self._waiting.popleft())
            if states is not None:
                left -= states.pack_silent(left) if left > 0 else 0
                self._counted += len(states)
        if not self._waiting:
            self._total = self._counted
        if self._total > PRODUCERS_TOTAL_MAX:
            self._total -= self._forget(self._total)

    def _forget(self, total: int) -> int:
        """Returns how many were forgotten."""
        logs = (*self._partitions, *self._followed)
        states = [found for each in logs if (found := _states_of(each)) is not None]
        excess = min(total - PRODUCERS_TOTAL_MAX, FORGOTTEN_PER_TURN_MAX)
        now_ms = self._clock_ms()
        oldest = islice(merge(*map(_by_silence, range(len(states)), states)), excess)
        doomed: dict[int, list[int]] = {}
        for at_ms, index, producer_id in oldest:
            if now_ms - at_ms < SILENT_MIN_MS:
                break
            doomed.setdefault(index, []).append(producer_id)
        for index, producer_ids in doomed.items():
            states[index].forget(producer_ids)
        forgotten = sum(map(len, doomed.values()))
        self._forgotten += forgotten
        self._say(total - forgotten, now_ms)
        return forgotten

    def _say(self, total: int, now_ms: int) -> None:
        if self._said_ms is not None and now_ms - self._said_ms < SAY_EVERY_MS:
            return
        logger.warning(
            "%d idempotent producers are remembered in all partitions, at most %d are to be: %d that were "
            "silent longest, for at least %d minutes, were forgotten; do programs make a new producer for "
            "each few records?",
            total,
            PRODUCERS_TOTAL_MAX,
            self._forgotten,
            SILENT_MIN_MS // 60_000,
        )
        self._said_ms, self._forgotten = now_ms, 0


def _states_of(one: Partition | FollowedPartition) -> ProducerStates | None:
    """Returns the producers of a log, unless a thread is cutting it."""
    if not isinstance(one, Partition) and one.cutting:
        return None
    return one.log.producers


def _by_silence(index: int, states: ProducerStates) -> Iterator[tuple[int, int, int]]:
    """Yields (when it appended last, `index`, producer) of those that are packed, the oldest first."""
    for producer_id, at_ms in states.packed_ones():
        yield at_ms, index, producer_id
