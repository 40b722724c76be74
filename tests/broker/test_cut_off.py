"""A leader that ZooKeeper and its followers have left sends clients to ask another broker."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_replica_manager import ME, ReplicaManagerBench, Waiter
from headrace.broker.errors import Refused
from headrace.broker.handlers.replica_reads import is_readable, readable
from headrace.broker.partition import Partition
from headrace.broker.replicas.cut_off import FOLLOWERS_SILENT_MS, CutOff
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import PartitionName
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchRequest
from headrace.wire.records import Record, encode_batch

ID = uuid4()
NAME = PartitionName("t", 0)
BATCH = encode_batch([Record(0, 1_000, None, b"v" * 100)])
LONG_MS = FOLLOWERS_SILENT_MS + 1


class Cut:
    """Broker 1 leads t-0; its followers 2 and 3 are in sync. Time is `now_ms`."""

    def __init__(self, bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.is_connected = True
        self.bench = bench
        monkeypatch.setattr(bench.state, "monotonic_ms", lambda: self.now_ms)
        self.check = CutOff(bench.state, lambda: self.is_connected).check
        self.become(in_sync=(1, 2, 3))

    def become(self, *, in_sync: tuple[int, ...]) -> None:
        state = PartitionState(ME, 0, (1, 2, 3), in_sync)
        self.bench.apply(TopicState("t", ID, {0: state}))
        self.bench.workers.run()

    @property
    def led(self) -> Partition:
        found = self.bench.state.partitions.get(*NAME)
        assert found is not None
        return found

    def asks(self, follower: int) -> None:
        assert self.led.replicas is not None
        self.led.replicas.asked(follower, 0, self.led.log.end_address, self.now_ms, 1)

    def passes(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        self.check()

    def leader_in_metadata(self) -> bool:
        return (ME, *NAME) not in self.bench.state.leaderless()


@pytest.fixture
def cut(bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch) -> Cut:
    return Cut(bench, monkeypatch)


def code_of(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        call(*arguments)
    return refused.value.code


def test_clients_are_sent_away_when_zookeeper_and_all_followers_are_gone(cut: Cut) -> None:
    cut.is_connected = False
    cut.passes(LONG_MS)
    state, led = cut.bench.state, cut.led
    assert code_of(state.check_not_cut_off, led) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(readable, state, NAME, FetchRequest(0, 1, 1, [])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not led.is_plain and not is_readable(state, led) and not cut.leader_in_metadata()


def test_followers_may_come_back_and_then_clients_may_too(cut: Cut) -> None:
    cut.is_connected = False
    cut.passes(LONG_MS)
    state = cut.bench.state
    assert readable(state, NAME, FetchRequest(0, 1, 1, [], replica_id=2)) is cut.led
    cut.asks(2)
    cut.check()
    state.check_not_cut_off(cut.led)
    assert cut.led.is_plain and is_readable(state, cut.led) and cut.leader_in_metadata()


def test_when_zookeeper_answers_again_its_view_decides(cut: Cut) -> None:
    cut.is_connected = False
    cut.passes(LONG_MS)
    cut.is_connected = True
    cut.check()
    cut.bench.state.check_not_cut_off(cut.led)
    assert cut.leader_in_metadata()


@pytest.mark.parametrize("asking", [(2,), (3,), (2, 3)])
def test_a_leader_goes_on_without_zookeeper_while_a_follower_asks(cut: Cut, asking: tuple[int, ...]) -> None:
    cut.is_connected = False
    for _ in range(10):
        for follower in asking:
            cut.asks(follower)
        cut.passes(1_000)
        cut.bench.state.check_not_cut_off(cut.led)


def test_silent_followers_alone_are_no_reason(cut: Cut) -> None:
    cut.passes(100 * LONG_MS)
    cut.bench.state.check_not_cut_off(cut.led)
    assert cut.led.is_plain


def test_a_leader_that_is_alone_in_sync_goes_on(cut: Cut) -> None:
    """Nobody else can be elected, unless uncleanly."""
    cut.bench.apply(TopicState("t", ID, {0: PartitionState(2, 1, (1, 2, 3), (2,))}))
    cut.bench.workers.run()
    cut.bench.apply(TopicState("t", ID, {0: PartitionState(ME, 2, (1, 2, 3), (1,))}))
    cut.bench.workers.run()
    cut.is_connected = False
    cut.passes(LONG_MS)
    cut.bench.state.check_not_cut_off(cut.led)


def test_producers_that_wait_for_all_replicas_are_sent_away_at_once(cut: Cut) -> None:
    led, partitions = cut.led, cut.bench.state.partitions
    led.log.append(BATCH)
    waiter = Waiter(len(BATCH))
    partitions.staged(led, waiter, 1)
    partitions.commit()
    cut.bench.workers.run()
    assert waiter.codes == []
    cut.is_connected = False
    cut.passes(LONG_MS)
    assert waiter.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    cut.passes(LONG_MS)
    assert waiter.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_batch_that_was_staged_just_before_waits_no_longer_either(cut: Cut) -> None:
    led, partitions = cut.led, cut.bench.state.partitions
    led.log.append(BATCH)
    waiter = Waiter(len(BATCH))
    partitions.staged(led, waiter, 1)
    cut.is_connected = False
    cut.passes(LONG_MS)
    partitions.commit()
    cut.bench.workers.run()
    assert waiter.codes == []
    cut.check()
    assert waiter.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@given(st.lists(st.floats(0, 10_000), min_size=2, max_size=2), st.floats(0, 20_000))
def test_one_follower_that_asks_is_enough(asked_ms: list[float], now_ms: float) -> None:
    replicas = InSyncReplicas(
        1, (1, 2, 3), (1, 2, 3), epoch_start=0, high_watermark=0, min_in_sync=2, now_ms=0.0
    )
    for replica, at_ms in zip((2, 3), asked_ms, strict=True):
        replicas.asked(replica, 0, 0, at_ms, 1)
    assert replicas.has_been_left(now_ms, 3_000) == (now_ms - max(asked_ms) > 3_000)
