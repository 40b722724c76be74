"""One client keeps ZooKeeper busy: another one's commits do not wait for it, and topics are not created for
whoever names them.
"""

from __future__ import annotations

import contextlib
import select
import struct
import uuid
from typing import Final

import pytest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from fix_broker import RawClient, StartCluster
from headrace.broker.on_demand import PER_HOST_MAX

TOPICS: Final = 300
REQUESTS: Final = 30


def creation(start: str, count: int) -> bytes:
    """A CreateTopics frame."""
    topics = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">ihii", 1, 1, 0, 0)
        for name in (f"{start}-{number}".encode() for number in range(count))
    )
    body = struct.pack(">hhih", 19, 2, 1, -1) + struct.pack(">i", count) + topics
    body += struct.pack(">ib", 60_000, 0)
    return struct.pack(">i", len(body)) + body


def commit(client: RawClient, topic: str) -> str:
    part = OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(5), committed_metadata=None
    )
    request = OffsetCommitRequest(
        group_id=GroupId(f"g-{uuid.uuid4().hex[:8]}"),
        member_id="",
        topics=(OffsetCommitRequestTopic(name=TopicName(topic), partitions=(part,)),),
    )
    return str(client.call(request).topics[0].partitions[0].error_code.name)


def has_response(client: RawClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


def listed(client: RawClient, *names: str) -> dict[str, str]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    return {each.name: each.error_code.name for each in client.call(request).topics}


@pytest.mark.parametrize("connections", [1, 40])
def test_a_commit_does_not_wait_for_the_topics_of_another_client(
    broker_cluster: StartCluster, connections: int
) -> None:
    """With as many connections as there are threads several times over, too."""
    cluster = broker_cluster()
    with contextlib.ExitStack() as opened:
        busy = [opened.enter_context(RawClient(cluster.bootstrap)) for _ in range(connections)]
        client = opened.enter_context(RawClient(cluster.bootstrap))
        client.create_topic("t")
        assert commit(client, "t") == "none"
        for number in range(REQUESTS):
            busy[number % connections].send(creation(f"busy-{number}", TOPICS))
        assert [commit(client, "t") for _ in range(5)] == ["none"] * 5
        assert not any(has_response(each) for each in busy), "their topics are still being created"


def test_nobody_creates_topics_by_naming_them_unless_that_is_configured(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"auto.create.topics.enable": "false"})
    with RawClient(cluster.bootstrap) as client:
        assert set(listed(client, "a", "b").values()) == {"unknown_topic_or_partition"}
        assert not list(cluster[1].data_dir.glob("a-*"))


def test_one_host_has_so_many_topics_created_and_no_more(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"auto.create.topics.enable": "true"})
    names = [f"demanded-{number}" for number in range(6 * PER_HOST_MAX)]
    with RawClient(cluster.bootstrap) as client, RawClient(cluster.bootstrap) as other:
        listed(client, *names[: len(names) // 2])
        listed(other, *names[len(names) // 2 :])
        other.create_topic("by-an-administrator")
        request = MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        created = [each.name for each in client.call(request).topics if each.name.startswith("demanded-")]
        assert 0 < len(created) <= PER_HOST_MAX
    assert "is not created on demand for 127.0.0.1" in cluster[1].output()
