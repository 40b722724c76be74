"""Where records wait to be sent: open batches, their closing, and the producer's memory. Thread-safe, no I/O.

Application threads `append`, the sender thread takes what is `due`. A batch closes when it is full, has
lingered, would cross a boundary of time, or reaches the limit an interceptor set; and all do on `flush`,
and when memory runs out.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from headrace.client.batches import ProducerBatch
from headrace.client.delivery import DeliveryFuture
from headrace.client.errors import BufferFullError, ClientError, ClosedError, RecordTooLargeError
from headrace.client.faults import BatchInterceptor
from headrace.wire.records import RECORD_OVERHEAD_MAX_BYTES, Header

BATCH_OVERHEAD_BYTES: Final = 61
HEADER_OVERHEAD_BYTES: Final = 10


class Accumulator:
    """`wake` is called (in the appending thread) when the sender should look: something is due, or will be
    soon.
    """

    def __init__(
        self,
        *,
        batch_size_bytes: int,
        linger_s: float,
        memory_limit_bytes: int,
        boundary_ms: int | None,
        interceptor: BatchInterceptor | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._batch_size_bytes = batch_size_bytes
        self._linger_s = linger_s
        self._memory_limit_bytes = memory_limit_bytes
        self._boundary_ms = boundary_ms
        self._interceptor = interceptor
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._open: dict[tuple[str, int], ProducerBatch] = {}  # oldest first
        self._closed: list[ProducerBatch] = []
        self._unfinished: dict[ProducerBatch, None] = {}
        self._used_bytes = 0
        self._starved = 0
        self._handed_over: dict[str, int] = defaultdict(int)  # records a topic; counted for an interceptor
        self._sender_asleep = False
        self._refusal: ClientError | None = None
        self.sticky: dict[str, int] = {}
        """Topic → the partition that records without a key go to, until its batch closes (KIP-480)."""

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def append(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        block_until_s: float,
    ) -> DeliveryFuture:
        """Put a record into its partition's batch, waiting for memory until `block_until_s` on our clock.

        Raises `BufferFullError`, `RecordTooLargeError`, `ClosedError`, or what the producer died of.
        """
        bucket = None if self._boundary_ms is None else timestamp_ms // self._boundary_ms
        wake = False
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._used_bytes + self._batch_size_bytes > self._memory_limit_bytes:
                self._wait_for_room(_estimate_bytes(key, value, headers), block_until_s)
            batch = self._open.get((topic, partition))
            if batch is not None:
                builder = batch.builder
                before_bytes = builder.size_bytes
                if batch.bucket != bucket or not builder.append(timestamp_ms, key, value, headers):
                    self._close(batch)
                    wake = True
                    batch = None
            if batch is None:
                batch = self._new_batch(topic, partition, bucket)
                wake = wake or len(self._open) == 1
                builder = batch.builder
                before_bytes = 0
                builder.append(timestamp_ms, key, value, headers)
            if self._interceptor is not None:
                self._handed_over[topic] += 1
            index = builder.record_count - 1
            added_bytes = builder.size_bytes - before_bytes
            batch.size_bytes += added_bytes
            self._used_bytes += added_bytes
            if batch.record_limit is not None and builder.record_count >= batch.record_limit:
                self._close(batch)
                wake = True
            if wake:
                wake = self._sender_asleep
                self._sender_asleep = False
        if wake:
            self._wake()
        return DeliveryFuture(batch, index, timestamp_ms)

    def _new_batch(self, topic: str, partition: int, bucket: int | None) -> ProducerBatch:
        limit = None
        if self._interceptor is not None:
            limit = self._interceptor.record_limit(topic, partition, self._handed_over[topic])
        batch = ProducerBatch(
            topic,
            partition,
            limit_bytes=self._batch_size_bytes,
            created_s=self._clock(),
            bucket=bucket,
            record_limit=limit,
        )
        self._open[topic, partition] = batch
        self._unfinished[batch] = None
        return batch

    def _close(self, batch: ProducerBatch) -> None:
        del self._open[batch.topic, batch.partition]
        self._closed.append(batch)
        if self._interceptor is not None and batch.record_limit is not None:
            self._interceptor.limited_batch_closed(
                batch.topic, batch.record_limit, batch.builder.record_count
            )
        if self.sticky.get(batch.topic) == batch.partition:
            del self.sticky[batch.topic]

    def _close_all(self) -> None:
        for batch in list(self._open.values()):
            self._close(batch)

    def _wait_for_room(self, needed_bytes: int, until_s: float) -> None:
        """With the lock held. Every open batch is sent at once while somebody waits."""
        if needed_bytes > self._memory_limit_bytes:
            raise RecordTooLargeError(
                f"a record of {needed_bytes} bytes, buffer_memory_bytes is {self._memory_limit_bytes}"
            )
        while self._used_bytes + needed_bytes > self._memory_limit_bytes:
            left_s = until_s - self._clock()
            if left_s <= 0:
                raise BufferFullError(
                    f"{self._used_bytes} bytes of {self._memory_limit_bytes} (buffer_memory_bytes) wait;"
                    " send more slowly, flush, or see why brokers do not take them"
                )
            self._starved += 1
            if self._sender_asleep:
                self._sender_asleep = False
                self._wake()
            try:
                self._room.wait(left_s)
            finally:
                self._starved -= 1
            if self._refusal is not None:
                raise self._refusal

    # the sender's side

    def due(self) -> tuple[list[ProducerBatch], float | None]:
        """The batches that closed since the last call, in order, and when the next one will have lingered."""
        with self._lock:
            self._sender_asleep = True
            if self._starved:
                self._close_all()
            next_s = None
            ripe_s = self._clock() - self._linger_s
            for batch in list(self._open.values()):
                if batch.created_s > ripe_s:
                    next_s = batch.created_s + self._linger_s
                    break
                self._close(batch)
            closed, self._closed = self._closed, []
            return closed, next_s

    def finish(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        error: ClientError | None = None,
    ) -> None:
        """The batch's end, good or bad: its memory is free, its futures are done, callbacks run in this
        thread.
        """
        batch.base_offset = base_offset
        batch.log_append_time_ms = log_append_time_ms
        batch.error = error
        with self._lock:
            del self._unfinished[batch]
            self._used_bytes -= batch.size_bytes
            if self._starved:
                self._room.notify_all()
        batch.finish()

    # ends

    def flush(self) -> list[ProducerBatch]:
        """Close every open batch; returns all that are not finished."""
        with self._lock:
            self._close_all()
            self._sender_asleep = False
            unfinished = list(self._unfinished)
        self._wake()
        return unfinished

    def refuse(self, error: ClientError) -> None:
        """Take no more records: `append` raises `error` from now on."""
        with self._lock:
            if self._refusal is None or isinstance(self._refusal, ClosedError):
                self._refusal = error
            self._room.notify_all()

    def check_open(self) -> None:
        """Raises what `append` would, if the producer has ended."""
        if self._refusal is not None:
            raise self._refusal

    def unfinished(self) -> list[ProducerBatch]:
        """Every batch that is not finished, open ones too (which are closed by this)."""
        with self._lock:
            self._close_all()
            self._closed = []
            return list(self._unfinished)


def _estimate_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    size_bytes = BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_MAX_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"")
    return size_bytes
