"""What the drill's producers do to their batches: hooks of `client.faults` that tell the truth first."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.faults import BatchFate, BatchInterceptor, DropPlan
from headrace.client.observer import BatchIdentity
from headrace.wire.batch import renumber

Tell = Callable[[BatchIdentity], None]
"""Writes down what is about to happen to a batch."""


class Dropping(DropPlan):
    """Drops `count` records after the first `after`, all of one batch."""

    def __init__(self, topic: str, count: int, after: int, tell: Tell) -> None:
        super().__init__(topic, count, after)
        self._tell = tell

    def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
        fate = super().decide(identity, record_limit)
        if fate is BatchFate.DROP:
            self._tell(identity)
        return fate


class Altering(BatchInterceptor):
    """Sends other bytes than were counted, in one batch, under a right checksum. Needs `compression="none"`.

    The last byte of a batch is one of the moment of publishing in its last record's headers: the events stay
    readable.
    """

    def __init__(self, number: int, tell: Tell) -> None:
        self._left = number
        self._tell = tell
        self._victim: BatchIdentity | None = None

    def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
        self._left -= 1
        if self._left != -1:
            return BatchFate.SEND
        self._victim = identity
        self._tell(identity)
        return BatchFate.ALTER

    def alter(self, data: bytearray) -> None:
        assert self._victim is not None
        data[-1] ^= 1
        victim = self._victim
        renumber(data, 0, victim.producer_id, victim.producer_epoch, victim.base_sequence)


class Keeping(BatchInterceptor):
    """Keeps the bytes of each batch as it is sent."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def decide(self, identity: BatchIdentity, record_limit: int | None) -> BatchFate:
        return BatchFate.ALTER

    def alter(self, data: bytearray) -> None:
        self.batches.append(bytes(data))
