"""Offsets that Kafka's groups commit, and their metadata: what is kept, and which clients can read it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v9.response import OffsetCommitResponse
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_group_offsets import store_offsets
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.groups import offset_nodes
from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.groups.offset_nodes import Committed
from headrace.client.errors import BrokerError
from headrace.client.group_admin import GroupAdmin
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry

Kept = dict[int, tuple[int, str | None]]
GROUP = "g"
WAIT_MAX_S = 60.0


def commit(client: RawClient, group: str, topic: str, offsets: Kept) -> dict[int, str]:
    """Commits as a client outside the group; returns the error's name by partition."""
    parts = tuple(
        OffsetCommitRequestPartition(
            partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=metadata
        )
        for partition, (offset, metadata) in offsets.items()
    )
    request = OffsetCommitRequest(
        group_id=GroupId(group),
        member_id="",
        topics=(OffsetCommitRequestTopic(name=TopicName(topic), partitions=parts),),
    )
    response: OffsetCommitResponse = client.call(request)
    return {each.partition_index: each.error_code.name for each in response.topics[0].partitions}


def fetch(client: RawClient, group: str, topic: str, *partitions: int, everything: bool = False) -> Kept:
    wanted = OffsetFetchRequestTopics(
        name=TopicName(topic), partition_indexes=tuple(i32(each) for each in partitions)
    )
    request = OffsetFetchRequestGroup(group_id=GroupId(group), topics=None if everything else (wanted,))
    (found,) = client.call(OffsetFetchRequest(groups=(request,), require_stable=False)).groups
    assert found.error_code.name == "none", found.error_code
    return {
        each.partition_index: (each.committed_offset, each.metadata)
        for topic_found in found.topics
        for each in topic_found.partitions
    }


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


def test_metadata_comes_back_with_the_offset(client: RawClient, one_broker: BrokerCluster) -> None:
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, 4)
    kept: Kept = {0: (7, "half of the file, Zürich"), 1: (8, ""), 2: (9, None)}
    assert set(commit(client, group, topic, kept).values()) == {"none"}
    expected: Kept = {0: (7, "half of the file, Zürich"), 1: (8, ""), 2: (9, "")}
    assert fetch(client, group, topic, 0, 1, 2, 3) == expected | {3: (-1, "")}
    assert fetch(client, group, topic, everything=True) == expected
    commit(client, group, topic, {0: (10, "more"), 1: (10, "first words")})
    assert fetch(client, group, topic, 0, 1) == {0: (10, "more"), 1: (10, "first words")}
    commit(client, group, topic, {0: (10, "")})
    assert fetch(client, group, topic, 0) == {0: (10, "")}
    with one_broker.zookeeper.session() as session:
        registry = ConsumerRegistry(session, group)
        assert registry.all_offsets() == {(topic, 0): 10, (topic, 1): 10, (topic, 2): 9}


def test_only_metadata_that_is_too_long_is_refused(client: RawClient) -> None:
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, 3)
    kept: Kept = {0: (1, "x" * 4096), 1: (2, "x" * 4097), 2: (3, "ü" * 2049), 5: (4, "no such partition")}
    assert commit(client, group, topic, kept) == {
        0: "none",
        1: "offset_metadata_too_large",
        2: "offset_metadata_too_large",
        5: "unknown_topic_or_partition",
    }
    assert fetch(client, group, topic, 0, 1, 2) == {0: (1, "x" * 4096), 1: (-1, ""), 2: (-1, "")}


def test_offsets_and_metadata_outlive_a_restart_and_a_move_of_the_coordinator(
    broker_cluster: StartCluster,
) -> None:
    cluster = broker_cluster(2, config={"zookeeper.session.timeout.ms": "1000"})
    coordinator = coordinator_for(GROUP, [1, 2])
    assert coordinator is not None
    with RawClient(cluster[coordinator].address) as client:
        client.create_topic("t")
        assert commit(client, GROUP, "t", {0: (5, "words")}) == {0: "none"}
    cluster[coordinator].restart()
    with RawClient(cluster[coordinator].address) as client:
        assert fetch(client, GROUP, "t", 0) == {0: (5, "words")}
    cluster[coordinator].stop()
    with RawClient(cluster[3 - coordinator].address) as client:
        # A broker that stops cleanly closes its session first; the other broker sees that soon.
        for _ in range(200):
            response = client.call(
                OffsetFetchRequest(
                    groups=(OffsetFetchRequestGroup(group_id=GroupId(GROUP), topics=None),),
                    require_stable=False,
                )
            )
            if response.groups[0].error_code.name == "none":
                break
            threading.Event().wait(0.05)
        assert fetch(client, GROUP, "t", 0) == {0: (5, "words")}


def delete_topic(client: RawClient, name: str) -> None:
    request = DeleteTopicsRequest(
        topic_names=(TopicName(name),), timeout=i32Timedelta.parse(timedelta(seconds=20))
    )
    (deleted,) = client.call(request).responses
    assert deleted.error_code.name == "none"


