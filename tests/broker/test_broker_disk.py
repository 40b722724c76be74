"""A disk that fails or stalls under a running broker: which errors clients get, and what continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from fix_broker import RawClient
from fix_faulty_disk import FaultyBroker
from headrace.log import checkpoint
from headrace.wire import produce
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_response, encode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartitionResult
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 120.0


def batch(value: bytes = b"v", **fields: int) -> bytes:
    return encode_batch([Record(0, 1_000, None, value)], **fields)  # type: ignore[arg-type]


@pytest.fixture
def broker(faulty_broker: FaultyBroker) -> FaultyBroker:
    return faulty_broker


@pytest.fixture
def client(broker: FaultyBroker) -> Iterator[RawClient]:
    with RawClient(broker.process.address) as made:
        yield made


def directory(broker: FaultyBroker, partition: str) -> Path:
    return broker.process.data_dir / partition


@pytest.mark.parametrize(("number", "words"), [("EIO", "Input/output error"), ("ENOSPC", "No space left")])
def test_a_failed_fsync_takes_only_its_partition_offline(
    broker: FaultyBroker, client: RawClient, number: str, words: str
) -> None:
    first = batch(b"first")
    assert client.produce("bad", 0, first).error_code == 0
    client.send(client.produce_frame("bad", 0, batch(b"leaves a template")))
    assert client.read_produced().error_code == 0
    visible = client.list_offset("bad", 0, -1)[0]
    broker.fail(f"fdatasync {number} bad-0")
    with RawClient(broker.process.address) as reader:
        began = time.monotonic()
        refused = client.produce("bad", 0, batch(b"second"))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert str(directory(broker, "bad-0")) in (refused.error_message or "")
        assert reader.fetch("bad", 0, visible, max_wait_ms=15_000).error_code == (
            ErrorCode.KAFKA_STORAGE_ERROR
        )
        assert time.monotonic() - began < 14, "waiting requests fail immediately"
    line = broker.log_line("is offline")
    assert str(directory(broker, "bad-0")) in line and words in line and "by itself" in line
    # Each try to open it again fails as well.
    for acks in (1, -1):
        assert client.produce("bad", 0, batch(b"third"), acks=acks).error_code == (
            ErrorCode.KAFKA_STORAGE_ERROR
        )
    for offset in (0, visible):
        assert client.fetch("bad", 0, offset).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for number_of_good in range(3):
        assert client.produce("good", 0, batch(b"%d" % number_of_good)).error_code == 0
    assert len(list(hop(client.read_all("good", 0)))) == 3
    # The disk works again: the running broker reads what it holds, and goes on.
    broker.fail()
    produce_when_open(client, b"fourth")
    assert client_reads(client, "bad") in (3, 4)
    assert client_reads(client, "good") == 3
    broker.process.restart()
    with RawClient(broker.process.address) as again:
        assert client_reads(again, "bad") in (3, 4)
        assert again.produce("bad", 0, batch(b"fifth")).error_code == 0


def produce_when_open(client: RawClient, value: bytes) -> None:
    """Produces to bad-0 once it is served."""
    deadline_s = time.monotonic() + WAIT_MAX_S
    while (found := client.produce("bad", 0, batch(value))).error_code != 0:
        retriable = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE)
        assert found.error_code in retriable and time.monotonic() < deadline_s, found
        time.sleep(0.1)


def client_reads(client: RawClient, topic: str) -> int:
    """How many batches a consumer sees."""
    return len(list(hop(client.read_all(topic, 0))))


def test_a_waiting_fetch_gets_the_error_and_no_data(broker: FaultyBroker, client: RawClient) -> None:
    broker.fail("fdatasync STALL bad-0")
    with RawClient(broker.process.address) as reader:
        client.send(client.produce_frame("bad", 0, batch(b"never durable")))
        nothing = reader.fetch("bad", 0, 0, max_wait_ms=300)
        assert (nothing.error_code, nothing.records or b"", nothing.high_watermark) == (0, b"", 0)
        reader.socket.settimeout(WAIT_MAX_S)
        broker.fail("fdatasync EIO bad-0")
        failed = reader.fetch("bad", 0, 0, max_wait_ms=60_000)
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.read_produced().error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_write_other_than_disk_full_takes_the_partition_offline(
    broker: FaultyBroker, client: RawClient
) -> None:
    assert client.produce("bad", 0, batch(b"first")).error_code == 0
    broker.fail("pwritev EIO bad-0")
    assert client.produce("bad", 0, batch(b"second"), acks=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce("bad", 0, batch(b"third")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce("good", 0, batch(b"first")).error_code == 0
    assert "Input/output error" in broker.log_line("is offline")
    broker.fail()
    produce_when_open(client, b"fourth")
    assert client_reads(client, "bad") == 2


def test_a_clean_stop_does_not_flush_what_failed(broker: FaultyBroker, client: RawClient) -> None:
    broker.fail("fdatasync EIO bad-0")
    assert client.produce("bad", 0, batch(b"first")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.process.stop() == 0
    saved = checkpoint.load(directory(broker, "bad-0"))
    assert saved is not None and saved.recovery_point == 0, "it must not vouch for lost bytes"
    assert checkpoint.load(directory(broker, "good-0")) is not None


# --- a disk that stalls ---


def produce_within(
    client: RawClient, timeout_ms: int, raw: bytes, *topics: str, acks: int = -1
) -> dict[str, ProducePartitionResult]:
    """Sends one request with this timeout; returns the result of each topic."""
    parts = [produce.ProduceTopic(name, NO_UUID, [produce.ProducePartition(0, raw)]) for name in topics]
    request = produce.ProduceRequest(None, acks, timeout_ms, parts)
    client.send(produce.encode_request(request, version=9, correlation_id=client.next_id(), client_id="raw"))
    _, response = produce.decode_response(client.receive(), version=9)
    return {topic.name: topic.partitions[0] for topic in response.topics}


@pytest.mark.parametrize("warm", [False, True])
def test_a_producers_timeout_is_kept(broker: FaultyBroker, client: RawClient, warm: bool) -> None:
    """`warm`: on the fast path, which a client's second request with the same head takes."""
    before = [batch(b"before")] * warm
    for raw in before:
        assert produce_within(client, 400, raw, "bad")["bad"].error_code == 0
    broker.fail("fdatasync STALL bad-0")
    slow = batch(b"slow", producer_id=5, producer_epoch=0, base_sequence=0)
    began = time.monotonic()
    late = produce_within(client, 400, slow, "bad")["bad"]
    took_s = time.monotonic() - began
    assert (late.error_code, late.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert "bad-0: written, but not flushed to the disk within 400 ms" in (late.error_message or "")
    assert 0.4 <= took_s < 20
    assert produce_within(client, 400, batch(b"written"), "bad", acks=1)["bad"].error_code == 0
    both = produce_within(client, 300, batch(b"to both"), "good", "bad")
    assert [both[name].error_code for name in ("good", "bad")] == [0, ErrorCode.REQUEST_TIMED_OUT]
    # A producer with a longer timeout keeps waiting.
    with RawClient(broker.process.address) as patient:
        patient.send(patient.produce_frame("bad", 0, batch(b"patient")))
        hasty = produce_within(client, 0, batch(b"hasty"), "bad")["bad"]
        assert hasty.error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.fail()
        assert patient.read_produced().error_code == 0
    # It was appended nevertheless: a retry gets its offset.
    again = produce_within(client, 10_000, slow, "bad")["bad"]
    assert (again.error_code, again.base_offset) == (0, sum(map(len, before)) + len(slow) - 1)
    assert client_reads(client, "bad") == len(before) + 5


def test_a_cold_lookup_by_timestamp_delays_no_other_request(broker: FaultyBroker, client: RawClient) -> None:
    size_bytes = 0
    for ms in range(5):
        raw = encode_batch([Record(0, ms, None, b"v")])
        size_bytes = len(raw)
        assert client.produce("bad", 0, raw).error_code == 0
    broker.process.restart()  # the segment's starts and timestamps are unknown now
    broker.fail("pread STALL bad-0")
    with RawClient(broker.process.address) as lookup_client, RawClient(broker.process.address) as other:
        parts = (
            ListOffsetsTopic(
                name=TopicName("bad"),
                partitions=(ListOffsetsPartition(partition_index=i32(0), timestamp=i64(3)),),
            ),
            ListOffsetsTopic(
                name=TopicName("good"),
                partitions=(ListOffsetsPartition(partition_index=i32(0), timestamp=i64(-1)),),
            ),
        )
        request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=parts)
        lookup_client.send(encode_request(request, correlation_id=1, client_id="raw"))
        for number in range(5):
            assert other.produce("good", 0, batch(b"%d" % number)).error_code == 0
            assert other.list_offset("bad", 0, -1) == (5 * size_bytes, -1)
        lookup_client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            lookup_client.socket.recv(1)
        lookup_client.socket.settimeout(WAIT_MAX_S)
        broker.fail()
        _, answer = decode_response(lookup_client.receive(), api_key=2, version=7)
        found = [(each.name, each.partitions[0].offset) for each in answer.topics]
        assert found[0] == ("bad", 4 * size_bytes - 1)
        assert found[1][0] == "good"
        broker.fail("pread EIO bad-0")
        broker.process.restart()
    with RawClient(broker.process.address) as lookup_client:
        with pytest.raises(AssertionError, match="kafka_storage_error"):
            lookup_client.list_offset("bad", 0, 3)
        broker.fail()
        assert lookup_client.list_offset("bad", 0, 3) == (4 * size_bytes - 1, 3)
