"""Deletes what has expired of all logs of a broker, led and followed.

A turn of the loop looks at some of the logs, and takes some segments out of them: when the retention of a
large topic is lowered, there are thousands. `removals` frees their bytes. A segment whose timestamps are not
known, as after a crash, is read on a thread first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.broker.cold_reads import ColdReads
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.removals import Removals
from headrace.log.retention import DELETED_AT_ONCE_MAX
from headrace.log.segment import ColdSegmentError, Segment
from headrace.process.clock import now_ms

# About 10 ms each.
LOGS_PER_TURN_MAX: Final = 500
SEGMENTS_PER_TURN_MAX: Final = DELETED_AT_ONCE_MAX
CHECKPOINT_WAIT_MS: Final = 500.0  # until a log is looked at again that had to save a checkpoint first


class Retention:
    """Called on the loop's thread."""

    def __init__(
        self,
        partitions: Partitions,
        followed: FollowedPartitions,
        removals: Removals,
        cold_reads: ColdReads,
        call_later: Callable[[float, Callable[[], None]], object],
        clock_ms: Callable[[], int | None] = now_ms,
    ) -> None:
        self._partitions = partitions
        self._followed = followed
        self._removals = removals
        self._cold_reads = cold_reads
        self._call_later = call_later
        self._clock_ms = clock_ms
        self._waiting: deque[Partition | FollowedPartition] = deque()

    def enforce(self) -> None:
        """Begins with all logs, unless some still wait for their turn, or the time is not known yet."""
        if not self._waiting and self._clock_ms() is not None:
            self._waiting.extend((*self._partitions, *self._followed))
            self._take_turn()

    def delete_before(self, partition: Partition, address: int) -> bool:
        """Deletes some of the whole segments before an address, for DeleteRecords; returns whether none is
        left. Until then call it again: what was not flushed with a checkpoint must be so first.
        """
        for path in self._partitions.delete_before(partition, address):
            self._removals.add(path, partition.name)
        if partition.log.awaits_checkpoint:
            self._partitions.checkpoint(partition)
        return not partition.log.has_segment_before(address)

    def _take_turn(self) -> None:
        left = SEGMENTS_PER_TURN_MAX
        try:
            for _ in range(min(LOGS_PER_TURN_MAX, len(self._waiting))):
                left -= self._look_at(self._waiting.popleft())
                if left <= 0:
                    break
        finally:
            if self._waiting:
                self._call_later(0, self._take_turn)

    def _look_at(self, one: Partition | FollowedPartition) -> int:
        """Returns how many segments were taken out."""
        now_ms = self._clock_ms()
        if now_ms is None:
            return 0
        if isinstance(one, Partition):
            try:
                deleted = self._partitions.delete_expired(one, now_ms)
            except ColdSegmentError as cold:
                self._learn(one, cold.segment)
                return 1  # as much work as a segment that is taken out
        else:
            deleted = self._followed.delete_expired(one, now_ms)
        for path in deleted:
            self._removals.add(path, one.name)
        if len(deleted) >= DELETED_AT_ONCE_MAX:
            self._waiting.append(one)
        elif one.log.awaits_checkpoint:
            self._save_first(one)
        return len(deleted)

    def _save_first(self, one: Partition | FollowedPartition) -> None:
        """Has a log's checkpoint saved, and looks at the log again."""
        if isinstance(one, Partition):
            is_due = self._partitions.checkpoint(one)
        else:
            is_due = self._followed.checkpoint(one)
        if is_due:
            self._call_later(CHECKPOINT_WAIT_MS, lambda: self.look_again(one))

    def look_again(self, one: Partition | FollowedPartition) -> None:
        """Looks at one log soon. Of a followed one the leader has deleted something."""
        is_idle = not self._waiting
        self._waiting.append(one)
        if is_idle:
            self._call_later(0, self._take_turn)

    def _learn(self, one: Partition, segment: Segment) -> None:
        """Reads a segment's timestamps, and looks at the log again then. What is not known even then, the
        next round asks for.
        """

        def learned(_: object) -> None:
            if segment.newest_readable_ms is not None:
                self.look_again(one)

        self._cold_reads.learn(one.log, segment).then(learned)
