"""A broker that is asked to stop gives its partitions away first."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.leadership.config_of import config_of
from headrace.broker.leadership.departure import (
    LED_WAIT_MAX_S,
    announce_and_give_away,
    give_away,
    wait_until_led,
)
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry

WAIT_MAX_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def registered(session: ZooKeeperSession, *ids: int, handled: tuple[int, ...]) -> None:
    """Registers brokers, of which a controller has seen the `handled` ones."""
    brokers = BrokerRegistry(session)
    for broker_id in ids:
        brokers.register(BrokerRegistration(broker_id, "127.0.0.1", 9092, "east"))
    HandledBrokers(session).note([each for each in brokers.live() if each.broker_id in handled], {})


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster(count=3)


@pytest.fixture
def session(cluster: BrokerCluster) -> Iterator[ZooKeeperSession]:
    with cluster.zookeeper.session() as session:
        yield session


def test_a_broker_that_stops_gives_away_what_others_can_lead(
    cluster: BrokerCluster, session: ZooKeeperSession
) -> None:
    registry = TopicRegistry(session)
    replicas = {0: (1, 2, 3), 1: (2, 1), 2: (1,), 3: (1, 9)}  # there is no broker 9
    states = registry.create("t", uuid4(), replicas).partitions
    alone = PartitionState(1, 0, (1, 9), (1,))
    registry.set_partition_state("t", 3, alone, expected=states[3])
    wait_for(lambda: "t-3: open" in cluster[1].output())
    seen: list[dict[int, PartitionState]] = []

    def look() -> None:
        """Notes the states of the moment before the broker's node ends."""
        while session.exists(znodes.broker(1)) is not None:
            seen.append(registry.get("t").partitions)

    looking = threading.Thread(target=look)
    looking.start()
    assert cluster[1].stop() == 0
    looking.join()
    before_its_end = seen[-1]
    assert (before_its_end[0].leader, before_its_end[0].leader_epoch) == (2, 1)
    assert before_its_end[1].leader == 2
    assert before_its_end[2] == PartitionState(1, 0, (1,), (1,)), "there is nobody else"
    assert before_its_end[3] == alone, "the other replica is not in sync"
    wait_for(lambda: [registry.get("t").partitions[p].isr for p in (0, 1)] == [(2, 3), (2,)])
    said = re.search(r"broker 1 gave 1 partitions to other leaders in [0-9.]+ s, (\d)", cluster[1].output())
    assert said is not None and said[1] == "0", "all of them were served by then"
    wait_for(lambda: registry.get("t").partitions[3].leader == -1)
    cluster[1].start()
    assert registry.get("t").partitions[3] == PartitionState(1, 2, (1, 9), (1,)), "before it was ready"


def test_a_second_signal_does_not_wait(cluster: BrokerCluster, session: ZooKeeperSession) -> None:
    """Broker 2 hangs, and does not say that it leads."""
    TopicRegistry(session).create("t", uuid4(), {0: (1, 2)})
    wait_for(lambda: "t-0: open" in cluster[1].output())
    cluster[2].send_signal(signal.SIGSTOP)
    cluster[1].send_signal(signal.SIGTERM)
    wait_for(lambda: TopicRegistry(session).get("t").partitions[0].leader == 2)
    begun_s = time.monotonic()
    cluster[1].send_signal(signal.SIGTERM)
    wait_for(lambda: "broker 1 stops" in cluster[1].output())
    assert time.monotonic() - begun_s < LED_WAIT_MAX_S


def test_without_controlled_shutdown_nothing_is_given_away(broker_cluster: StartCluster) -> None:
    settings = {"controlled.shutdown.enable": "false", "zookeeper.session.timeout.ms": "2000"}
    cluster = broker_cluster(count=2, config=settings)
    with cluster.zookeeper.session() as session:
        registry = TopicRegistry(session)
        registry.create("t", uuid4(), {0: (1, 2)})
        wait_for(lambda: "t-0: open" in cluster[1].output())
        cluster[1].stop()
        wait_for(lambda: registry.get("t").partitions[0] == PartitionState(2, 1, (1, 2), (2,)))
        assert "gave" not in cluster[1].output()


