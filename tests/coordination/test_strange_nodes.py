"""What is believed of a node that a stranger made, or that rotted, fits into what every client gets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.broker.bodies import build
from headrace.broker.cluster import ClusterView
from headrace.broker.handlers import metadata, topic_partitions
from headrace.broker.handlers.metadata import Cluster
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry, parse
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.topics import TopicRegistry
from headrace.wire.apis import ApiKey
from headrace.wire.messages import Request, encode_response

VERSIONS = range(14)
STRANGE: list[Any] = [5, 1.5, ["east"], {}, None, True, "\ud800", "r" * 40_000, "é" * 20_000]


def told(view: ClusterView) -> None:
    """Metadata of all topics, and DescribeTopicPartitions, as any broker with this view answers them."""
    cluster = Cluster(view, "c", frozenset())
    for version in VERSIONS:
        tree = metadata.respond(cluster, cast(Request, SimpleNamespace(version=version, body=None)), None)
        encode_response(build(ApiKey.METADATA, version, tree), correlation_id=1)
    names = sorted(view.topics)
    tree = topic_partitions.respond(cluster, names, topic_partitions.Place("", 0), 2_000)
    encode_response(build(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, tree), correlation_id=1)


@pytest.mark.parametrize("name", ["datacenter", "rack", "directory_id"])
@pytest.mark.parametrize("value", [*STRANGE, "", "east", "é" * 16_000], ids=lambda value: ascii(value)[:12])
def test_a_strange_registration_ends_no_clients_metadata(name: str, value: Any) -> None:
    fields = {"version": 1, "host": "127.0.0.1", "port": 9092, "datacenter": "east", name: value}
    try:
        registration = parse(2, json.dumps(fields).encode())
    except CorruptNodeError as error:
        assert value in STRANGE and f"is not a {name}" in str(error)
        return
    told(ClusterView().with_brokers([BrokerRegistration(1, "127.0.0.1", 9092, "east"), registration]))


def test_a_broker_does_not_register_what_the_others_would_not_believe(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        with pytest.raises(CorruptNodeError, match=r"/brokers/ids/1: '\\udcff' is not a datacenter"):
            BrokerRegistry(session).register(BrokerRegistration(1, "127.0.0.1", 9092, "\udcff"))
        assert BrokerRegistry(session).live() == []


def test_strange_topics_are_left_out(zookeeper: ZooKeeperRoom) -> None:
    def document(partitions: dict[str, list[int]]) -> bytes:
        return json.dumps({"version": 1, "topic_id": str(uuid4()), "partitions": partitions}).encode()

    state = json.dumps({"version": 1, "leader": 1, "leader_epoch": 0, "isr": [1]}).encode()
    with zookeeper.session() as session:
        has_topics(session, "t")
        topics = {"t" * 40_000: "0", "é": "0", "a b": "0", "behind": "1", "below": "-1", "zeros": "00"}
        for name, number in topics.items():
            session.create(znodes.topic(name), document({number: [1]}))
            path = f"{znodes.partitions(name)}/{number}/state"
            session.create(path, state, make_parents=True)
            session.create(znodes.topic_config(name), b'{"version":1,"config":{}}')
        found = TopicRegistry(session).list()
        assert found.keys() == {"t"}
        broker = BrokerRegistration(1, "127.0.0.1", 9092, "east")
        told(ClusterView().with_brokers([broker]).with_topics(found))
