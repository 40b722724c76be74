"""Topics that are made while one of three brokers is dead: as in Apache Kafka they get replicas there, too,
since the broker is to come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_one_broker import wait_until
from fix_replicas import batch
from headrace.client.admin import Admin
from headrace.client.errors import BrokerError
from headrace.coordination.partition_state import PartitionState
from headrace.coordination.topics import TopicRegistry
from headrace.wire.errors import ErrorCode

DEAD = 3


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> Iterator[BrokerCluster]:
    """Three brokers with a topic of three replicas; the third one has died."""
    cluster = broker_cluster(3, {"zookeeper.session.timeout.ms": "1000"})
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("before", 1, replication_factor=3)
    cluster[DEAD].kill()
    wait_until(lambda: cluster[1].sees() == cluster[2].sees() == {1, 2})
    yield cluster


def states(cluster: BrokerCluster, topic: str) -> dict[int, PartitionState]:
    with cluster.zookeeper.session() as session:
        return TopicRegistry(session).get(topic).partitions


@pytest.mark.parametrize("factor", [3, None])
def test_a_new_topic_has_its_third_replica_on_the_dead_broker(
    cluster: BrokerCluster, factor: int | None
) -> None:
    with Admin(cluster[1].address) as admin:
        admin.create_topic("new", 4, replication_factor=factor)
        made = states(cluster, "new")
        assert all(sorted(each.replicas) == [1, 2, DEAD] for each in made.values())
        assert all(each.replicas[2] == DEAD and sorted(each.isr) == [1, 2] for each in made.values())
        assert {each.leader for each in made.values()} == {1, 2}
    with RawClient(cluster[made[0].leader].address) as client:
        assert client.produce("new", 0, batch("while it is dead"), acks=-1).error_code == 0
    cluster[DEAD].start()
    wait_until(lambda: all(sorted(each.isr) == [1, 2, DEAD] for each in states(cluster, "new").values()))


def test_a_topic_gets_more_partitions(cluster: BrokerCluster) -> None:
    with Admin(cluster[1].address) as admin:
        admin.create_partitions("before", 3)
    assert all(sorted(each.replicas) == [1, 2, DEAD] for each in states(cluster, "before").values())


def test_more_replicas_than_brokers_are_refused_as_before(cluster: BrokerCluster) -> None:
    with Admin(cluster[1].address) as admin:
        with pytest.raises(BrokerError, match=r"must be from 1 to 3, .* dead brokers \[3\] as many count as"):
            admin.create_topic("new", 1, replication_factor=4)
        admin.create_topic("two", 1, replication_factor=2)
    assert sorted(states(cluster, "two")[0].replicas) == [1, 2], "none on a dead one without need"


def test_too_few_to_be_in_sync_are_none(cluster: BrokerCluster) -> None:
    """With one of three alive nothing could be acknowledged. By default such a topic has two replicas."""
    cluster[2].kill()
    wait_until(lambda: cluster[1].sees() == {1})
    with Admin(cluster[1].address) as admin:
        with pytest.raises(BrokerError, match="must be from 1 to 2") as caught:
            admin.create_topic("new", 1, replication_factor=3)
        assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
        admin.create_topic("new", 1)
    with RawClient(cluster[1].address) as client:
        assert client.produce("new", 0, batch("alone"), acks=-1).error_code == 0
    (made,) = states(cluster, "new").values()
    assert (made.replicas[0], made.isr, len(made.replicas)) == (1, (1,), 2)


def test_replicas_may_be_chosen_there_if_another_one_is_alive(cluster: BrokerCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster[1].address})

    def create(name: str, *replicas: int) -> str:
        try:
            admin.create_topics([NewTopic(name, 1, replica_assignment=[list(replicas)])])[name].result(60)
        except KafkaException as error:
            return str(error.args[0].str())
        return "made"

    assert create("chosen", DEAD, 2) == "made"
    assert create("refused", DEAD).startswith("broker 3 is not alive")
    assert create("refused", 1, 9).startswith("broker 9 is not alive")
    assert states(cluster, "chosen")[0] == PartitionState(2, 0, (DEAD, 2), (2,))


def test_a_drained_broker_gets_none(cluster: BrokerCluster) -> None:
    with Admin(cluster[1].address) as admin:
        admin.alter_broker_configs(DEAD, {"headrace.drained": "true"})
        wait_until(lambda: _refuses(admin))
        admin.create_topic(f"t-{uuid4().hex[:6]}", 1)


def _refuses(admin: Admin) -> bool:
    try:
        admin.create_topic("new", 1, replication_factor=3, validate_only=True)
    except BrokerError as error:
        return "must be from 1 to 2" in str(error)
    return False
