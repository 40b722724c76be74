"""How far a group is behind: in bytes, in records, and in time.

Bytes are exact, because an offset is a byte address. Records are counted from the headers of the batches that
the group has yet to read, without decoding them. If they are more than can be fetched in the time allowed,
the rest is estimated from the bytes for each record so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.client.cluster import TopicPartition
from headrace.client.consumer import Consumer
from headrace.client.errors import ClientError
from headrace.client.survey import LogRange
from headrace.client.unpacking import FetchedBatches
from headrace.process.clock import now_ms
from headrace.wire.batch import hop
from headrace.wire.errors import CorruptBatchError

COUNT_MAX_S: Final = 1.0
COUNT_MAX_BYTES: Final = 256 * 1024 * 1024
"""What is fetched to count records, of all partitions of a group."""
FETCH_MAX_BYTES: Final = 1024 * 1024
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Lag:
    """What a group has yet to read of one partition.

    `lag_records` is None if nothing could be read; `is_exact` says whether all of them were counted. `lag_s`
    is the age of the first unread batch, by its own timestamp; None if it has none, or could not be read.
    `deleted_bytes` were deleted by retention before the group had read them; `lag_bytes` leaves them out.
    """

    lag_bytes: int
    lag_records: int | None
    is_exact: bool
    lag_s: float | None
    deleted_bytes: int = 0


def lags(
    bootstrap: str,
    offsets: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, LogRange],
    *,
    count_max_s: float = COUNT_MAX_S,
    clock: Callable[[], float] = time.monotonic,
    wall_ms: Callable[[], int] = now_ms,
) -> dict[TopicPartition, Lag]:
    """Returns the lag of each partition that has a stored offset and a known range.

    `count_max_s`: how long records are counted.
    """
    counts = {key: _Count(offset, ranges[key]) for key, offset in offsets.items() if key in ranges}
    behind = {key: count for key, count in counts.items() if not count.done}
    if behind:
        with Consumer(
            bootstrap,
            client_id="headrace-lag",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_MAX_BYTES,
            check_crcs=False,
        ) as consumer:
            _count(consumer, behind, clock() + count_max_s, clock)
    return {key: count.lag(wall_ms()) for key, count in counts.items()}


def _count(
    consumer: Consumer, behind: dict[TopicPartition, _Count], until_s: float, clock: Callable[[], float]
) -> None:
    consumer.assign(behind)
    for key, count in behind.items():
        consumer.seek(*key, count.begin)
    fetched_bytes = 0
    while clock() < until_s and fetched_bytes < COUNT_MAX_BYTES and not all(c.done for c in behind.values()):
        try:
            taken = consumer.poll_batches(POLL_S)
        except ClientError:
            return  # a damaged batch, or a log that is gone: what follows is estimated
        for batches in taken:
            fetched_bytes += len(batches.buffer)
            key = (batches.topic, batches.partition)
            behind[key].add(batches)
            if behind[key].done:
                consumer.pause(*key)


class _Count:
    """The unread records of one partition, while they are being counted."""

    def __init__(self, offset: int, log: LogRange) -> None:
        self.begin = min(max(offset, log.start), log.end)
        self._deleted_bytes = max(0, log.start - offset)
        self._end = log.end
        self._counted_to = self.begin
        self._records = 0
        self._first_ms: int | None = None

    @property
    def done(self) -> bool:
        return self._counted_to >= self._end

    def add(self, batches: FetchedBatches) -> None:
        try:
            for _, header in hop(batches.buffer):
                if header.next_offset <= self._counted_to or self.done:
                    continue
                if self._first_ms is None:
                    self._first_ms = header.base_timestamp_ms
                if not header.is_control:
                    # An offset inside of a batch means that the records before it are read.
                    read = max(0, self.begin - header.base_offset)
                    self._records += max(0, header.record_count - read)
                self._counted_to = header.next_offset
        except CorruptBatchError:
            return

    def lag(self, at_ms: int) -> Lag:
        lag_bytes = self._end - self.begin
        counted_bytes = min(self._counted_to, self._end) - self.begin
        records: int | None = self._records
        if not self.done:
            records = round(self._records * lag_bytes / counted_bytes) if counted_bytes else None
        seconds = None if self._first_ms is None or self._first_ms < 0 else (at_ms - self._first_ms) / 1000
        return Lag(
            lag_bytes=lag_bytes,
            lag_records=records,
            is_exact=self.done,
            lag_s=0.0 if not lag_bytes else None if seconds is None else max(0.0, seconds),
            deleted_bytes=self._deleted_bytes,
        )
