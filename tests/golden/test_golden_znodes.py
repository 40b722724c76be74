"""The znodes of a site that `make demo` once made (znodes.json) are read by today's registries."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.brokers import BrokerRegistry
from headrace.coordination.consumers import ConsumerRegistry, groups
from headrace.coordination.fronts import FrontRegistry
from headrace.coordination.mirrors import MirrorMap, MirrorSource
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.registry.store import SchemaStore

TREES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("znodes.json").read_text())


def filled(zookeeper: ZooKeeperRoom, datacenter: str) -> ZooKeeperSession:
    """A session on a ZooKeeper that holds the datacenter's nodes (the ephemeral ones, too, as plain ones)."""
    session = ZooKeeperSession(zookeeper.hosts)
    session.start()
    for path, content in TREES[datacenter].items():
        session.ensure_path(path.rpartition("/")[0])
        session.create(path, content.encode())
    return session


def test_a_source_datacenter(zookeeper: ZooKeeperRoom) -> None:
    with filled(zookeeper, "east") as session:
        assert [(each.broker_id, each.host, each.port) for each in BrokerRegistry(session).live()] == [
            (1, "127.1.0.11", 9092),
            (2, "127.1.0.12", 9092),
            (3, "127.1.0.13", 9092),
        ]
        assert [each.port for each in FrontRegistry(session).live()] == [9093] * 3
        topic = TopicRegistry(session).get("page-view")
        assert topic is not None
        assert topic.topic_id == UUID("26b0e91e-c808-411b-a2d9-b651696a98e4")
        assert {number: state.leader for number, state in topic.partitions.items()} == {0: 1, 1: 2, 2: 3}
        assert groups(session) == ["page-view-dashboard"]
        assert ConsumerRegistry(session, "page-view-dashboard").all_offsets() == {
            ("page-view", 0): 397_433,
            ("page-view", 1): 349_480,
            ("page-view", 2): 586_139,
        }
        store = SchemaStore(session)
        assert len(store.subjects()) == 6
        [version] = store.subject("page-view-value").live
        schema = store.schema(version.schema_id)
        assert schema is not None and "PageView" in schema.text and schema.guid is None
        assert allocate_block(session, 1000) == range(3000, 4000)


@pytest.mark.parametrize("topic", ["_audit", "page-view"])
def test_the_analysis_datacenter(zookeeper: ZooKeeperRoom, topic: str) -> None:
    with filled(zookeeper, "analysis") as session:
        assert TopicRegistry(session).get(topic).config == {"headrace.mirror": "true"}
        sources = MirrorMap(session).sources(topic)
        assert sources[:2] == [MirrorSource("west", 0), MirrorSource("west", 1)]
