"""Planted losses: a producer that throws batches away after they were numbered and observed.

For drills and demos.

Owns the hook a producer offers for it, and the plan the demo uses. No producer has one unless it is asked
for.
"""

from __future__ import annotations

import enum
import threading

from headrace.client.observer import BatchIdentity


class Verdict(enum.Enum):
    SEND = "send"
    DROP = "drop"


class BatchInterceptor:
    """The hook: `Producer(..., interceptor=...)`.

    A dropped batch is thrown away silently: its futures succeed with offset -1, its observer hears no more
    of it, and the records after it go on under a bumped epoch, as after any loss. Calls are never
    concurrent.
    """

    def record_limit(self, topic: str, partition: int, records_before: int) -> int | None:
        """Asked when a batch is opened: it is closed once it has so many records; None for no such limit.

        `records_before`: how many records of the topic were handed over before it.
        """
        return None

    def limited_batch_closed(self, topic: str, record_limit: int, record_count: int) -> None:
        """Told when a batch with a limit takes no more: it may have fewer records than it was allowed."""

    def verdict(self, identity: BatchIdentity, record_limit: int | None) -> Verdict:
        """Asked when a batch has its identity. `record_limit` is what was answered when it was opened."""
        return Verdict.SEND


class DropPlan(BatchInterceptor):
    """Drop exactly `count` records of `topic`, once `after` records of it have been handed over.

    The batch they are in is closed at `count` records; if it is closed earlier (linger, a boundary,
    `flush`), the rest are dropped from the next one. `dropped` names what is gone. May be looked at from
    any thread.
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
        """The batches thrown away so far."""
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

    def verdict(self, identity: BatchIdentity, record_limit: int | None) -> Verdict:
        if record_limit is None:
            return Verdict.SEND
        with self._lock:
            self._dropped.append(identity)
        return Verdict.DROP
