"""Where records wait to be sent: open batches and the producer's memory. Thread-safe, no I/O.

Application threads call `append`; the sender thread calls `take_closed`. A batch closes when it is full, has
lingered, would cross a time boundary, or reaches the limit that an interceptor set. All open batches close on
`flush`, and while a thread waits for memory.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from headrace.client.batches import ProducerBatch
from headrace.client.delivery import DeliveryFuture
from headrace.client.errors import BufferFullError, ClientError, ClosedError, RecordTooLargeError
from headrace.client.faults import BatchInterceptor
from headrace.client.settings import ProducerSettings
from headrace.wire.builder import PendingRecord, record_bound_bytes
from headrace.wire.records import RECORD_OVERHEAD_MAX_BYTES, Header, pack_headers
from headrace.wire.topic_names import TopicPartition
from headrace.wire.varints import NO_HEADERS

BATCH_OVERHEAD_BYTES: Final = 61
TAKEN_NOTE: Final = "headrace: the record is sent all the same"


class Accumulator:
    """Calls `wake` in the appending thread when a batch has closed, or the first one was opened."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        interceptor: BatchInterceptor | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._batch_size_bytes = settings.batch_size_bytes
        self._linger_s = settings.linger_s
        self._memory_limit_bytes = settings.buffer_memory_bytes
        self._crowded_bytes = settings.buffer_memory_bytes - settings.batch_size_bytes
        self._blocks_when_full = settings.blocks_when_full
        self._max_block_s = settings.max_block_s
        self._boundary_ms = settings.boundary_ms
        self._interceptor = interceptor
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._memory_freed = threading.Condition(self._lock)
        self._open: dict[TopicPartition, ProducerBatch] = {}  # oldest first
        self._closed: list[ProducerBatch] = []
        self._unfinished: dict[ProducerBatch, None] = {}
        self._used_bytes = 0
        self._waiting_count = 0  # threads that wait for memory
        self._appended: dict[str, int] = defaultdict(int)  # records per topic, for an interceptor
        self._sender_asleep = False
        self._refusal: ClientError | None = None
        self._record_max_bytes = settings.max_request_size_bytes
        self.sender_ident = 0
        """The thread that frees memory: it never waits for itself."""
        self._pid = os.getpid()
        self.sticky: dict[str, int] = {}
        """Topic → the partition that records without a key go to, until its batch closes (KIP-480)."""

    def append(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        block_until_s: float | None,
    ) -> DeliveryFuture:
        """Puts a record into its partition's batch; waits for memory until `block_until_s`; without it for at
        most `max_block_ms`, and not at all with `on_full="raise"`. Raises `BufferFullError`,
        `RecordTooLargeError`, or the error passed to `refuse`.
        """
        # Headers are packed at once: the caller gets the error of a wrong one, and may change the list later.
        packed_headers = pack_headers(headers) if headers else NO_HEADERS
        if key is None and value is not None and not headers:
            record_bytes = RECORD_OVERHEAD_MAX_BYTES + len(value)
        else:
            record_bytes = self._checked_bytes(topic, record_bound_bytes(key, value, packed_headers))
        bucket = None if self._boundary_ms is None else timestamp_ms // self._boundary_ms
        record = (timestamp_ms, key, value, packed_headers)
        wake = is_taken = False
        try:
            with self._lock:  # alone: a signal's handler may raise between `acquire()` and a `try`
                self.check_open()
                if self._used_bytes > self._crowded_bytes:
                    self._wait_for_memory(BATCH_OVERHEAD_BYTES + record_bytes, block_until_s)
                batch = self._open.get((topic, partition))
                try:
                    count = 0
                    if batch is not None and batch.bucket == bucket:
                        count = batch.builder.add(record, record_bytes)
                    if not count:
                        wake = batch is not None or not self._open
                        batch = self._new_batch(batch, topic, partition, bucket, record, record_bytes)
                        count = 1
                    assert batch is not None
                    self._used_bytes += record_bytes
                    batch.size_bytes += record_bytes
                    if self._interceptor is not None:
                        self._appended[topic] += 1
                    future = DeliveryFuture()
                    future._batch, future._index, future._timestamp_ms = batch, count - 1, timestamp_ms
                    if batch.record_limit is not None and count >= batch.record_limit:
                        self._close(batch)
                        wake = True
                    if wake:
                        wake, self._sender_asleep = self._sender_asleep, False
                    is_taken = True
                except BaseException:
                    is_taken = self._has(record, batch, self._open.get((topic, partition)))
                    raise
            if wake:
                self._wake()
        except BaseException as error:
            self._note(error, is_taken=is_taken)
            raise
        return future

    def _note(self, error: BaseException, *, is_taken: bool) -> None:
        """Notes in what `append` raises that the record is sent all the same."""
        remove_note(error, TAKEN_NOTE)
        if is_taken:
            error.add_note(TAKEN_NOTE)
            self._wake()

    @staticmethod
    def _has(record: PendingRecord, *batches: ProducerBatch | None) -> bool:
        """Whether a record is in one of these batches: a signal's handler has raised in `append`."""
        return any(batch is not None and batch.builder.remembers(record) for batch in batches)

    def _checked_bytes(self, topic: str, record_bytes: int) -> int:
        if record_bytes > self._record_max_bytes:
            raise RecordTooLargeError(
                f"{topic}: key, value and headers take {record_bytes} bytes, max_request_size_bytes is"
                f" {self._record_max_bytes}"
            )
        return record_bytes

    def _new_batch(
        self,
        before: ProducerBatch | None,
        topic: str,
        partition: int,
        bucket: int | None,
        record: PendingRecord,
        record_bytes: int,
    ) -> ProducerBatch:
        if before is not None:
            self._close(before)
        limit = None
        if self._interceptor is not None:
            limit = self._interceptor.record_limit(topic, partition, self._appended[topic])
        batch = ProducerBatch(
            topic,
            partition,
            limit_bytes=self._batch_size_bytes,
            created_s=self._clock(),
            bucket=bucket,
            record_limit=limit,
            sender_ident=self.sender_ident,
            sender_pid=self._pid,
        )
        batch.builder.add(record, record_bytes)
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

    def _wait_for_memory(self, needed_bytes: int, until_s: float | None) -> None:
        """Waits with the lock held. The sender closes every open batch while a thread waits here."""
        if not self._blocks_when_full or threading.get_ident() == self.sender_ident:
            until_s = 0.0
        elif until_s is None:
            until_s = self._clock() + self._max_block_s
        if needed_bytes > self._memory_limit_bytes:
            raise RecordTooLargeError(
                f"the record takes {needed_bytes} bytes, buffer_memory_bytes is {self._memory_limit_bytes}"
            )
        while self._used_bytes + needed_bytes > self._memory_limit_bytes:
            left_s = until_s - self._clock()
            if left_s <= 0:
                raise BufferFullError(
                    f"{self._used_bytes} of {self._memory_limit_bytes} bytes (buffer_memory_bytes) are in"
                    " use; send more slowly, flush, or check why brokers do not acknowledge them"
                )
            self._waiting_count += 1
            try:
                if self._sender_asleep:
                    self._sender_asleep = False
                    self._wake()
                self._memory_freed.wait(left_s)
            finally:
                self._waiting_count -= 1
            self.check_open()

    # --- called by the sender ---

    def take_closed(self) -> tuple[list[ProducerBatch], float | None]:
        """Returns the batches closed since the last call, in order, and when to call again at the latest."""
        with self._lock:
            self._sender_asleep = True
            if self._waiting_count:
                self._close_all()
            next_s = None
            lingered_since_s = self._clock() - self._linger_s
            for batch in list(self._open.values()):
                if batch.created_s > lingered_since_s:
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
        """Frees the batch's memory, completes its futures, and runs their callbacks in this thread."""
        batch.base_offset = base_offset
        batch.log_append_time_ms = log_append_time_ms
        batch.error = error
        with self._lock:
            self._used_bytes -= batch.size_bytes
            if self._waiting_count:
                self._memory_freed.notify_all()
        batch.finish()
        with self._lock:
            del self._unfinished[batch]  # not before: `flush` waits for its callbacks, too

    # --- flushing and closing ---

    def flush(self) -> list[ProducerBatch]:
        """Closes every open batch; returns all unfinished batches."""
        with self._lock:
            self._close_all()
            self._sender_asleep = False
            unfinished = list(self._unfinished)
        self._wake()
        return unfinished

    def refuse(self, error: ClientError) -> None:
        """Makes `append` raise `error` from now on."""
        with self._lock:
            if self._refusal is None or isinstance(self._refusal, ClosedError):
                self._refusal = error
            self._memory_freed.notify_all()

    def check_open(self) -> None:
        """Raises the error passed to `refuse`, if it was called."""
        if self._refusal is not None:
            # It is raised often: its traceback would keep the frames of all callers, and their values.
            raise self._refusal.with_traceback(None)

    def take_unfinished(self) -> list[ProducerBatch]:
        """Closes every open batch; returns all unfinished ones, which `take_closed` then leaves out."""
        with self._lock:
            self._close_all()
            self._closed = []
            return list(self._unfinished)


def remove_note(error: BaseException, note: str) -> bool:
    """Removes a note, and returns whether there was one. A signal's handler may raise the same object each
    time, with the notes of earlier calls.
    """
    notes = getattr(error, "__notes__", [])
    if note not in notes:
        return False
    notes.remove(note)
    return True
