"""What `Producer.send` gives back: a light future that looks at its batch.

Owns no state of its own but its place.

A thousand records of a batch share one outcome, so a record's future is three words; waiting is the batch's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.errors import ClientError

if TYPE_CHECKING:
    from headrace.client.batches import ProducerBatch

logger = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 where the broker did not say (acks=0). Time in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[RecordMetadata | None, ClientError | None], None]
"""Called in the sender thread, with the metadata or with the error."""


class DeliveryFuture:
    """The outcome of one record, in the manner of `concurrent.futures.Future` (it cannot be cancelled)."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        return self._batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for delivery, at most `timeout` seconds (`TimeoutError`). Raises what delivery failed with."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait likewise; None once delivered."""
        if not self._batch.wait(timeout):
            raise TimeoutError(
                f"{self._batch.topic}-{self._batch.partition}: not delivered within {timeout:g} s"
            )
        return self._batch.error

    def add_done_callback(self, callback: Callable[[DeliveryFuture], None]) -> None:
        """Call `callback(self)` once delivered or failed: in the sender thread, or here if that is so
        already.
        """
        self._batch.when_done(lambda: callback(self))

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        time_ms = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(batch.topic, batch.partition, offset, time_ms)

    def report(self, on_delivery: OnDelivery) -> None:
        """Call `on_delivery` when the outcome is there."""

        def tell() -> None:
            error = self._batch.error
            on_delivery(None if error else self._metadata(), error)

        self._batch.when_done(tell)


class Outcome:
    """Done or not done, waited for by any thread. The event is made only if somebody waits."""

    __slots__ = ("_callbacks", "_event", "_lock", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, timeout: float | None) -> bool:
        if self.is_done:
            return True
        with self._lock:
            if self.is_done:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)

    def when_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        call_safely(callback)

    def finish(self) -> None:
        """Once only: release the waiters, run the callbacks in this thread."""
        with self._lock:
            self.is_done = True
            event, callbacks, self._callbacks = self._event, self._callbacks, []
        if event is not None:
            event.set()
        for callback in callbacks:
            call_safely(callback)


def call_safely(callback: Callable[[], None]) -> None:
    """The application's callbacks must not end the sender thread: what they raise is logged."""
    try:
        callback()
    except Exception:
        logger.exception("a delivery callback failed")
