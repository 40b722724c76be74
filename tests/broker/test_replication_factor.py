"""Topics with replicas, as administrators ask for them: numbers, assignments, racks, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.create_partitions.v3.request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.coordination.topics import PartitionState, TopicRegistry

TIMEOUT = i32Timedelta.parse(timedelta(seconds=30))


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    """Three brokers on one host, 2 and 3 in one rack; topics have two replicas by default."""
    cluster = module_clusters(count=3, config={"default.replication.factor": "2"})
    for broker_id in (2, 3):
        cluster[broker_id].stop()
        cluster[broker_id].config["broker.rack"] = "r"
        cluster[broker_id].start()
    deadline = time.monotonic() + 60
    while any(broker.sees() != {1, 2, 3} for broker in cluster.brokers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return cluster


def create(
    cluster: BrokerCluster,
    name: str,
    *,
    partitions: int = -1,
    factor: int = -1,
    chosen: Mapping[int, tuple[int, ...]] | None = None,
) -> Any:
    assignments = tuple(
        CreatableReplicaAssignment(partition_index=i32(index), broker_ids=tuple(map(BrokerId, brokers)))
        for index, brokers in (chosen or {}).items()
    )
    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(factor),
        assignments=assignments,
        configs=(),
    )
    with RawClient(cluster[1].address) as client:
        (result,) = client.call(CreateTopicsRequest(topics=(topic,))).topics
    return result


def states(cluster: BrokerCluster, name: str) -> dict[int, PartitionState]:
    with cluster.zookeeper.session() as session:
        return TopicRegistry(session).get(name).partitions


def test_replicas_are_placed_over_racks(cluster: BrokerCluster) -> None:
    for factor, expected in ((-1, 2), (1, 1), (2, 2), (3, 3)):
        name = f"placed{factor}"
        result = create(cluster, name, partitions=6, factor=factor)
        assert result.error_code.name == "none", result.error_message
        assert (result.num_partitions, result.replication_factor) == (6, expected)
        placed = [state.replicas for state in states(cluster, name).values()]
        assert {len(set(replicas)) for replicas in placed} == {expected}
        if expected == 2:
            assert all(1 in replicas for replicas in placed), "2 and 3 are in one rack"
        leaders = [replicas[0] for replicas in placed]
        assert [leaders.count(broker) for broker in (1, 2, 3)] == [2, 2, 2]


def test_replicas_can_be_chosen(cluster: BrokerCluster) -> None:
    chosen = {0: (3, 1, 2), 1: (1, 3, 2)}
    assert create(cluster, "chosen", chosen=chosen).error_code.name == "none"
    assert {index: state.replicas for index, state in states(cluster, "chosen").items()} == chosen
    more = CreatePartitionsTopic(name=TopicName("chosen"), count=i32(3), assignments=None)
    with RawClient(cluster[2].address) as client:
        (added,) = client.call(
            CreatePartitionsRequest(topics=(more,), timeout=TIMEOUT, validate_only=False)
        ).results
        assert added.error_code.name == "none", added.error_message
        assert sorted(states(cluster, "chosen")[2].replicas) == [1, 2, 3], "as many as the others have"
        two = CreatePartitionsAssignment(broker_ids=(BrokerId(1), BrokerId(2)))
        more = CreatePartitionsTopic(name=TopicName("chosen"), count=i32(4), assignments=(two,))
        (added,) = client.call(
            CreatePartitionsRequest(topics=(more,), timeout=TIMEOUT, validate_only=False)
        ).results
    assert added.error_code.name == "invalid_replica_assignment"
    assert added.error_message == "partition 3: 2 replicas, others have 3"


@pytest.mark.parametrize("factor", [4, 0, -2])
def test_a_factor_that_cannot_be_is_refused_with_the_number_of_brokers(
    cluster: BrokerCluster, factor: int
) -> None:
    result = create(cluster, "refused", partitions=1, factor=factor)
    assert result.error_code.name == "invalid_replication_factor"
    assert result.error_message.startswith(f"replication factor {factor}: must be from 1 to 3, the number of")


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({0: (1, 1)}, "partition 0: replicas [1, 1]: name one broker or more, each once"),
        ({0: ()}, "partition 0: replicas []: name one broker or more, each once"),
        ({0: (1, 2), 1: (1,)}, "partition 1: 1 replicas, others have 2"),
        ({0: (1, 7)}, "broker 7 is not alive; alive: [1, 2, 3]"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(
    cluster: BrokerCluster, chosen: dict[int, tuple[int, ...]], problem: str
) -> None:
    result = create(cluster, "refused", chosen=chosen)
    assert (result.error_code.name, result.error_message) == ("invalid_replica_assignment", problem)
