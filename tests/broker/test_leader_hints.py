"""KIP-951: an error that sends a client elsewhere names the leader, and where it listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fix_broker import BrokerCluster
from fix_replicas import ReplicatedCluster, batch
from headrace.broker import leader_hints
from headrace.broker.cluster import ClusterView
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import NO_LEADER, PartitionState, TopicState
from headrace.wire import fetch, produce
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.primitives import LeaderAndEpoch, NodeEndpoint
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def ask_produce(replicas: ReplicatedCluster, broker: int, topic: str, version: int) -> ProduceResponse:
    topic_id = replicas.registry.get(topic).topic_id
    asked = ProduceTopic(topic, topic_id, [ProducePartition(0, batch("elsewhere"))])
    with replicas.client(broker) as client:
        request = ProduceRequest(None, -1, 1_000, [asked])
        client.send(produce.encode_request(request, version=version, correlation_id=1, client_id="raw"))
        return produce.decode_response(client.receive(), version=version)[1]


def ask_fetch(
    replicas: ReplicatedCluster, broker: int, topic: str, version: int, epoch: int = -1
) -> FetchResponse:
    topic_id = replicas.registry.get(topic).topic_id
    asked = FetchTopic(topic, topic_id, [FetchPartition(0, 0, 1 << 20, current_leader_epoch=epoch)])
    with replicas.client(broker) as client:
        request = FetchRequest(0, 1, 1 << 20, [asked])
        client.send(fetch.encode_request(request, version=version, correlation_id=1, client_id="raw"))
        return fetch.decode_response(client.receive(), version=version)[1]


def endpoint(brokers: BrokerCluster, broker: int) -> NodeEndpoint:
    host, _, port = brokers[broker].address.rpartition(":")
    return NodeEndpoint(broker, host, int(port), "test")


def test_who_is_not_the_leader_names_the_leader(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2)
    leader, where = LeaderAndEpoch(1, 0), (endpoint(replicas.brokers, 1),)
    for broker in (2, 3):
        for version in (9, 10, 12):
            response = ask_produce(replicas, broker, topic, version)
            result = response.topics[0].partitions[0]
            assert result.error_code == NOT_LEADER
            told = (None, ()) if version < 10 else (leader, where)
            assert (result.current_leader, response.node_endpoints) == told, version
        for version in (11, 12, 15, 16, 17):
            fetched = ask_fetch(replicas, broker, topic, version)
            part = fetched.topics[0].partitions[0]
            assert part.error_code == NOT_LEADER
            assert part.current_leader == (None if version < 12 else leader), version
            assert fetched.node_endpoints == (() if version < 16 else where), version
    answered = ask_fetch(replicas, 1, topic, 17)
    assert answered.topics[0].partitions[0].current_leader is None and answered.node_endpoints == ()


def test_an_old_epoch_is_answered_by_the_leader_without_a_hint(replicas: ReplicatedCluster) -> None:
    """It leads itself, and was the leader before: there is nowhere else to go."""
    topic = replicas.topic(1, 2)
    replicas.elect(topic, 1)
    replicas.produce(topic, "in epoch 1")

    def leads() -> bool:
        part = ask_fetch(replicas, 1, topic, 17, epoch=1).topics[0].partitions[0]
        return part.error_code == ErrorCode.NONE

    replicas.wait_for("the leader in epoch 1", leads)
    response = ask_fetch(replicas, 1, topic, 17, epoch=0)
    part = response.topics[0].partitions[0]
    assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert part.current_leader is None and response.node_endpoints == ()


def hint_of(leader: int, code: ErrorCode = NOT_LEADER, mirror: str = "false") -> LeaderAndEpoch | None:
    """What broker 1 says of a partition; brokers 1 and 2 are registered."""
    brokers = [BrokerRegistration(each, "127.0.0.1", 9092, "test", "", 7) for each in (1, 2)]
    topic = TopicState(
        "t",
        cast(Any, None),
        {0: PartitionState(leader, 4, (1, 2, 3), (1, 2, 3))},
        {"headrace.mirror": mirror},
    )
    view = ClusterView().with_brokers(brokers).with_topics({"t": topic})
    return leader_hints.hint(cast(Any, SimpleNamespace(broker_id=1, view=view)), "t", 0, code)


def test_only_another_broker_that_is_registered_is_named() -> None:
    assert hint_of(2) == LeaderAndEpoch(2, 4)
    assert hint_of(2, ErrorCode.FENCED_LEADER_EPOCH) == LeaderAndEpoch(2, 4)
    assert hint_of(2, ErrorCode.NOT_ENOUGH_REPLICAS) is None
    assert [hint_of(leader) for leader in (1, 3, NO_LEADER)] == [None, None, None]


def test_the_leader_of_a_mirrors_copy_is_found_by_metadata_alone() -> None:
    """Its epoch here says nothing beside those of its batches, which are the source's."""
    assert hint_of(2, mirror="true") is None
    assert hint_of(2, mirror="false") == LeaderAndEpoch(2, 4)
