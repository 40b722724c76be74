"""One message stream: the blocking iterator that an application reads (paper §3.1).

Owns the queue between the group's thread, which puts records in, and the application's thread, which takes
them out. A record counts as consumed once its reader requests the next one: only then may its offset be
committed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.client.cluster import TopicPartition
from headrace.client.errors import ClientError
from headrace.client.latch import Latch
from headrace.client.unpacking import ConsumerRecord

QUEUE_RECORDS_MAX: Final = 2000
QUEUE_MAX_BYTES: Final = 16 * 1024 * 1024
"""A stream that holds this much is filled again once it is half empty. One poll's records may exceed it."""

_FOREVER_S: Final = 3600.0


class MessageStream:
    """An iterator that blocks until the next message, and ends when the group is closed. For one thread.

    `get` bounds the wait. Both raise the error that ended the group, and `ForkedError` in a forked child,
    where no group would fill it.
    """

    def __init__(
        self,
        number: int,
        *,
        wants_more: Callable[[], None],
        check_not_forked: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self._check_not_forked = check_not_forked
        self._wants_more = wants_more
        self._queue_bytes = 0
        self._full = False
        self._queue: deque[ConsumerRecord] = deque()
        # Entered by itself: a signal's handler may raise in what `Condition` adds to it, with the lock held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # only `drain` waits for it, in the group's thread
        self._news = Latch()  # set when there is more, or the stream ends
        self._in_hand: ConsumerRecord | None = None
        self._taken: ConsumerRecord | None = None  # by the last `get`, perhaps before it is in hand
        self._is_draining = False
        self._is_forfeited = False
        self._reader: int | None = None
        self._consumed: dict[TopicPartition, int] = {}
        self._ended = False
        self._error: ClientError | None = None

    # --- called by the application ---

    def __iter__(self) -> MessageStream:
        return self

    def __next__(self) -> ConsumerRecord:
        while True:
            record = self.get(_FOREVER_S)
            if record is not None:
                return record
            if self._ended:
                raise StopIteration

    def get(self, timeout_s: float) -> ConsumerRecord | None:
        """Returns the next message, or None if none arrives within `timeout_s` or the group was closed."""
        self._check_not_forked()  # first: another thread may have held the lock during the fork
        self._taken = None
        try:
            return self._get(timeout_s)
        except BaseException:
            self._give_back()
            raise

    def _get(self, timeout_s: float) -> ConsumerRecord | None:
        with self._lock:
            self._reader = threading.get_ident()
            self._mark_consumed()
            self._is_forfeited = False
            if not self._queue:
                # `drain` may be waiting until the message last returned is consumed.
                self._changed.notify_all()
            elif (record := self._take()) is not None:
                return record
        until_s = time.monotonic() + timeout_s
        while True:
            news, left_s = self._news, until_s - time.monotonic()
            with self._lock:
                if (record := self._take()) is not None:
                    return record
                if self._error is not None:
                    raise self._error.with_traceback(None)  # it would grow with each call
                if self._ended or left_s <= 0:
                    return None
            news.wait(left_s)

    def _take(self) -> ConsumerRecord | None:
        """Returns the next message, if there is one. With the lock held."""
        if not self._queue:
            return None
        record = self._taken = self._queue[0]
        self._queue.popleft()
        self._in_hand = record
        self._is_forfeited = False  # of the one before
        self._queue_bytes -= _size_bytes(record)
        if self._full and self._is_below(2):
            self._full = False
            self._wants_more()
        return record

    def _give_back(self) -> None:
        """A signal's handler has raised in `get`: what it had taken is returned to nobody, and comes next."""
        with self._lock:
            record = self._taken
            if record is None or self._is_forfeited or self._is_draining:
                return  # it is delivered again, by its next owner
            if not self._queue or self._queue[0] is not record:
                self._queue.appendleft(record)
                self._queue_bytes = sum(map(_size_bytes, self._queue))
            if self._in_hand is record:
                self._in_hand = None

    def _mark_consumed(self) -> None:
        record = self._in_hand
        if record is not None:
            self._consumed[record.topic, record.partition] = record.offset + 1
            self._in_hand = None

    # --- called by the group ---

    @property
    def is_full(self) -> bool:
        return self._full

    def _is_below(self, divisor: int) -> bool:
        """Returns whether the queue is below both limits divided by `divisor`."""
        is_short = len(self._queue) < QUEUE_RECORDS_MAX // divisor
        return is_short and self._queue_bytes < QUEUE_MAX_BYTES // divisor

    def put(self, records: list[ConsumerRecord]) -> None:
        with self._lock:
            self._is_draining = False
            self._queue.extend(records)
            self._queue_bytes += sum(map(_size_bytes, records))
            self._full = self._full or not self._is_below(1)
        self._tell()

    def mark_consumed_by(self, thread_id: int) -> bool:
        """Counts the message last returned as consumed if this thread reads the stream. Returns False if that
        came too late: see `reset_positions`.
        """
        with self._lock:
            if self._reader != thread_id:
                return True
            self._mark_consumed()
            self._changed.notify_all()  # `drain` may be waiting for that
            return not self._is_forfeited

    def give_up(self, thread_id: int) -> None:
        """Lets the message last returned be delivered again, if this thread reads the stream: it failed."""
        with self._lock:
            if self._reader == thread_id and self._in_hand is not None:
                self._in_hand = None
                self._is_forfeited = True

    def drain(self, grace_s: float) -> None:
        """Discards the queue, then waits at most `grace_s` until the message last returned is consumed."""
        with self._lock:
            self._clear()
            self._is_draining = True
            self._changed.wait_for(lambda: self._in_hand is None, grace_s)

    def _clear(self) -> None:
        self._queue.clear()
        self._queue_bytes = 0
        self._full = False

    def consumed(self) -> dict[TopicPartition, int]:
        """Returns, by partition, the offset after the last message consumed since `reset_positions`."""
        with self._lock:
            return dict(self._consumed)

    def reset_positions(self, is_stored: Callable[[TopicPartition, int], bool]) -> None:
        """Prepares for a new assignment: the message last returned will not count as consumed, nor does one
        whose offset is not stored by now.
        """
        with self._lock:
            is_lost = not all(is_stored(*each) for each in self._consumed.items())
            self._consumed.clear()
            self._is_forfeited = self._is_forfeited or self._in_hand is not None or is_lost
            self._in_hand = None

    def end(self, error: ClientError | None) -> None:
        """Ends the iteration, with `error` if there is one."""
        with self._lock:
            self._clear()
            self._ended = True
            self._error = error
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, Latch()
        news.set()


def _size_bytes(record: ConsumerRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