def test_a_change_by_others_meanwhile_is_taken_into_account(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        topic = registry.create("t", uuid4(), {0: (1, 2, 3), 1: (1, 2, 3)})
        registered(session, 2, 3, handled=(2, 3))
        shrunk = PartitionState(1, 0, (1, 2, 3), (1, 3))
        registry.set_partition_state("t", 0, shrunk, expected=topic.partitions[0])
        changes = give_away(registry, 1, {"t": topic}, [1, 2, 3], config_of(BrokerConfig()))
        assert sorted(change.partition for change in changes) == [0, 1]
        assert registry.get("t").partitions == {
            0: PartitionState(3, 1, (1, 2, 3), (3,), elr=(1,)),
            1: PartitionState(2, 1, (1, 2, 3), (2, 3)),
        }


def test_a_broker_that_came_back_unseen_by_a_controller_is_given_nothing(zookeeper: ZooKeeperRoom) -> None:
    """Its disk may be an empty one, and it is still in the in-sync set: who follows it would lose all."""
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        registered(session, 2, 3, handled=(3,))
        topic = registry.create("t", uuid4(), {0: (1, 2, 3), 1: (1, 2)})
        changes = give_away(registry, 1, {"t": topic}, [1, 2, 3], config_of(BrokerConfig()))
        assert [change.partition for change in changes] == [0]
        assert registry.get("t").partitions == {
            0: PartitionState(3, 1, (1, 2, 3), (2, 3)),
            1: PartitionState(1, 0, (1, 2), (1, 2)),
        }


def test_two_that_stop_give_each_other_nothing(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session, zookeeper.session() as other:
        registry, brokers = TopicRegistry(session), BrokerRegistry(session)
        registered(session, 1, 3, handled=())
        registered(other, 2, handled=(1, 2, 3))
        before = registry.create("t", uuid4(), {0: (1, 2, 3), 1: (1, 2), 2: (2, 1), 3: (3, 1, 2)}).partitions
        BrokerRegistry(other).announce_stop(2)
        changes = announce_and_give_away(registry, brokers, 1, config_of(BrokerConfig()), frozenset())
        assert sorted(change.partition for change in changes) == [0, 3]
        assert registry.get("t").partitions == {
            0: PartitionState(3, 1, (1, 2, 3), (2, 3)),
            1: before[1],
            2: before[2],
            3: PartitionState(3, 0, (3, 1, 2), (3, 2)),
        }
        assert [each.is_stopping for each in brokers.live()] == [True, True, False]


def test_a_broker_that_cannot_say_that_it_stops_gives_its_partitions_away_all_the_same(
    zookeeper: ZooKeeperRoom, caplog: pytest.LogCaptureFixture
) -> None:
    with zookeeper.session() as session, zookeeper.session() as stranger:
        registry, brokers = TopicRegistry(session), BrokerRegistry(session)
        registered(session, 1, 2, handled=(1, 2))
        registry.create("t", uuid4(), {0: (1, 2)})
        stranger.create(znodes.stopping(1), b"", make_parents=True)
        announce_and_give_away(registry, brokers, 1, config_of(BrokerConfig()), frozenset())
        assert registry.get("t").partitions[0] == PartitionState(2, 1, (1, 2), (2,))
        assert "broker 1 may be taken back into in-sync sets while it stops" in caplog.text


def test_the_wait_for_new_leaders_ends_when_all_lead_or_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    old = PartitionState(1, 0, (1, 2), (1, 2))
    changes = [PartitionChange("t", at, old, PartitionState(2, 1, (1, 2), (2,))) for at in range(4)]
    changes.append(
        PartitionChange("u", 0, PartitionState(3, 0, (3, 1), (3, 1)), PartitionState(3, 0, (3, 1), (3,)))
    )
    asked: list[list[int]] = []

    def one_more_each_time(leader: int, topic: str, indexes: list[int]) -> list[int]:
        assert (leader, topic) == (2, "t"), "u keeps its leader"
        asked.append(indexes)
        return indexes[:1]

    assert wait_until_led(changes, one_more_each_time) == 0
    assert asked == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert wait_until_led(changes, lambda *_: []) == 4
    assert LED_WAIT_MAX_S <= now[0] < LED_WAIT_MAX_S + 1
