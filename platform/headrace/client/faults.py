"""Planted failures, for drills and demos: a producer drops or alters batches that were numbered and told.

Owns the hook that a producer offers for it, and the plan that the demo uses.
"""

from __future__ import annotations

import enum
import threading

from headrace.client.observer import BatchIdentity


class BatchFate(enum.Enum):
    """What an interceptor decides about a batch."""

    SEND = "send"
    DROP = "drop"
    ALTER = "alter"


class BatchInterceptor:
    """The hook: `Producer(..., interceptor=...)`.

    A batch is dropped silently: its futures succeed with offset -1, its observer gets no further call about
    it, and later records continue under a bumped epoch, as after any loss. Of one that is altered, what
    `alter` makes of it is sent. Calls are never concurrent.
    """

    def record_limit(self, topic: str, partition: int, records_before: int) -> int | None:
        """Called when a batch is opened; returns after how many records it must close, or None for no limit.

        `records_before`: how many records of the topic were sent before it.
        """
        return None

    def limited_batch_closed(self, topic: str, record_limit: int, record_count: int) -> None:
        """Called when a batch with a limit closes; it may have fewer records than the limit."""

    def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
        """Called when a batch was numbered. `record_limit` is the limit set when it was opened."""
        return BatchFate.SEND

    def alter(self, data: bytearray) -> None:
        """Called with a whole batch whose fate is `ALTER`; changes it in place, its checksum included."""


class DropPlan(BatchInterceptor):
    """Drops exactly `count` records of `topic`, after the first `after` records.

    The batch they are in is closed at `count` records; if it closes earlier (linger, a boundary, `flush`),
    the rest is dropped from the next one. Thread-safe.
    """

    def __init__(self, topic: str, count: int, after: int = 0) -> None:
        if count < 1 or after < 0:
            raise ValueError(f"a drop plan needs count >= 1 and after >= 0, not {count} and {after}")
        self.topic = topic
        self.count = count
        self.after = after
        self._lock = threading.Lock()
        self._claimed = 0
        self._dropped: list[BatchIdentity] = []

    @property
    def dropped(self) -> list[BatchIdentity]:
        """The batches dropped so far."""
        with self._lock:
            return list(self._dropped)

    @property
    def is_done(self) -> bool:
        with self._lock:
            return sum(identity.record_count for identity in self._dropped) == self.count

    def record_limit(self, topic: str, partition: int, records_before: int) -> int | None:
        with self._lock:
            left = self.count - self._claimed
            if topic != self.topic or records_before < self.after or not left:
                return None
            self._claimed += left
            return left

    def limited_batch_closed(self, topic: str, record_limit: int, record_count: int) -> None:
        with self._lock:
            self._claimed -= record_limit - record_count

    def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
        if record_limit is None:
            return BatchFate.SEND
        with self._lock:
            self._dropped.append(identity)
        return BatchFate.DROP
