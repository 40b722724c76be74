"""A broker that stops says so first: nobody takes it back into in-sync sets, or lets it lead (KIP-841)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.cluster import ClusterView
from headrace.broker.errors import Refused
from headrace.broker.leadership.administration import LeadershipAdmin
from headrace.broker.leadership.config_of import config_of
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.wire.errors import ErrorCode

WAIT_MAX_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster(count=3)


@pytest.fixture
def session(cluster: BrokerCluster) -> Iterator[ZooKeeperSession]:
    with cluster.zookeeper.session() as session:
        yield session


def test_a_broker_that_stops_is_not_taken_back(cluster: BrokerCluster, session: ZooKeeperSession) -> None:
    """It waits for broker 2, which hangs, and follows broker 3 meanwhile."""
    registry = TopicRegistry(session)
    registry.create("t", uuid4(), {0: (1, 2), 1: (3, 1), 2: (3, 1)})
    wait_for(lambda: "t-0: open" in cluster[1].output())
    wait_for(lambda: all(len(each.isr) == 2 for each in registry.get("t").partitions.values()))
    cluster[2].send_signal(signal.SIGSTOP)
    sets: list[tuple[int, ...]] = []

    def look() -> None:
        """Notes the in-sync sets of its time."""
        while session.exists(znodes.broker(1)) is not None:
            sets.extend(registry.get("t").partitions[index].isr for index in (1, 2))

    looking = threading.Thread(target=look)
    looking.start()
    assert cluster[1].stop() == 0
    looking.join()
    cluster[2].send_signal(signal.SIGCONT)
    assert (3,) in sets, "it has left"
    assert all(1 not in each for each in sets[sets.index((3,)) + 2 :]), "and is not taken back"
    cluster[1].start()
    wait_for(lambda: all(1 in registry.get("t").partitions[index].isr for index in (1, 2)))


def test_a_broker_that_died_while_it_stopped_joins_when_it_is_back(
    cluster: BrokerCluster, session: ZooKeeperSession
) -> None:
    """The session in which it said that it stops lives on."""
    registry = TopicRegistry(session)
    registry.create("t", uuid4(), {0: (1, 2), 1: (3, 1)})
    wait_for(lambda: "t-0: open" in cluster[1].output())
    cluster[2].send_signal(signal.SIGSTOP)
    cluster[1].send_signal(signal.SIGTERM)
    wait_for(lambda: registry.get("t").partitions[1].isr == (3,))
    said = session.exists(znodes.stopping(1))
    assert said is not None
    cluster[1].kill()
    cluster[2].send_signal(signal.SIGCONT)
    cluster[1].start()
    wait_for(lambda: all(1 in each.isr for each in registry.get("t").partitions.values()))
    assert session.exists(znodes.stopping(1)) is None
    assert [each.is_stopping for each in BrokerRegistry(session).live()] == [False] * 3


def test_who_stops_is_given_nothing_to_lead_on_request(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry, brokers = TopicRegistry(session), BrokerRegistry(session)
        for broker_id in (1, 2):
            brokers.register(BrokerRegistration(broker_id, "127.0.0.1", 9092, "east"))
        registry.create("t", uuid4(), {0: (1, 2)}, stopping={1})
        registry.add_partitions("t", {1: (2, 1), 2: (1,)}, stopping={1})
        made = registry.get("t").partitions
        assert made == {
            0: PartitionState(2, 0, (1, 2), (2,)),
            1: PartitionState(2, 0, (2, 1), (2,)),
            2: PartitionState(1, 0, (1,), (1,)),
        }
        both = PartitionState(2, 0, (1, 2), (2, 1))
        registry.set_partition_state("t", 0, both, expected=made[0])
        HandledBrokers(session).note(brokers.live(), {})

        def admin() -> LeadershipAdmin:
            view = ClusterView().with_brokers(brokers.live())
            return LeadershipAdmin(registry, lambda: view, lambda: frozenset(), config_of(BrokerConfig()))

        def asked() -> Refused | None:
            return admin().elect_preferred("t", [0])[0]

        brokers.announce_stop(1)
        refused = asked()
        assert refused is not None and str(refused) == "broker 1 stops now"
        assert refused.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert registry.get("t").partitions[0] == both
        registry.create("lost", uuid4(), {0: (9, 1, 2)})
        dead = PartitionState(9, 0, (9, 1, 2), (9,))
        registry.set_partition_state("lost", 0, dead, expected=registry.get("lost").partitions[0])
        assert admin().elect_unclean("lost", [0]) == {0: None}
        assert registry.get("lost").partitions[0].leader == 2
        session.delete(znodes.stopping(1))
        assert asked() is None
        assert registry.get("t").partitions[0] == PartitionState(1, 1, (1, 2), (2, 1))


def test_three_brokers_that_stop_at_once_come_back_with_leaders(
    cluster: BrokerCluster, session: ZooKeeperSession
) -> None:
    registry = TopicRegistry(session)
    replicas = {index: ((1, 2, 3), (2, 3, 1), (3, 1, 2))[index % 3] for index in range(12)}
    registry.create("t", uuid4(), replicas)
    for broker_id in (1, 2, 3):
        wait_for(lambda broker_id=broker_id: "t-11: open" in cluster[broker_id].output())  # type: ignore[misc]
    begun_s = time.monotonic()
    for broker_id in (1, 2, 3):
        cluster[broker_id].send_signal(signal.SIGTERM)
    wait_for(lambda: not any(cluster[broker_id].is_running for broker_id in (1, 2, 3)))
    assert [cluster[broker_id].stop() for broker_id in (1, 2, 3)] == [0, 0, 0]
    assert time.monotonic() - begun_s < 30.0
    assert session.children_or_empty(znodes.BROKER_IDS) == []
    for broker_id in (1, 2, 3):
        cluster[broker_id].start(wait=False)
    for broker_id in (1, 2, 3):
        cluster[broker_id].wait_until_ready()

    def partitions() -> list[PartitionState]:
        return list(registry.get("t").partitions.values())

    wait_for(lambda: all(each.leader != -1 and set(each.isr) == {1, 2, 3} for each in partitions()))
