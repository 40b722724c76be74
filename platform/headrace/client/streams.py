"""One message stream: the blocking iterator an application reads (paper §3.1).

Owns the queue between two threads.

The group's thread puts records in, the application's thread takes them out. A record counts as consumed
once its reader has come back for the next one: only then may its offset be committed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.client.consumer import ConsumerRecord
from headrace.client.errors import ClientError
from headrace.client.fetching import Key

QUEUE_RECORDS_MAX: Final = 2000
QUEUE_MAX_BYTES: Final = 16 * 1024 * 1024
"""A stream that has so much waiting gets no more until it is half empty; one poll's records may go over."""

_FOREVER_S: Final = 3600.0


class MessageStream:
    """Iterate it: it blocks until the next message, and ends when the group is closed.

    One thread reads a stream.

    `get` is the same with a bound on the wait. What the group died of is raised from both.
    """

    def __init__(self, number: int, *, wants_more: Callable[[], None]) -> None:
        self.number = number
        self._wants_more = wants_more
        self._queue_bytes = 0
        self._full = False
        self._queue: deque[ConsumerRecord] = deque()
        self._changed = threading.Condition()
        self._in_hand: ConsumerRecord | None = None
        self._reader: int | None = None
        self._consumed: dict[Key, int] = {}
        self._ended = False
        self._error: ClientError | None = None

    # the application's side

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
        """The next message, or None if there is none within `timeout_s`, or the group was closed."""
        with self._changed:
            self._reader = threading.get_ident()
            self._put_down()
            if not self._queue:
                self._changed.notify_all()  # somebody may wait for us to have put down what we had
                self._changed.wait_for(lambda: self._queue or self._ended, timeout_s)
            if self._queue:
                record = self._in_hand = self._queue.popleft()
                self._queue_bytes -= _size_bytes(record)
                if self._full and self._is_below(2):
                    self._full = False
                    self._wants_more()
                return record
            if self._error is not None:
                raise self._error
            return None

    def _put_down(self) -> None:
        record = self._in_hand
        if record is not None:
            self._consumed[record.topic, record.partition] = record.offset + 1
            self._in_hand = None

    # the group's side

    @property
    def is_full(self) -> bool:
        return self._full

    def _is_below(self, part: int) -> bool:
        return len(self._queue) < QUEUE_RECORDS_MAX // part and self._queue_bytes < QUEUE_MAX_BYTES // part

    def put(self, records: list[ConsumerRecord]) -> None:
        with self._changed:
            self._queue.extend(records)
            self._queue_bytes += sum(map(_size_bytes, records))
            self._full = self._full or not self._is_below(1)
            self._changed.notify_all()

    def put_down_by(self, thread_id: int) -> None:
        """The thread that reads us says that it is done with what it got."""
        with self._changed:
            if self._reader == thread_id:
                self._put_down()

    def drain(self, grace_s: float) -> None:
        """Take back what is queued, and give the reader `grace_s` to finish what it has in hand."""
        with self._changed:
            self._clear()
            self._changed.wait_for(lambda: self._in_hand is None, grace_s)

    def _clear(self) -> None:
        self._queue.clear()
        self._queue_bytes = 0
        self._full = False

    def consumed(self) -> dict[Key, int]:
        """Per partition the offset after the last consumed message, since the last `forget`."""
        with self._changed:
            return dict(self._consumed)

    def forget(self) -> None:
        """A new assignment begins; what the reader still has in hand will not count any more."""
        with self._changed:
            self._consumed.clear()
            self._in_hand = None

    def end(self, error: ClientError | None) -> None:
        with self._changed:
            self._clear()
            self._ended = True
            self._error = error
            self._changed.notify_all()


def _size_bytes(record: ConsumerRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
