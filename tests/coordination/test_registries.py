"""The registries of brokers, topics, producer ids and mirrors on a real ZooKeeper, also concurrently."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom, ZooKeeperServer, room_on
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.errors import (
    BadVersionError,
    CorruptNodeError,
    InvalidTopicError,
    NodeHeldError,
    TopicExistsError,
    TopicNotRegisteredError,
)
from headrace.coordination.fronts import Front, FrontRegistry
from headrace.coordination.mirrors import MirrorMap, MirrorSource
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.topics import PartitionState, TopicRegistry, TopicState


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def registration(broker_id: int, port: int = 9092) -> BrokerRegistration:
    return BrokerRegistration(broker_id, f"127.1.0.1{broker_id}", port, "east")


def without_epochs(brokers: list[BrokerRegistration]) -> list[BrokerRegistration]:
    return [replace(broker, epoch=0) for broker in brokers]


def test_brokers_come_and_go(zookeeper: ZooKeeperRoom) -> None:
    seen: list[list[BrokerRegistration]] = []
    with zookeeper.session() as one, zookeeper.session() as two:
        assert BrokerRegistry(one).live() == []
        watching = BrokerRegistry(two)
        watching.watch(lambda brokers: seen.append(without_epochs(brokers)))
        held = BrokerRegistry(one).register(registration(1))
        BrokerRegistry(two).register(registration(2))
        wait_for(lambda: seen[-1:] == [[registration(1), registration(2)]])
        assert without_epochs(watching.live()) == [registration(1), registration(2)]
        first = {broker.broker_id: broker.epoch for broker in watching.live()}
        assert 0 < first[1] < first[2], "each registration has a later broker epoch"
        with pytest.raises(NodeHeldError, match=r"/brokers/ids/1 is held by another live session"):
            watching.register(registration(1), wait_s=0.2)
        held.release()
        wait_for(lambda: seen[-1] == [registration(2)])
        # The same id on another port: the children's names are unchanged, the watch must still report it.
        BrokerRegistry(one).register(registration(1, port=9999))
        wait_for(lambda: seen[-1] == [registration(1, port=9999), registration(2)])
        assert watching.live()[0].epoch > first[2]
        again, two_ = watching.live()
        assert two_.epoch == first[2]
        zookeeper.expire(one)
        wait_for(lambda: [broker.broker_id for broker in watching.live()] == [1, 2])
        assert watching.live()[0].epoch > again.epoch, "a new session is a new registration"


def test_a_registration_has_a_rack(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry = BrokerRegistry(session)
        registry.register(registration(1))
        registry.register(replace(registration(2), rack="r7"))
        path = znodes.broker(3)
        session.create(path, b'{"version":1,"host":"127.1.0.13","port":9092,"datacenter":"east"}')
        found = {broker.broker_id: (broker.rack, broker.shown_rack) for broker in registry.live()}
        assert found == {1: ("127.1.0.11", "east"), 2: ("r7", "r7"), 3: ("127.1.0.13", "east")}
        session.set(path, b'{"version":1,"host":"h","port":9092,"datacenter":"east","rack":{"a":1}}')
        assert [broker.broker_id for broker in registry.live()] == [1, 2]


def test_a_broker_says_that_it_stops(zookeeper: ZooKeeperRoom) -> None:
    seen: list[list[int]] = []
    with zookeeper.session() as one, zookeeper.session() as two:
        BrokerRegistry(two).watch(
            lambda live: seen.append([each.broker_id for each in live if each.is_stopping])
        )
        held = [BrokerRegistry(one).register(registration(1)), BrokerRegistry(two).register(registration(2))]
        as_registered = one.get(znodes.broker(1))
        wait_for(lambda: bool(seen))
        assert not any(seen)
        BrokerRegistry(one).announce_stop(1)
        wait_for(lambda: seen[-1] == [1])
        assert one.get(znodes.broker(1)) == as_registered, "brokers of earlier versions read it as before"
        assert b"stop" not in as_registered.data
        with pytest.raises(NodeHeldError, match="/headrace/stopping/1"):
            BrokerRegistry(two).announce_stop(1)
        zookeeper.expire(one)
        wait_for(lambda: [each.is_stopping for each in BrokerRegistry(two).live()] == [True, False])
        held[0].release()
        wait_for(lambda: seen[-1] == [])
        with zookeeper.session() as successor:
            BrokerRegistry(successor).register(registration(1))
            assert not any(each.is_stopping for each in BrokerRegistry(two).live()), "that was said before"


def test_who_writes_badly_that_a_broker_stops_stops_nobody(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as broker, zookeeper.session() as stranger:
        registry = BrokerRegistry(broker)
        registry.register(registration(1))
        for name in ("x", "9" * 5_000, "-1", "1", "7"):
            stranger.create(f"{znodes.STOPPING}/{name}", b"[" * 100, make_parents=True)
        document = b'{"version":1,"host":"h","port":9092,"datacenter":"east","is_stopping":true}'
        stranger.create(znodes.broker(2), document)
        assert [(each.broker_id, each.is_stopping) for each in registry.live()] == [(1, False), (2, False)]


def test_fronts_are_announced_marked_and_released(zookeeper: ZooKeeperRoom) -> None:
    seen: list[list[Front]] = []
    with zookeeper.session() as broker, zookeeper.session() as balancer:
        FrontRegistry(balancer).watch(seen.append)
        held = FrontRegistry(broker).announce(Front(1, "127.1.0.11", 9093))
        wait_for(lambda: seen[-1:] == [[Front(1, "127.1.0.11", 9093)]])
        assert FrontRegistry(balancer).live() == [Front(1, "127.1.0.11", 9093)]
        marks = [FrontRegistry(balancer).mark(each, "b-1") for each in (1, 11)]
        assert FrontRegistry(broker).balancers_of(1) == ["b-1"]
        held.release()
        wait_for(lambda: seen[-1] == [])
        marks[0].release()
        assert FrontRegistry(broker).balancers_of(1) == []
        assert FrontRegistry(broker).balancers_of(11) == ["b-1"]
        FrontRegistry(broker).mark(11, "bb-1")
        FrontRegistry(broker).forget("b")
        assert FrontRegistry(broker).balancers_of(11) == ["bb-1"]


BAD_ADDRESSES = [
    (b"not json", "expected JSON, found b'not json'"),
    (b'{"version":1,"nonsense":2}', "not a broker's "),
    (b'{"version":1,"host":"127.1.0.13","datacenter":"east"}', "not a broker's "),
    (b'{"version":1,"host":"a\\nset server x","port":1,"datacenter":"east"}', "is not a host"),
    (b'{"version":1,"host":"a;b","port":1,"datacenter":"east"}', "'a;b' is not a host"),
    (b'{"version":1,"host":"-x","port":1,"datacenter":"east"}', "'-x' is not a host"),
    (b'{"version":1,"host":7,"port":1,"datacenter":"east"}', "'7' is not a host"),
    (b'{"version":1,"host":"a","port":0,"datacenter":"east"}', "'0' is not a port"),
    (b'{"version":1,"host":"a","port":65536,"datacenter":"east"}', "'65536' is not a port"),
]


@pytest.mark.parametrize(("data", "problem"), BAD_ADDRESSES)
def test_a_damaged_registration_is_named_and_hides_no_other(
    zookeeper: ZooKeeperRoom, caplog: pytest.LogCaptureFixture, data: bytes, problem: str
) -> None:
    seen: list[list[Front]] = []
    with zookeeper.session() as session:
        session.create(znodes.broker(7), data, make_parents=True)
        session.create(znodes.front(7), data.replace(b',"datacenter":"east"', b""), make_parents=True)
        BrokerRegistry(session).register(registration(8))
        FrontRegistry(session).watch(seen.append)
        FrontRegistry(session).announce(Front(8, "127.1.0.11", 9093))
        assert without_epochs(BrokerRegistry(session).live()) == [registration(8)]
        wait_for(lambda: seen[-1:] == [[Front(8, "127.1.0.11", 9093)]])
    for path in (znodes.broker(7), znodes.front(7)):
        assert any(path in line and problem in line for line in caplog.messages)


def test_topic_life(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        assert registry.list() == {}
        topic_id = uuid4()
        made = registry.create("page-view", topic_id, {0: (1, 2), 1: (2, 1)}, {"retention.ms": "1000"})
        assert made.partitions[1] == PartitionState(leader=2, leader_epoch=0, replicas=(2, 1), isr=(2, 1))
        assert registry.get("page-view") == made == registry.list()["page-view"]
        with pytest.raises(TopicExistsError, match="'page-view' exists already"):
            registry.create("page-view", uuid4(), {0: (1,)})
        assert registry.create("page-view", topic_id, {0: (1, 2), 1: (2, 1)}) is not None, (
            "same id: the same call again"
        )

        registry.add_partitions("page-view", {2: (1,)})
        assert registry.list()["page-view"].partitions[2].leader == 1
        with pytest.raises(InvalidTopicError, match="has 3 partitions; number new ones from 3"):
            registry.add_partitions("page-view", {2: (1,)})
        registry.set_config("page-view", {"flush.ms": "5"})
        assert registry.list()["page-view"].config == {"flush.ms": "5"}

        moved = PartitionState(leader=2, leader_epoch=1, replicas=(1, 2), isr=(2,))
        registry.set_partition_state("page-view", 0, moved, expected=made.partitions[0])
        assert registry.list()["page-view"].partitions[0] == moved
        with pytest.raises(BadVersionError, match=r"leader_epoch=1.*expected.*leader_epoch=0"):
            registry.set_partition_state("page-view", 0, made.partitions[1], expected=made.partitions[0])

        registry.delete("page-view")
        assert registry.list() == {}
        for call in (registry.get, registry.delete, lambda name: registry.set_config(name, {})):
            with pytest.raises(TopicNotRegisteredError, match="no topic 'page-view'"):
                call("page-view")
        assert session.exists(znodes.topic_config("page-view")) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250])
def test_invalid_topic_names_are_refused(zookeeper: ZooKeeperRoom, name: str) -> None:
    with zookeeper.session() as session, pytest.raises(InvalidTopicError, match="is not a topic name"):
        TopicRegistry(session).create(name, uuid4(), {0: (1,)})


@pytest.mark.parametrize("replicas", [{}, {1: (1,)}, {0: ()}, {0: (1, 1)}])
def test_invalid_replicas_are_refused(zookeeper: ZooKeeperRoom, replicas: dict[int, tuple[int, ...]]) -> None:
    with zookeeper.session() as session, pytest.raises(InvalidTopicError):
        TopicRegistry(session).create("t", uuid4(), replicas)


def test_one_watch_reports_every_change_of_every_topic(zookeeper: ZooKeeperRoom) -> None:
    seen: list[dict[str, TopicState]] = []
    with zookeeper.session() as session, zookeeper.session() as writer:
        TopicRegistry(session).watch(seen.append)
        wait_for(lambda: seen == [{}])
        registry = TopicRegistry(writer)
        for i in range(20):
            registry.create(f"t{i}", uuid4(), {0: (1,)})
        wait_for(lambda: len(seen[-1]) == 20)
        registry.set_config("t3", {"a": "b"})
        wait_for(lambda: seen[-1]["t3"].config == {"a": "b"})
        registry.add_partitions("t4", {1: (2,)})
        wait_for(lambda: len(seen[-1]["t4"].partitions) == 2)
        led = PartitionState(leader=-1, leader_epoch=1, replicas=(1,), isr=())
        registry.set_partition_state("t5", 0, led, expected=registry.get("t5").partitions[0])
        wait_for(lambda: seen[-1]["t5"].partitions[0] == led)
        zookeeper.expire(session)
        registry.delete("t6")
        wait_for(lambda: "t6" not in seen[-1])


def test_a_damaged_topic_neither_hides_the_others_nor_is_taken_for_deleted(
    zookeeper: ZooKeeperRoom, caplog: pytest.LogCaptureFixture
) -> None:
    with zookeeper.session() as session:
        topics = TopicRegistry(session)
        for name in ("damaged", "whole"):
            topics.create(name, uuid4(), {0: (1,)})
        before = topics.list()
        path = znodes.topic("damaged")
        document = session.get(path).data
        session.set(path, b"\xff{")
        session.create(znodes.topic("stranger"), b"[]")
        assert topics.list() == before
        assert "stays as it was" in caplog.text and "stranger is left out" in caplog.text
        assert TopicRegistry(session).list().keys() == {"whole"}
        session.set(path, document)
        assert topics.list() == before


def test_concurrent_creators_make_one_topic(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:

        def create(i: int) -> str:
            try:
                TopicRegistry((one, two)[i % 2]).create("t", uuid4(), dict.fromkeys(range(4), (i,)))
            except TopicExistsError:
                return "exists"
            return "made"

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(create, range(8)))
        assert sorted(outcomes) == ["exists"] * 7 + ["made"]
        owners = {state.leader for state in TopicRegistry(one).get("t").partitions.values()}
        assert len(owners) == 1, "all partitions come from the call that made the topic"


def test_a_producer_id_is_allocated_once(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two, ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(lambda i: allocate_block((one, two)[i % 2], 10), range(30)))
        ids = [producer_id for block in blocks for producer_id in block]
        assert sorted(ids) == list(range(min(ids), min(ids) + 300))
        with pytest.raises(ValueError, match="at least one id"):
            allocate_block(one, 0)
        one.set(znodes.PRODUCER_ID_BLOCK, b'{"version":1,"block_start":"0"}')
        with pytest.raises(CorruptNodeError, match="no usable block_end"):
            allocate_block(one)


def test_a_zookeeper_that_is_lost_and_made_again_gives_no_producer_the_id_of_one_that_lives(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Records of one could pass for repetitions of the other's: acknowledged, and not stored."""
    ids: list[int] = []
    for life in range(3):
        with room_on(zookeeper_server).session() as session:
            ids += [each for _ in range(life + 1) for each in allocate_block(session, 10)]
        time.sleep(0.1)
    assert len(set(ids)) == len(ids) == 60


def test_mirror_partitions_are_numbered_in_order_of_claims(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:
        east, west = MirrorMap(one), MirrorMap(two)
        assert east.sources("t") == []
        assert east.claim("east", "t", 2) == [0, 1]
        assert west.claim("west", "t", 3) == [2, 3, 4]
        assert east.claim("east", "t", 3) == [0, 1, 5]
        assert east.claim("east", "t", 2) == [0, 1]
        assert len(west.sources("t")) == 6
        assert west.sources("t")[5] == MirrorSource("east", 2)
        assert west.topics() == ["t"]


def test_concurrent_mirror_claims_never_share_a_partition(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:
        barrier = threading.Barrier(6)

        def claim(i: int) -> list[int]:
            barrier.wait()
            return MirrorMap((one, two)[i % 2]).claim(f"dc{i}", "t", 4)

        with ThreadPoolExecutor(6) as pool:
            given = list(pool.map(claim, range(6)))
        assert sorted(p for share in given for p in share) == list(range(24))
        sources = MirrorMap(one).sources("t")
        assert all(
            sources[p] == MirrorSource(f"dc{i}", n)
            for i, share in enumerate(given)
            for n, p in enumerate(share)
        )
