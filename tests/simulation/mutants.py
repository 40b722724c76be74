"""Breaks the product on purpose, one rule at a time, to see that the simulator finds it: `mutants.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import headrace.broker.leadership.controller as controller
from headrace.broker.followed import FollowedPartition
from headrace.broker.leadership import decisions
from headrace.broker.partition import Partition
from headrace.broker.produce.refusals import StoredSequence
from headrace.replication.in_sync import InSyncReplicas


@contextmanager
def _put(owner: Any, name: str, mutant: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, mutant)
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def high_watermark_ignores_followers() -> Iterator[None]:
    def advance(self: InSyncReplicas, own_address: int) -> bool:
        if own_address <= self.high_watermark:
            return False
        self.high_watermark = own_address
        return True

    with _put(InSyncReplicas, "advance", advance):
        yield


@contextmanager
def acks_before_fsync() -> Iterator[None]:
    written = property(lambda self: self.log.end_address)
    cutting = property(lambda self: self.cutting)
    with _put(Partition, "stored_address", written), _put(FollowedPartition, "is_working", cutting):
        yield


@contextmanager
def every_election_is_unclean() -> Iterator[None]:
    real = decisions.elect

    def elect(state: Any, brokers: Any, *, unclean: bool) -> Any:
        new = real(state, brokers, unclean=True)
        others = [each for each in state.replicas if each in brokers.alive and each not in state.isr]
        if new.leader != state.leader and others:
            return decisions._elected(state, others[0], (others[0],))
        return new

    with _put(controller, "elect", elect):
        yield


@contextmanager
def followers_join_too_early() -> Iterator[None]:
    def belongs(self: InSyncReplicas, replica: int, now_ms: float, lag_max_ms: float) -> bool:
        return now_ms - self._followers[replica].asked_ms <= lag_max_ms

    with _put(InSyncReplicas, "_belongs", belongs):
        yield


@contextmanager
def refusals_are_never_forgotten() -> Iterator[None]:
    with _put(StoredSequence, "has", lambda *_: False):
        yield


MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        high_watermark_ignores_followers,
        acks_before_fsync,
        every_election_is_unclean,
        followers_join_too_early,
        refusals_are_never_forgotten,
    )
}
