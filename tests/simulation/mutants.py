"""Breaks the product on purpose, one rule at a time, to see that the simulator finds it: `mutants.md`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

import headrace.broker.leadership.controller as controller
from headrace.audit.counting import standing
from headrace.broker import disk_age
from headrace.broker.expiry_clock import ExpiryClock
from headrace.broker.groups.group import Group
from headrace.broker.leadership import decisions
from headrace.broker.partition import Partition
from headrace.broker.produce import plain, refusals, staging
from headrace.broker.produce.refusals import StoredSequence
from headrace.broker.replicas import fetcher
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.roles import Roles
from headrace.broker.settings.config import BrokerConfig, TopicConfig
from headrace.broker.settings.replication import ACKS_ALL, REPLICATED
from headrace.broker.state import BrokerState
from headrace.client.ordering import PartitionQueue
from headrace.coordination import partition_states
from headrace.coordination.errors import CoordinationError
from headrace.coordination.partition_state import PartitionState
from headrace.coordination.partition_states import PartitionChange, StaleStateError
from headrace.log import direct, recovery
from headrace.log.appending import AppendJob
from headrace.log.epochs import NO_EPOCH
from headrace.log.flush import Flushed, FlushJob
from headrace.log.producers import ACCEPTED, Checked
from headrace.log.segment import Segment
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition
from simulation.patching import put

NEVER_MS: Final = 1 << 40


@contextmanager
def high_watermark_ignores_followers() -> Iterator[None]:
    def advance(self: InSyncReplicas, own_address: int) -> bool:
        if own_address <= self.high_watermark:
            return False
        self.high_watermark = own_address
        return True

    with put(InSyncReplicas, "advance", advance):
        yield


@contextmanager
def every_election_is_unclean() -> Iterator[None]:
    real = decisions.elect

    def elect(state: Any, brokers: Any, elr_below: Any, *, unclean: bool, offline: Any) -> Any:
        new = real(state, brokers, elr_below, unclean=True, offline=offline)
        others = [each for each in state.replicas if each in brokers.alive and each not in state.isr]
        if new.leader != state.leader and others:
            return decisions._elected(replace(state, isr=(others[0],)), others[0])
        return new

    with put(controller, "elect", elect):
        yield


@contextmanager
def followers_join_too_early() -> Iterator[None]:
    def belongs(self: InSyncReplicas, replica: int, now_ms: float, lag_max_ms: float) -> bool:
        return now_ms - self._followers[replica].asked_ms <= lag_max_ms

    with put(InSyncReplicas, "_belongs", belongs):
        yield


@contextmanager
def refusals_are_never_forgotten() -> Iterator[None]:
    """Not even after a while, as `WAITED_MAX_MS` demands: that protects a second time."""
    with put(StoredSequence, "has", lambda *_: False), put(refusals, "WAITED_MAX_MS", NEVER_MS):
        yield


@contextmanager
def consumers_see_what_is_written() -> Iterator[None]:
    with put(Partition, "visible_address", property(lambda self: self.log.end_address)):
        yield


@contextmanager
def followers_skip_reconciliation() -> Iterator[None]:
    real = FetchPartition

    def asked(index: int, address: int, max_bytes: int, epoch: int, _: int, start: int) -> FetchPartition:
        return real(index, address, max_bytes, epoch, NO_EPOCH, start)

    with put(fetcher, "FetchPartition", asked):
        yield


@contextmanager
def states_without_compare_and_set() -> Iterator[None]:
    """Whoever writes a partition's state takes what is there for what it expected."""
    real = partition_states._Present.judge

    def judge(self: Any, change: PartitionChange, *, again: bool) -> tuple[CoordinationError | None, bool]:
        problem, is_done = real(self, change, again=again)
        return (None, False) if isinstance(problem, StaleStateError) else (problem, is_done)

    with put(partition_states._Present, "judge", judge):
        yield


@contextmanager
def leaders_go_on_in_their_epoch_after_a_start() -> Iterator[None]:
    with put(Roles, "has_led", lambda *_: None):
        yield


@contextmanager
def retries_are_stored_again() -> Iterator[None]:
    def accept(*_: object) -> Checked:
        return ACCEPTED

    with put(staging, "check_sequence", accept), put(plain, "follows", lambda *_: True):
        yield


