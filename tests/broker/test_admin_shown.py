"""What an administrator has changed is what the same broker tells next: programs ask how far it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32

from fix_broker import RawClient
from fix_replicas import ReplicatedCluster
from fix_replicas import replicas as replicas

TIMES = 5


def reassigned(client: RawClient, topic: str, *brokers: int) -> None:
    part = ReassignablePartition(
        partition_index=i32(0), replicas=tuple(map(BrokerId, brokers)) if brokers else None
    )
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name=TopicName(topic), partitions=(part,)),)
    )
    assert client.call(request).responses[0].partitions[0].error_code == 0


def under_way(client: RawClient, topic: str) -> list[Any]:
    found = client.call(ListPartitionReassignmentsRequest(topics=None))
    return [part.adding_replicas for each in found.topics if each.name == topic for part in each.partitions]


@contextmanager
def stopped(cluster: ReplicatedCluster, broker: int) -> Iterator[None]:
    cluster.brokers[broker].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.brokers[broker].send_signal(signal.SIGCONT)


def test_a_reassignment_is_listed_right_after_it_has_begun(replicas: ReplicatedCluster) -> None:
    """Who finds none takes it for done."""
    topic = replicas.topic(1, 2)
    replicas.wait_in_sync(topic, 1, 2)
    with replicas.client(2) as client, stopped(replicas, 3):
        for _ in range(TIMES):
            reassigned(client, topic, 1, 2, 3)
            assert under_way(client, topic) == [(3,)]
            reassigned(client, topic)
            assert under_way(client, topic) == []


def test_metadata_names_the_leader_that_was_just_elected(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    wanted = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(topic), topic_id=None),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    elected = ElectLeadersRequest(
        election_type=i8(0), topic_partitions=(TopicPartitions(topic=TopicName(topic), partitions=(i32(0),)),)
    )
    with replicas.client(2) as client:
        for _ in range(TIMES):
            replicas.elect(topic, 2)
            replicas.wait_for("2 leads", lambda: leader(client.call(wanted)) == 2)
            assert client.call(elected).replica_election_results[0].partition_result[0].error_code == 0
            assert leader(client.call(wanted)) == 1


def leader(found: Any) -> int:
    return int(found.topics[0].partitions[0].leader_id)
