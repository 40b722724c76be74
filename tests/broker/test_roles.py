"""A broker leads or follows each of its replicas, as ZooKeeper says, and never leads twice in one epoch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from fix_replica_manager import ME, ReplicaManagerBench, Waiter
from headrace.broker.errors import Refused
from headrace.broker.handlers.replica_reads import readable
from headrace.broker.partition import Partition
from headrace.broker.replicas import high_watermarks
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.in_sync_changes import InSyncChanges
from headrace.broker.replicas.roles import has_moved
from headrace.coordination.partition_states import PartitionChange, StaleStateError
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import PartitionName
from headrace.wire.batch import readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchRequest
from headrace.wire.records import Record, encode_batch

NAME = PartitionName("t", 0)
BATCH = encode_batch([Record(0, 1_000, None, b"v" * 100)])
ID = uuid4()


def stored_batch(address: int, leader_epoch: int) -> bytes:
    batch = bytearray(BATCH)
    readdress(batch, 0, address, leader_epoch)
    return bytes(batch)


def topic(leader: int, epoch: int, *, in_sync: tuple[int, ...] = (1, 2), topic_id: UUID = ID) -> TopicState:
    return TopicState("t", topic_id, {0: PartitionState(leader, epoch, (1, 2), in_sync)})


class Roles:
    """The partition t-0 of brokers 1, which is this one, and 2."""

    def __init__(self, bench: ReplicaManagerBench) -> None:
        self.bench = bench

    def become(self, leader: int, epoch: int, *, in_sync: tuple[int, ...] = (1, 2)) -> None:
        self.bench.apply(topic(leader, epoch, in_sync=in_sync))
        self.bench.workers.run()

    @property
    def led(self) -> Partition | None:
        return self.bench.state.partitions.get(*NAME)

    @property
    def followed(self) -> FollowedPartition | None:
        return self.bench.followed.get(NAME)

    def refusal(self) -> ErrorCode:
        with pytest.raises(Refused) as refused:
            self.bench.state.led_partition(*NAME)
        return refused.value.code


@pytest.fixture
def roles(bench: ReplicaManagerBench) -> Roles:
    return Roles(bench)


def test_the_same_log_is_led_and_followed_in_turn(roles: Roles) -> None:
    roles.become(2, 0)
    assert roles.led is None and roles.followed is not None
    assert roles.refusal() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = roles.followed.log
    roles.become(ME, 1)
    assert roles.followed is None and roles.led is not None
    assert roles.led.log is log and log.leader_epoch == 1
    roles.become(2, 2)
    assert roles.led is None and roles.followed is not None and roles.followed.log is log


def test_who_is_deposed_answers_those_who_wait(roles: Roles) -> None:
    roles.become(ME, 0)
    led = roles.led
    assert led is not None and led.replicas is not None
    led.log.append(BATCH)
    waiter = Waiter(led.log.end_address)
    roles.bench.state.partitions.staged(led, waiter, 0)
    roles.bench.state.partitions.commit()
    assert roles.bench.workers.jobs, "the fsync runs"
    roles.bench.apply(topic(2, 1))
    assert waiter.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert roles.led is None and roles.followed is None, "until that fsync has ended"
    assert not led.is_plain
    roles.bench.workers.run()
    assert roles.followed is not None
    assert roles.followed.log.flushed_address == len(BATCH)


def test_acks_all_waits_for_the_follower(roles: Roles) -> None:
    roles.become(ME, 0)
    led = roles.led
    assert led is not None and led.replicas is not None
    led.log.append(BATCH)
    waiter = Waiter(len(BATCH))
    partitions = roles.bench.state.partitions
    partitions.staged(led, waiter, 0)
    partitions.commit()
    roles.bench.workers.run()
    assert led.log.flushed_address == len(BATCH) and led.visible_address == 0
    assert waiter.codes == []
    led.replicas.asked(2, len(BATCH), len(BATCH), 0, 1)
    partitions.advance(led)
    assert waiter.codes == [ErrorCode.NONE] and led.visible_address == len(BATCH)


def test_a_replica_that_others_took_out_of_the_in_sync_set_is_not_waited_for(roles: Roles) -> None:
    """It died, or was stopped in order: the leader sees it by the watch, and asks ZooKeeper at once. A round
    of `check` may be a second away, and every producer would wait for it.
    """
    registry = roles.bench.registry
    InSyncChanges(roles.bench.state, cast(Any, registry), cast(Any, roles.bench.workers), 30_000)
    roles.become(ME, 3)
    led = roles.led
    assert led is not None
    led.log.append(BATCH)
    waiter = Waiter(len(BATCH))
    roles.bench.state.partitions.staged(led, waiter, 0)
    roles.bench.state.partitions.commit()
    roles.bench.workers.run()
    assert waiter.codes == []
    registry.held["t"] = topic(ME, 3, in_sync=(1,))
    roles.become(ME, 3, in_sync=(1,))
    assert waiter.codes == [ErrorCode.NONE] and led.visible_address == len(BATCH)


def test_a_follower_whose_log_is_offline_leaves_the_in_sync_set_at_once(roles: Roles) -> None:
    """Its broker has said so: no producer waits until it has lagged for long, and it is not elected."""
    state, registry = roles.bench.state, roles.bench.registry
    in_sync = InSyncChanges(state, cast(Any, registry), cast(Any, roles.bench.workers), 30_000)
    roles.become(ME, 3)
    state.view = state.view.with_brokers(roles.bench.brokers(1, 2))
    in_sync.check()
    roles.bench.workers.run()
    assert not registry.changes
    state.view = state.view.with_offline(frozenset({(2, "t", 0), (2, "u", 0)}))
    in_sync.check()
    roles.bench.workers.run()
    assert [change.new.isr for change in registry.changes] == [(ME,)]


def test_many_questions_about_one_topic_read_it_once(roles: Roles) -> None:
    state, registry = roles.bench.state, roles.bench.registry
    in_sync = InSyncChanges(state, cast(Any, registry), cast(Any, roles.bench.workers), 30_000)
    many = {index: PartitionState(ME, 3, (1, 2), (1, 2)) for index in range(50)}
    roles.bench.apply(TopicState("t", ID, many))
    roles.bench.workers.run()
    alone = TopicState("t", ID, {index: replace(each, isr=(ME,)) for index, each in many.items()})
    registry.held["t"] = alone
    reads = registry.reads
    roles.bench.apply(alone)
    roles.bench.workers.run()
    in_sync.check()
    roles.bench.workers.run()
    led = [state.partitions.get("t", index) for index in many]
    assert all(
        each is not None and each.replicas is not None and each.replicas.stored == (ME,) for each in led
    )
    assert registry.reads - reads <= 3


def test_a_leader_that_stood_still_does_not_hold_that_against_its_followers(roles: Roles) -> None:
    state, registry, now_ms = roles.bench.state, roles.bench.registry, 0
    state.monotonic_ms = lambda: now_ms
    in_sync = InSyncChanges(state, cast(Any, registry), cast(Any, roles.bench.workers), 4_000)
    roles.become(ME, 3)
    state.view = state.view.with_brokers(roles.bench.brokers(1, 2))
    for stands_ms in (0, 1_000, 60_000, 1_000, 1_000):  # SIGSTOP, for example
        now_ms += stands_ms
        in_sync.check()
        roles.bench.workers.run()
        assert not registry.changes
    for _ in range(3):  # and now the follower is silent while the leader runs
        now_ms += 1_000
        in_sync.check()
        roles.bench.workers.run()
    assert [change.new.isr for change in registry.changes] == [(ME,)]


def test_the_in_sync_set_of_a_topic_that_was_made_again_is_not_its_predecessors(roles: Roles) -> None:
    """The broker has seen the new topic, and leads the old one until its log is closed."""
    state, registry, now_ms = roles.bench.state, roles.bench.registry, 0
    state.monotonic_ms = lambda: now_ms
    in_sync = InSyncChanges(state, cast(Any, registry), cast(Any, roles.bench.workers), 4_000)
    roles.become(ME, 3)
    new = replace(topic(ME, 3), topic_id=UUID(int=77))
    state.view = state.view.with_brokers(roles.bench.brokers(1)).with_topics({"t": new})
    for _ in range(9):
        now_ms += 1_000
        in_sync.check()
        roles.bench.workers.run()
    assert roles.led is not None and not registry.changes


def test_a_broker_that_was_started_again_leads_only_in_a_later_epoch(roles: Roles) -> None:
    roles.bench.manager.begin({"t": topic(ME, 3)})
    roles.become(ME, 3)
    assert roles.led is None and roles.followed is not None
    assert roles.refusal() is ErrorCode.LEADER_NOT_AVAILABLE
    roles.become(ME, 4)
    assert roles.led is not None and roles.led.leader_epoch == 4


def test_who_is_to_lead_and_does_not_yet_serves_no_consumer_as_a_follower(roles: Roles) -> None:
    """Its disk may be empty: who takes it for the leader would believe that what it has read is lost."""
    state = roles.bench.state
    state.find_followed = roles.bench.followed.get
    names_rack = FetchRequest(0, 0, 1, [], rack_id="rack-1")
    roles.bench.manager.begin({"t": topic(ME, 3)})
    roles.become(ME, 3)
    with pytest.raises(Refused) as refused:
        readable(state, NAME, names_rack, 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    roles.become(2, 4)
    assert readable(state, NAME, names_rack, 0) is roles.followed
    roles.become(ME, 5)
    assert readable(state, NAME, names_rack, 0) is roles.led


def test_a_topic_of_one_replica_goes_on_at_once(roles: Roles) -> None:
    alone = TopicState("t", ID, {0: PartitionState(ME, 3, (ME,), (ME,))})
    roles.bench.manager.begin({"t": alone})
    roles.bench.apply(alone)
    roles.bench.workers.run()
    assert roles.led is not None and roles.led.replicas is None


def test_replicas_that_are_being_added_keep_no_producer_waiting(roles: Roles) -> None:
    """min.insync.replicas=2 cannot be reached with one replica; once there are three, it holds."""
    settings = {"min.insync.replicas": "2"}
    alone = PartitionState(ME, 0, (ME,), (ME,))
    for state, is_below in (
        (alone, False),
        (PartitionState(ME, 0, (ME, 2, 3), (ME,), adding=(2, 3)), False),
        (PartitionState(ME, 1, (ME, 2, 3), (ME, 2), adding=(2, 3)), False),
        (PartitionState(ME, 2, (ME, 2, 3), (ME, 2, 3)), False),
        (PartitionState(ME, 3, (ME, 2, 3), (ME,)), True),
    ):
        roles.bench.apply(TopicState("t", ID, {0: state}, settings))
        roles.bench.workers.run()
        assert roles.led is not None
        replicas = roles.led.replicas
        assert (replicas is not None and replicas.is_below_min) == is_below, state


def test_a_leader_whose_log_fails_gives_it_to_another_and_never_goes_on_in_its_epoch(roles: Roles) -> None:
    roles.become(ME, 5)
    led = roles.led
    assert led is not None
    roles.bench.state.view = roles.bench.state.view.with_brokers(roles.bench.brokers(1, 2))
    led.log.take_offline("the disk fails")
    roles.bench.state.partitions.complete_writes(led)
    roles.bench.workers.run()
    (change,) = roles.bench.registry.changes
    assert (change.new.leader, change.new.leader_epoch, change.new.isr) == (2, 6, (2,))
    roles.bench.registry.changes.clear()
    for _ in range(10):  # it is opened again; ZooKeeper has not taken the change
        roles.bench.manager.look_after_offline()
        roles.bench.workers.run()
    assert roles.led is None and roles.followed is not None
    assert [change.new.leader_epoch for change in roles.bench.registry.changes] == [6]
    roles.become(ME, 6)
    assert roles.led is not None


def test_an_epoch_that_another_change_kept_from_beginning_begins_once_that_is_known(roles: Roles) -> None:
    roles.become(ME, 5)
    led = roles.led
    assert led is not None
    registry = roles.bench.registry
    seen, alone = topic(ME, 5).partitions[0], topic(ME, 5, in_sync=(ME,)).partitions[0]
    registry.problem = StaleStateError(PartitionChange("t", 0, seen, seen), alone)
    led.log.take_offline("the disk fails")
    roles.bench.state.partitions.complete_writes(led)
    for _ in range(10):
        roles.bench.manager.look_after_offline()
        roles.bench.workers.run()
    assert roles.followed is not None and registry.changes[-1].new.leader_epoch == 6
    registry.problem = None
    registry.changes.clear()
    roles.become(ME, 5, in_sync=(ME,))
    assert [change.new.leader_epoch for change in registry.changes] == [6]
    roles.become(ME, 6, in_sync=(ME,))
    assert roles.led is not None
    registry.changes.clear()
    roles.become(ME, 6)
    assert not registry.changes


def test_high_watermarks_are_known_after_a_start(roles: Roles) -> None:
    roles.become(2, 0)
    followed = roles.followed
    assert followed is not None
    followed.log.append(BATCH)
    followed.saw(len(BATCH), 0)
    roles.bench.manager.save_high_watermarks()
    roles.bench.workers.run()
    assert high_watermarks.load(roles.bench.directory.path) == {NAME: (ID, len(BATCH), 0)}
    roles.become(ME, 1)
    assert roles.led is not None and roles.led.visible_address == len(BATCH)
    (roles.bench.directory.path / high_watermarks.FILE_NAME).write_text("[[1]]")
    assert high_watermarks.load(roles.bench.directory.path) == {}


@pytest.mark.parametrize("agreed", [0, 1, 2])
def test_a_high_watermark_of_before_an_unclean_election_says_nothing_of_what_came_after(
    roles: Roles, tmp_path: Path, agreed: int
) -> None:
    """Three batches of epoch 3 were on all replicas. Then a replica led that had `agreed` of them, and this
    broker got more from it in epoch 4; the file is older than that.
    """
    roles.become(2, 3)
    followed = roles.followed
    assert followed is not None
    log, size = followed.log, len(BATCH)
    log.append_verbatim(b"".join(stored_batch(at * size, 3) for at in range(3)))
    followed.saw(3 * size, 0)
    roles.bench.manager.save_high_watermarks()
    roles.bench.workers.run()
    log.truncate(agreed * size)
    log.append_verbatim(b"".join(stored_batch(at * size, 4) for at in range(agreed, 5)))
    log.flush()
    shutil.copytree(tmp_path / "data", tmp_path / "again")
    again = ReplicaManagerBench(tmp_path / "again")
    try:
        roles = Roles(again)
        roles.become(ME, 5)
        assert roles.led is not None and roles.led.log.end_address == 5 * size
        assert roles.led.visible_address == agreed * size, "what epoch 4 wrote may be here alone"
    finally:
        again.state.partitions.close()
        again.directory.close()


def test_a_deleted_topic_ends_a_follower(roles: Roles) -> None:
    roles.become(2, 0)
    roles.bench.apply()
    roles.bench.workers.run()
    assert roles.followed is None and not list(roles.bench.directory.partitions())
    roles.bench.apply(topic(2, 0, topic_id=uuid4()))
    roles.bench.workers.run()
    assert roles.followed is not None and roles.followed.log.end_address == 0


def test_the_high_watermark_of_a_replica_that_moved_away_is_forgotten(roles: Roles) -> None:
    """The file would grow by a line for each, and beyond its bound all of it is ignored."""
    roles.become(2, 0)
    roles.become(ME, 1)
    elsewhere = TopicState("t", ID, {0: PartitionState(2, 2, (2, 3), (2,))})
    roles.bench.apply(elsewhere)
    roles.bench.workers.run()
    assert roles.led is None and roles.followed is None
    assert roles.bench.manager._roles.high_watermarks() == {}


@pytest.mark.parametrize(
    ("before", "after", "may_be_deleted"),
    [
        (((1, 2, 3), (1, 2, 3)), ((2, 3), (2, 3)), True),
        (((1, 2, 3), (1, 2, 3)), ((2, 3), (2,)), False),
        (((2, 3, 1), (2, 3)), ((2, 3), (2,)), True),  # it was being added, and another one was chosen
        (((2, 3, 1), (2,), (1,)), ((2, 3), (2,)), False),
        (((2, 3, 1), (2, 3)), ((2, 3), ()), False),
    ],
)
def test_a_replica_that_was_left_behind_goes_once_nobody_can_need_it(
    before: tuple[Any, ...], after: tuple[Any, ...], may_be_deleted: bool
) -> None:
    states = [
        PartitionState(2, epoch, replicas, isr, elr=tuple(elr[0]) if elr else ())
        for epoch, (replicas, isr, *elr) in enumerate((before, after))
    ]
    assert has_moved(states[0], states[1], ME) == may_be_deleted
    assert not has_moved(states[0], replace(states[1], leader_epoch=-1), ME)
    assert not has_moved(None, states[1], ME) and not has_moved(states[0], None, ME)