@contextmanager
def acks_before_fsync() -> Iterator[None]:
    """acks=all waits for the memory of every in-sync replica, as with headrace.acks.all=replicated."""
    real = BrokerConfig.topic_config

    def topic_config(self: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        return real(self, {**overrides, ACKS_ALL.name: REPLICATED})

    with put(BrokerConfig, "topic_config", topic_config):
        yield


@contextmanager
def torn_batches_are_kept() -> Iterator[None]:
    """A start takes the end of each file for the end of its batches."""
    real = recovery.check_batches

    def check(segment: Segment, *arguments: Any) -> tuple[int, None]:
        real(segment, *arguments)
        return segment.end_address, None

    with put(recovery, "check_batches", check):
        yield


@contextmanager
def epochs_are_not_fenced() -> Iterator[None]:
    with put(BrokerState, "check_leader_epoch", lambda *_: None):
        yield


@contextmanager
def appends_by_threads_are_not_flushed() -> Iterator[None]:
    def run(self: AppendJob) -> Flushed:
        direct.write(self.file.fd, self.batches, self.at)
        return Flushed(self.flush.upto_address)

    with put(AppendJob, "run", run):
        yield


@contextmanager
def failed_fsyncs_are_ignored() -> Iterator[None]:
    real = FlushJob.run

    def run(self: FlushJob) -> Flushed:
        try:
            return real(self)
        except OSError:
            return Flushed(self.upto_address)

    with put(FlushJob, "run", run):
        yield


@contextmanager
def generations_are_not_fenced() -> Iterator[None]:
    """A group's member commits whatever generation it is of."""
    with put(Group, "check_commit", lambda *_: ErrorCode.NONE):
        yield


@contextmanager
def auditors_believe_their_counts() -> Iterator[None]:
    """They do not check whether the log still holds what they counted."""
    with put(standing, "_problem_with", lambda *_: ""):
        yield


@contextmanager
def older_disks_are_believed() -> Iterator[None]:
    """A broker does not ask whether its disk is an older copy of what it had."""
    with put(disk_age, "is_older", lambda *_: False):
        yield


@contextmanager
def second_batches_do_not_wait_for_the_first() -> Iterator[None]:
    """A producer sends several batches of an epoch before its first one is acknowledged."""
    with put(PartitionQueue, "_known_s", property(lambda _: math.inf, lambda *_: None)):
        yield


@contextmanager
def eligible_replicas_stay_eligible() -> Iterator[None]:
    """With enough in sync again the high watermark rises, and those that left are still eligible to lead."""
    real = PartitionState.with_isr

    def with_isr(state: PartitionState, isr: Any, elr_below: Any, unfit: Any = frozenset()) -> Any:
        return real(state, isr, lambda each: elr_below(each) and NEVER_MS, unfit)

    def count(self: InSyncReplicas) -> None:
        real_count(self)
        self._stands_still = self.is_below_min

    real_count = InSyncReplicas._count
    with put(PartitionState, "with_isr", with_isr), put(InSyncReplicas, "_count", count):
        yield


@contextmanager
def leaders_that_stay_need_not_be_handled() -> Iterator[None]:
    """A leader that came back, with an empty disk perhaps, leads on in a new epoch before it is handled."""

    def unproven(change: PartitionChange) -> int | None:
        leads = change.new.leader not in (-1, change.expected.leader)
        return change.new.leader if change.handled_only and leads else None

    with (
        put(PartitionChange, "unproven_leader", property(unproven)),
        put(PartitionChange, "unproven_followers", property(lambda _: frozenset())),
    ):
        yield


@contextmanager
def events_of_unknown_age_are_old() -> Iterator[None]:
    """After a crash: the broker's clock may have been behind when it wrote them."""

    def newest(segment: Segment) -> int:
        found = segment.max_timestamp_if_known_ms
        return -1 if found is None else found

    with put(Segment, "newest_readable_ms", property(newest)):
        yield


@contextmanager
def one_clock_makes_events_old() -> Iterator[None]:
    with put(ExpiryClock, "heard", lambda *_: None):
        yield


@contextmanager
def followers_take_one_partition_of_a_topic() -> Iterator[None]:
    real = fetcher.Fetcher._take

    def take(self: Any, asked: Any, result: Any) -> None:
        if asked.followed.name.partition == 0:
            real(self, asked, result)

    with put(fetcher.Fetcher, "_take", take):
        yield


@contextmanager
def brokers_that_stop_may_join() -> Iterator[None]:
    """They say that they stop, and nobody looks."""
    with put(PartitionChange, "taken_in", property(lambda _: frozenset())):
        yield


@contextmanager
def followers_delete_what_an_earlier_leader_deleted() -> Iterator[None]:
    """They remember up to where, although their logs were cut back, and another leader writes there now."""
    real = FollowedPartitions.cut

    def cut(self: FollowedPartitions, followed: FollowedPartition, step: Any, then: Any) -> None:
        before = followed.leader_start_address

        def goes_on(each: FollowedPartition) -> None:
            each.leader_start_address = max(each.leader_start_address, before)
            then(each)

        real(self, followed, step, goes_on)

    with put(FollowedPartitions, "cut", cut):
        yield


MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        high_watermark_ignores_followers,
        every_election_is_unclean,
        followers_join_too_early,
        refusals_are_never_forgotten,
        consumers_see_what_is_written,
        followers_skip_reconciliation,
        states_without_compare_and_set,
        leaders_go_on_in_their_epoch_after_a_start,
        retries_are_stored_again,
        acks_before_fsync,
        torn_batches_are_kept,
        epochs_are_not_fenced,
        failed_fsyncs_are_ignored,
        appends_by_threads_are_not_flushed,
        generations_are_not_fenced,
        auditors_believe_their_counts,
        older_disks_are_believed,
        second_batches_do_not_wait_for_the_first,
        eligible_replicas_stay_eligible,
        leaders_that_stay_need_not_be_handled,
        events_of_unknown_age_are_old,
        one_clock_makes_events_old,
        followers_take_one_partition_of_a_topic,
        brokers_that_stop_may_join,
        followers_delete_what_an_earlier_leader_deleted,
    )
}