def test_a_topic_that_is_made_again_begins_without_offsets(
    client: RawClient, one_broker: BrokerCluster
) -> None:
    topic, other, group = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in "tug")
    client.create_topic(topic)
    client.create_topic(other)
    assert commit(client, group, topic, {0: (4711, "words")}) == {0: "none"}
    assert commit(client, group, other, {0: (5, "")}) == {0: "none"}
    delete_topic(client, topic)
    assert fetch(client, group, topic, 0) == {0: (-1, "")}
    assert fetch(client, group, topic, everything=True) == {0: (5, "")}
    client.create_topic(topic)
    assert fetch(client, group, topic, 0) == {0: (-1, "")}
    assert fetch(client, group, topic, everything=True) == {0: (5, "")}
    assert commit(client, group, topic, {0: (7, "new")}) == {0: "none"}
    assert fetch(client, group, topic, 0) == {0: (7, "new")}
    delete_topic(client, topic)
    with one_broker.zookeeper.session() as session:
        deadline = time.monotonic() + WAIT_MAX_S
        while session.exists(znodes.offsets(group, topic)) is not None:
            assert time.monotonic() < deadline, "the offsets of a deleted topic stay in ZooKeeper"
            time.sleep(0.02)


@pytest.mark.parametrize(
    "group", ["a/b", "/", ".", "..", "two words", "x\n\x1b[31m", "%2F", "集団 🚀", "g" * 1024]
)
def test_any_id_of_a_group_works(client: RawClient, one_broker: BrokerCluster, group: str) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic)
    assert commit(client, group, topic, {0: (5, "words")}) == {0: "none"}
    assert fetch(client, group, topic, 0) == {0: (5, "words")}
    assert group in [each.group_id for each in client.call(ListGroupsRequest(states_filter=())).groups]
    request = DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)
    (described,) = client.call(request).groups
    assert (described.error_code.name, described.group_state) == ("none", "Empty")
    with GroupAdmin(one_broker.bootstrap) as admin:
        assert group in admin.groups()
        # Other tests of this broker use such ids, too.
        assert admin.group_offsets(group).get((topic, 0)) == 5
    (deleted,) = client.call(DeleteGroupsRequest(groups_names=(GroupId(group),))).results
    assert deleted.error_code.name == "none"
    assert fetch(client, group, topic, 0) == {0: (-1, "")}


def test_an_id_that_is_too_long_is_refused(client: RawClient) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic)
    assert commit(client, "g" * 1025, topic, {0: (5, "")}) == {0: "invalid_group_id"}


def test_more_offsets_than_one_request_may_name(client: RawClient, one_broker: BrokerCluster) -> None:
    """A broker ends the connection of a request with more than 10,000 partitions."""
    group, topic, count = f"g-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}", 12_000
    client.create_topic(topic)
    with GroupAdmin(one_broker.bootstrap, timeout_ms=5000) as admin:
        # Of these partitions the topic has one: the first answer says so, and that one's offset is stored.
        with pytest.raises(BrokerError, match=f"{topic}-1: UNKNOWN_TOPIC_OR_PARTITION"):
            admin.commit_offsets(group, {(topic, number): 3 for number in range(count)})
        assert admin.group_offsets(group) == {(topic, 0): 3}
        with pytest.raises(BrokerError, match=f"{topic}-1: UNKNOWN_TOPIC_OR_PARTITION"):
            admin.delete_offsets(group, [(topic, number) for number in range(count)])
        assert admin.group_offsets(group) == {}


# --- in ZooKeeper, without a broker ---


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[ZooKeeperSession]:
    with zookeeper.session() as made:
        TopicRegistry(made).create("t", uuid.uuid4(), {0: (1,)})
        yield made


def test_an_offset_set_the_papers_way_invalidates_the_metadata(session: ZooKeeperSession) -> None:
    registry = ConsumerRegistry(session, GROUP)
    registry.commit("t", 0, 3)
    assert offset_nodes.read(session, GROUP, None) == {("t", 0): Committed(3, "")}
    store_offsets(session, GROUP, {("t", 0): Committed(4, "words")})
    assert offset_nodes.read(session, GROUP, [("t", 0), ("t", 1)]) == {("t", 0): Committed(4, "words")}
    registry.commit("t", 0, 4)
    assert offset_nodes.read(session, GROUP, None) == {("t", 0): Committed(4, "")}
    store_offsets(session, GROUP, {("t", 0): Committed(5, "again")})
    assert registry.all_offsets() == {("t", 0): 5}
    session.delete(znodes.group(GROUP), recursive=True)
    assert offset_nodes.read(session, GROUP, None) == {}


def test_a_reader_never_sees_the_metadata_of_another_offset(session: ZooKeeperSession) -> None:
    done = threading.Event()
    store_offsets(session, GROUP, {("t", 0): Committed(0, "0")})

    def write() -> None:
        for number in range(1, 300):
            store_offsets(session, GROUP, {("t", 0): Committed(number, str(number))})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    try:
        while not done.is_set():
            found = offset_nodes.read(session, GROUP, [("t", 0)])["t", 0]
            assert found.metadata == str(found.offset)
            seen.add(found.offset)
    finally:
        writer.join(60)
    assert len(seen) > 10


def test_a_damaged_offset_is_named(session: ZooKeeperSession) -> None:
    session.create(f"/consumers/{GROUP}/offsets/t/0", b"seven", make_parents=True)
    with pytest.raises(CorruptNodeError, match=rf"/consumers/{GROUP}/offsets/t/0: .* found b'seven'"):
        offset_nodes.read(session, GROUP, [("t", 0)])
