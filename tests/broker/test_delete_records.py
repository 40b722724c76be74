"""A real broker, frame by frame: DeleteRecords deletes whole segments, and says where the log begins now."""

import datetime
import uuid

import pytest
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from fix_broker import BrokerCluster, RawClient, StartCluster, batches_of
from fix_one_broker import batch, wait_until
from headrace.client.admin import Admin
from headrace.wire.errors import ErrorCode

SEGMENT_BYTES = 1024
ALL = -1


def delete(client: RawClient, topic: str, offset: int, timeout_s: float = 30.0) -> tuple[int, str]:
    """The low watermark and the code of partition 0."""
    part = DeleteRecordsPartition(partition_index=i32(0), offset=i64(offset))
    answer = client.call(
        DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=TopicName(topic), partitions=(part,)),),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=timeout_s)),
        )
    )
    ((found,),) = [each.partitions for each in answer.topics]
    return found.low_watermark, found.error_code.name


@pytest.fixture
def segmented(client: RawClient) -> tuple[str, list[int]]:
    """A topic whose partition has five segments, each of one batch; and the batches' ends."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, config={"segment.bytes": str(SEGMENT_BYTES)})
    data = batch(b"x" * 900)
    for _ in range(5):
        assert client.produce(topic, 0, data).error_code == ErrorCode.NONE
    return topic, [len(data) * (at + 1) for at in range(5)]


def segments(broker: BrokerCluster, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (broker[1].data_dir / f"{topic}-0").glob("*.log"))


def test_the_segment_that_the_offset_lies_in_stays(
    client: RawClient, segmented: tuple[str, list[int]], one_broker: BrokerCluster
) -> None:
    topic, ends = segmented
    assert delete(client, topic, ends[2] - 1) == (ends[1], "none")
    wait_until(lambda: segments(one_broker, topic) == ends[1:4])
    assert client.list_offset(topic, 0, -2)[0] == ends[1]
    assert client.fetch(topic, 0, ends[0]).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 0, ends[1]).error_code == ErrorCode.NONE
    assert delete(client, topic, ends[2]) == (ends[2], "none")
    assert delete(client, topic, 0) == (ends[2], "none")


def test_all_is_deleted_and_the_log_goes_on_at_its_end(
    client: RawClient, segmented: tuple[str, list[int]], one_broker: BrokerCluster
) -> None:
    topic, ends = segmented
    assert delete(client, topic, ALL) == (ends[-1], "none")
    wait_until(lambda: segments(one_broker, topic) == [ends[-1]])
    assert delete(client, topic, ALL) == (ends[-1], "none")
    assert segments(one_broker, topic) == [ends[-1]], "no segment begins for nothing"
    data = batch(b"after")
    assert client.produce(topic, 0, data).error_code == ErrorCode.NONE
    assert client.list_offset(topic, 0, -2)[0] == ends[-1]
    assert client.list_offset(topic, 0, -1)[0] == ends[-1] + len(data)


def test_a_request_at_each_batch_begins_no_segment_for_each(
    client: RawClient, one_broker: BrokerCluster
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic)
    for _ in range(5):
        end = client.list_offset(topic, 0, -1)[0]
        assert client.produce(topic, 0, batch()).error_code == ErrorCode.NONE
        assert delete(client, topic, end)[1] == "none"
    assert len(segments(one_broker, topic)) <= 2


def test_a_short_timeout_says_so_and_the_rest_can_be_asked_for_again(
    client: RawClient, segmented: tuple[str, list[int]]
) -> None:
    """What no checkpoint covers yet is flushed with one first."""
    topic, ends = segmented
    assert delete(client, topic, ALL, timeout_s=0) in ((-1, "request_timed_out"), (ends[-1], "none"))
    assert delete(client, topic, ALL) == (ends[-1], "none")


def test_what_was_deleted_stays_deleted_after_a_crash(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=1)
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", config={"segment.bytes": str(SEGMENT_BYTES)})
        for _ in range(3):
            client.produce("t", 0, batch(b"x" * 900))
        end, code = delete(client, "t", ALL)
        assert code == "none"
        client.produce("t", 0, batch(b"after"))
    cluster[1].kill()
    cluster[1].start()
    with RawClient(cluster[1].address) as client:
        assert client.list_offset("t", 0, -2)[0] == end
        assert b"after" in bytes(batches_of(client.fetch("t", 0, end)))


def test_followers_delete_as_their_leader_does(broker_cluster: StartCluster) -> None:
    """At once: one of them may lead before it looks for what has expired the next time."""
    cluster = broker_cluster(
        count=2, config={"default.replication.factor": "2", "log.retention.check.interval.ms": "3600000"}
    )
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=2, config={"segment.bytes": str(SEGMENT_BYTES)})
    with RawClient(cluster[1].address) as one, RawClient(cluster[2].address) as two:
        both = {1: one, 2: two}
        data = batch(b"x" * 900)
        (leader,) = [number for number, each in both.items() if each.produce("t", 0, data).error_code == 0]
        for _ in range(3):
            both[leader].produce("t", 0, data)
        end, code = delete(both[leader], "t", ALL)
        assert code == "none"
        assert delete(both[3 - leader], "t", ALL)[1] == "not_leader_or_follower"
    follower = cluster[3 - leader].data_dir / "t-0"
    wait_until(lambda: [int(path.stem) for path in follower.glob("*.log")] == [end])
