"""A leader that ZooKeeper and its followers have left sends clients to ask another broker; a follower that
does not hear its leader sends consumers to it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_replica_manager import ME, ReplicaManagerBench, Waiter
from headrace.broker.errors import Refused
from headrace.broker.handlers import metadata
from headrace.broker.handlers.replica_reads import is_readable, nearer, readable
from headrace.broker.partition import Partition
from headrace.broker.replicas.cut_off import FOLLOWERS_SILENT_MS, CutOff
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.replication import RACK_AWARE
from headrace.coordination.brokers import BrokerRegistration
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
        self.check = CutOff(
            bench.state, bench.fetchers, bench.followed, lambda: self.is_connected, lambda *_: None
        ).check
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
    assert code_of(readable, state, NAME, FetchRequest(0, 1, 1, []), 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not led.is_plain and not is_readable(state, led, 0) and not cut.leader_in_metadata()


def test_followers_may_come_back_and_then_clients_may_too(cut: Cut) -> None:
    cut.is_connected = False
    cut.passes(LONG_MS)
    state = cut.bench.state
    assert readable(state, NAME, FetchRequest(0, 1, 1, [], replica_id=2), 0) is cut.led
    cut.asks(2)
    cut.check()
    state.check_not_cut_off(cut.led)
    assert cut.led.is_plain and is_readable(state, cut.led, 0) and cut.leader_in_metadata()


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


# --- metadata ---


def listed(cut: Cut, *brokers: int) -> set[int]:
    """The brokers that Metadata names, of those that are registered."""
    state = cut.bench.state
    state.view = state.view.with_brokers(
        [BrokerRegistration(each, "127.0.0.1", 9092, "test", "", 7) for each in brokers]
    )
    request = cast(Any, SimpleNamespace(version=12, body=SimpleNamespace(topics=())))
    return {broker["node_id"] for broker in cast(Any, metadata.handle(state, request))["brokers"]}


def test_a_broker_that_leads_nothing_else_is_not_named_where_there_are_others(cut: Cut) -> None:
    """librdkafka asks where it is connected: here alone, it would be told for ever that nobody leads."""
    assert listed(cut, 1, 2, 3) == {1, 2, 3}
    cut.is_connected = False
    cut.passes(LONG_MS)
    assert listed(cut, 1, 2, 3) == {2, 3}
    assert listed(cut, 1) == {1}
    cut.asks(2)
    cut.check()
    assert listed(cut, 1, 2, 3) == {1, 2, 3}


def test_a_broker_that_leads_a_partition_without_followers_is_named(cut: Cut) -> None:
    alone = TopicState("alone", uuid4(), {0: PartitionState(ME, 0, (ME,), (ME,))})
    cut.bench.apply(TopicState("t", ID, {0: PartitionState(ME, 0, (1, 2, 3), (1, 2, 3))}), alone)
    cut.bench.workers.run()
    cut.is_connected = False
    cut.passes(LONG_MS)
    assert not cut.leader_in_metadata() and listed(cut, 1, 2, 3) == {1, 2, 3}


# --- consumers that read from a follower ---

NAMES_RACK = FetchRequest(500, 1, 1 << 20, [], rack_id="rack-1")


@pytest.fixture
def followed(cut: Cut) -> FollowedPartition:
    """Broker 2 leads now. This one has a batch that is below the high watermark."""
    bench = cut.bench
    bench.state.find_followed = bench.followed.get
    bench.apply(TopicState("t", ID, {0: PartitionState(2, 1, (1, 2, 3), (1, 2, 3))}))
    bench.workers.run()
    found = bench.followed.get(NAME)
    assert found is not None
    found.log.append(BATCH)
    found.saw(len(BATCH), 0)
    return found


def test_a_follower_that_does_not_hear_its_leader_keeps_no_consumer_waiting(
    cut: Cut, followed: FollowedPartition
) -> None:
    state, end = cut.bench.state, len(BATCH)
    reader = Reader()
    followed.readers[cast(Any, reader)] = None
    cut.passes(LONG_MS / 2)
    assert readable(state, NAME, NAMES_RACK, end) is followed and is_readable(state, followed, end)
    cut.passes(LONG_MS)
    assert reader.looks == 1, "a fetch that waits already looks again, and ends"
    assert code_of(readable, state, NAME, NAMES_RACK, end) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not is_readable(state, followed, end)
    assert readable(state, NAME, NAMES_RACK, 0) is followed, "what it has may be read all the same"
    assert is_readable(state, followed, 0)
    cut.passes(LONG_MS)
    assert reader.looks == 1
    followed.heard_ms = cut.now_ms
    cut.check()
    assert readable(state, NAME, NAMES_RACK, end) is followed and is_readable(state, followed, end)


class Reader:
    """A consumer's fetch that waits at a follower."""

    looks = 0

    def more(self, _: object) -> None:
        self.looks += 1


def test_a_leader_sends_no_consumer_to_a_silent_follower(cut: Cut) -> None:
    """It is in sync for `replica.lag.time.max.ms` still, and would send the consumer back."""
    state = cut.bench.state
    racks = [BrokerRegistration(each, "127.0.0.1", 9092, "test", f"rack-{each}", 7) for each in (1, 2, 3)]
    state.view = state.view.with_brokers(racks)
    state.config = BrokerConfig({"replica.selector.class": RACK_AWARE})
    near = FetchRequest(500, 1, 1 << 20, [], rack_id="rack-2")
    assert nearer(state, cut.led, near, 0) is None, "it has not asked yet"
    cut.asks(2)
    assert nearer(state, cut.led, near, 0) == 2
    cut.passes(LONG_MS)
    assert nearer(state, cut.led, near, 0) is None
    session = SimpleNamespace(asked_ms=cut.now_ms, refresh=lambda: None, close=lambda: None)
    state.follower_sessions[2] = session
    assert nearer(state, cut.led, near, 0) == 2, "by its session, which names what is new alone"
