"""What `Producer.send` returns: a future for one record.

The records of a batch share one outcome, so a future is three words: its batch, its place in it, its time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from headrace.client.batches import ProducerBatch
from headrace.client.errors import ClientError, ForkedError


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 if it is unknown (acks=0). Time in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[RecordMetadata | None, ClientError | None], None]
"""Called in the sender thread with the metadata or with the error."""


class DeliveryFuture:
    """The outcome of one record. Works like `concurrent.futures.Future`, but cannot be cancelled.

    The accumulator creates it and sets the three fields: one is created for every record, and a call of
    `__init__` would take as long as the rest of that.
    """

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    _batch: ProducerBatch
    _index: int
    _timestamp_ms: int

    def done(self) -> bool:
        return self._batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits for delivery. Raises `TimeoutError` after `timeout` seconds, or the delivery's error; in a
        delivery callback `RuntimeError`, and in a process forked meanwhile `ForkedError`, instead of waiting.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # of all records of the batch: each caller's frames would stay
        return self._metadata()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Waits like `result`; returns the error, or None if the record was delivered."""
        batch = self._batch
        self._check_not_forked()
        if not batch.is_done and timeout != 0 and batch.sender_ident == threading.get_ident():
            raise RuntimeError(
                f"{batch.topic}-{batch.partition}: a delivery callback that waits for another delivery would"
                " never return; use add_done_callback"
            )
        if not self._batch.wait(timeout):
            raise TimeoutError(
                f"{self._batch.topic}-{self._batch.partition}: not delivered within {timeout:g} s"
            )
        return self._batch.error

    def add_done_callback(self, callback: Callable[[DeliveryFuture], None]) -> None:
        """Calls `callback(self)` in the sender thread once the outcome is known; at once if it is. Raises
        `ForkedError` as `exception` does."""
        self._check_not_forked()
        self._batch.when_done(lambda: callback(self))

    def report(self, on_delivery: OnDelivery) -> None:
        """Calls `on_delivery` once the outcome is known."""

        def call() -> None:
            error = self._batch.error
            on_delivery(None if error else self._metadata(), error)

        self._batch.when_done(call)

    def _check_not_forked(self) -> None:
        """First: another thread may have held the batch's lock during the fork."""
        batch = self._batch
        if not batch.is_done and batch.sender_pid != os.getpid():
            raise ForkedError(
                f"{batch.topic}-{batch.partition}: this record was sent before os.fork, and only the parent "
                "learns what becomes of it; wait for it there"
            )

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        time_ms = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(batch.topic, batch.partition, offset, time_ms)
