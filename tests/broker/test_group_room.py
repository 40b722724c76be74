"""Offsets take no more of ZooKeeper's memory than their bounds: new groups wait, others go on."""

from __future__ import annotations

import logging
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.security import make_acl

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.groups.room import GroupRoom, NoRoomError
from headrace.client import Admin
from headrace.coordination.errors import CorruptNodeError

TOPIC = "t"
PARTITIONS = 10
SETTINGS = {"headrace.groups.nodes.max": "100", "headrace.groups.bytes.max": "5000"}


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    cluster = broker_cluster(2, SETTINGS)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    return cluster


def commit(cluster: BrokerCluster, group: str, offset: int, metadata: str = "") -> int:
    """Commits an offset for each partition by librdkafka; returns the code of the error, 0 without one."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    offsets = [
        # librdkafka sends a NUL for an empty text.
        TopicPartition(TOPIC, n, offset, metadata) if metadata else TopicPartition(TOPIC, n, offset)
        for n in range(PARTITIONS)
    ]
    try:
        stored = consumer.commit(offsets=offsets, asynchronous=False)
        return next((each.error.code() for each in stored if each.error), 0)
    except KafkaException as error:
        return int(error.args[0].code())
    finally:
        consumer.close()


def committed(cluster: BrokerCluster, group: str) -> set[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        return {
            each.offset
            for each in consumer.committed([TopicPartition(TOPIC, n) for n in range(PARTITIONS)], 20)
        }
    finally:
        consumer.close()


def test_new_groups_are_refused_beyond_the_bound_and_others_go_on(cluster: BrokerCluster) -> None:
    """A client that commits in ever new groups filled ZooKeeper's memory: then nothing works any more."""
    codes: list[int] = []
    while len(codes) < 40 and KafkaError.INVALID_COMMIT_OFFSET_SIZE not in codes:
        codes.append(commit(cluster, f"g{len(codes)}", 1))
    assert codes[-1] == KafkaError.INVALID_COMMIT_OFFSET_SIZE and set(codes[:-1]) == {0}
    # 13 nodes each; either broker may write 100 offsets before it sees what the other one wrote.
    assert 4 <= len(codes) - 1 <= 20
    refused = f"g{len(codes) - 1}"
    assert committed(cluster, refused) == {-1001}
    assert "headrace.groups.nodes.max is 100" in "".join(each.output() for each in cluster.brokers)
    for offset in (2, 10**12):
        assert commit(cluster, "g0", offset) == 0
        assert committed(cluster, "g0") == {offset}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.delete_consumer_groups([f"g{n}" for n in range(1, len(codes) - 1)]).values():
        future.result(20)
    assert commit(cluster, refused, 1) == 0


def test_metadata_does_not_grow_beyond_the_bound(cluster: BrokerCluster) -> None:
    assert commit(cluster, "g", 1, "x" * 100) == 0
    assert commit(cluster, "g", 2, "y" * 1000) == KafkaError.INVALID_COMMIT_OFFSET_SIZE
    assert committed(cluster, "g") == {1}
    assert commit(cluster, "g", 3, "z" * 100) == 0
    assert committed(cluster, "g") == {3}


def test_zookeeper_counts_below_a_chroot(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        session.ensure_path("/consumers/a")
        assert session.usage_below("/consumers") is None
        session.count_below("/consumers")
        session.count_below("/consumers")
        found = session.usage_below("/consumers")
        assert found is not None and (found.nodes, found.data_bytes) == (2, 0)
        session.create("/consumers/b", b"123")
        session.create("/elsewhere", b"123")
        found = session.usage_below("/consumers")
        assert found is not None and (found.nodes, found.data_bytes) == (3, 3)


def test_counts_that_nobody_could_have_made_are_named(zookeeper: ZooKeeperRoom) -> None:
    client = KazooClient(zookeeper.server.address)
    client.start()
    with zookeeper.session() as session:
        session.ensure_path("/consumers")
        path = f"/zookeeper/quota{zookeeper.chroot}/consumers/zookeeper_stats"
        session.count_below("/consumers")
        client.set(path, b"many")
        with pytest.raises(
            CorruptNodeError, match="zookeeper_stats: ZooKeeper's counts were expected, found b'many'"
        ):
            session.usage_below("/consumers")
    client.stop()
    client.close()


def test_where_zookeeper_may_not_count_nothing_is_refused(
    private_zookeeper: ZooKeeperRoom, caplog: pytest.LogCaptureFixture
) -> None:
    client = KazooClient(private_zookeeper.server.address)
    client.start()
    client.set_acls("/zookeeper/quota", [make_acl("world", "anyone", read=True)])
    client.stop()
    client.close()
    with private_zookeeper.session() as session, caplog.at_level(logging.WARNING):
        room = GroupRoom(session, 1, 1)
        for _ in range(3):
            room.take("g", {"/consumers/g": b"123"})
    assert caplog.text.count("ZooKeeper does not count what groups store") == 1


def test_what_was_deleted_makes_room_within_a_second(zookeeper: ZooKeeperRoom) -> None:
    now_s = time.monotonic()
    with zookeeper.session() as session:
        room = GroupRoom(session, 10, 1000, clock_s=lambda: now_s)
        nodes = {f"/consumers/{n}": b"12" for n in range(9)}
        room.take("g", nodes)
        for path, data in nodes.items():
            session.create(path, data, make_parents=True)
        room.take("g", nodes)  # all of them are there
        with pytest.raises(NoRoomError, match=r"group 'h': ZooKeeper holds 10 nodes and 18 bytes"):
            room.take("h", {"/consumers/h": b""})
        session.delete("/consumers/3")
        room.take("h", {"/consumers/h": b""})
        unbounded = GroupRoom(session, -1, -1)
        unbounded.take("h", {f"/consumers/h{n}": b"1" * 1000 for n in range(100)})


def test_a_new_partition_does_not_keep_a_group_from_committing_the_others(cluster: BrokerCluster) -> None:
    """A topic got a partition: each commit of a group that reads it was refused as a whole, for ever."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    parts = [TopicPartition(TOPIC, n, 1) for n in range(PARTITIONS - 1)]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()
    assert KafkaError.INVALID_COMMIT_OFFSET_SIZE in [commit(cluster, f"other{n}", 1) for n in range(20)]
    assert commit(cluster, "g", 2) == KafkaError.INVALID_COMMIT_OFFSET_SIZE
    assert committed(cluster, "g") == {2, -1001}
