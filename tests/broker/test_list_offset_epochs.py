"""The leader epoch that ListOffsets tells with an offset: a client may ask later where it ends (KIP-320)."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Final

from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.coordination.topics import TopicRegistry
from headrace.wire.batch import readdress
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S: Final = 30.0
EARLIEST, LATEST, GREATEST, NEVER = -2, -1, -3, 2**62  # times; nothing is as late as the last one


def batch() -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, b"v")]))


def told(client: RawClient, topic: str, when: int) -> tuple[int, int]:
    """The offset and the epoch for a time."""
    asked = ListOffsetsPartition(partition_index=i32(0), timestamp=i64(when))
    topics = (ListOffsetsTopic(name=TopicName(topic), partitions=(asked,)),)
    request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=topics)
    (found,) = client.call(request).topics[0].partitions
    assert found.error_code.name == "none"
    return found.offset, found.leader_epoch


def end_of(client: RawClient, topic: str, epoch: int) -> int:
    asked = OffsetForLeaderPartition(partition=i32(0), leader_epoch=i32(epoch))
    topics = (OffsetForLeaderTopic(topic=TopicName(topic), partitions=(asked,)),)
    (found,) = client.call(OffsetForLeaderEpochRequest(topics=topics)).topics[0].partitions
    return int(found.end_offset)


def test_what_a_mirror_has_is_not_lost_by_the_epochs_that_it_tells(one_broker: BrokerCluster) -> None:
    """Its batches have the source's. By the epoch that came with an offset the log ended before that."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    first, second = batch(), batch()
    readdress(first, 0, 700, leader_epoch=41)
    readdress(second, 0, 700 + len(first), leader_epoch=43)
    with RawClient(one_broker.bootstrap) as client:
        client.create_topic(topic, config={"headrace.mirror": "true"})
        assert client.produce(topic, 0, bytes(first + second)).error_code == 0
        found = {when: told(client, topic, when) for when in (EARLIEST, LATEST, GREATEST, 0, NEVER)}
        assert all(end_of(client, topic, epoch) >= offset for offset, epoch in found.values())
        epochs = {when: epoch for when, (_, epoch) in found.items()}
        assert epochs == {EARLIEST: 41, LATEST: 43, GREATEST: 41, 0: 41, NEVER: -1}


def test_an_offset_has_the_epoch_of_its_batch(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client, cluster.zookeeper.session() as session:
        client.create_topic("t")
        assert told(client, "t", EARLIEST) == (0, 0), "of an empty log, the present leader's"
        assert client.produce("t", 0, bytes(batch())).error_code == 0
        registry = TopicRegistry(session)
        state = registry.get("t").partitions[0]
        registry.set_partition_state("t", 0, replace(state, leader_epoch=5), expected=state)
        deadline = time.monotonic() + WAIT_MAX_S
        while told(client, "t", LATEST)[1] != 5:
            assert time.monotonic() < deadline
        assert client.produce("t", 0, bytes(batch())).error_code == 0
        assert [told(client, "t", when)[1] for when in (EARLIEST, 0, LATEST)] == [0, 0, 5]
