"""ListOffsets is answered whatever is asked of it and whatever batches hold, with bounded memory, while other
clients are served.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.log import search
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.search import Search, TimestampedOffset
from headrace.wire.batch import seal
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.messages import decode_response
from headrace.wire.records import Record, encode_batch, pack_record
from headrace.wire.timestamps import timestamps

LIST_OFFSETS = 2
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
TIMES = (INT64_MIN, INT64_MIN + 1, -100, -6, -5, -4, -3, -2, -1, 0, 1, INT64_MAX - 1, INT64_MAX)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = PartitionLog(tmp_path / "t-0", LogConfig())
    yield made
    made.close()


def run(found: Search) -> TimestampedOffset | None:
    """What a search ends with; its segments are scanned here and now."""
    try:
        step = next(found)
        while True:
            result = step.run()
            step.learn()
            step = found.send(result)
    except StopIteration as ended:
        outcome: TimestampedOffset | None = ended.value
        return outcome


def raw_batch(
    payload: bytes, count: int, *, base_ms: int = 1_000, max_ms: int | None = None, codec: Codec = Codec.NONE
) -> bytes:
    return bytes(
        seal(
            payload,
            record_count=count,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=base_ms if max_ms is None else max_ms,
            attributes=int(codec),
        )
    )


def one(timestamp_ms: int) -> bytes:
    return encode_batch([Record(0, timestamp_ms, None, b"v")])


# --- what a log holds ---


def test_a_million_tiny_records_are_searched_within_bounded_memory(log: PartitionLog) -> None:
    """A request of 2.6 kB was stored as 70 MB; one lookup then made 826 MB of Python's lists."""
    count = 1_000_000
    log.append(raw_batch(pack_record(0, 0, None, None, ()) * count, count, max_ms=2_000))
    log.append(one(3_000))
    log.flush()
    tracemalloc.start()
    try:
        assert run(log.search_timestamp(2_000)) == (log.end_address - 1, 3_000)
        assert tracemalloc.get_traced_memory()[1] < 3 * 7 * count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_beyond_the_bound_is_answered_with_its_first_record(
    log: PartitionLog, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather an earlier record than none: a consumer that starts there misses nothing."""
    monkeypatch.setattr(search, "UNPACKED_BATCH_MAX_BYTES", 100_000)
    records = [Record(0, 1_000 + i, None, bytes(100)) for i in range(2_000)]
    batch = encode_batch(records, codec=codec)
    log.append(batch)
    log.flush()
    assert run(log.search_timestamp(2_500)) == (len(batch) - 2_000, 1_000)
    assert run(log.search_timestamp(3_000)) is None


@pytest.mark.parametrize(
    "poison",
    [
        raw_batch(b"no zstd", 1, max_ms=INT64_MAX, codec=Codec.ZSTD),
        raw_batch(b"\x01\x02\x03", 1, max_ms=INT64_MAX),
        raw_batch(b"", 5, max_ms=INT64_MAX),
        raw_batch(b"\xff" * 40, 1, max_ms=INT64_MAX),
        raw_batch(pack_record(0, 0, None, b"v", ())[:-3], 1, max_ms=INT64_MAX),
        raw_batch(pack_record(0, 0, None, b"v", ()), 1, max_ms=2**62),
    ],
    ids=["not compressed", "three bytes", "empty", "endless varint", "cut", "a lie about its times"],
)
def test_a_poisoned_batch_hides_nothing_behind_it(log: PartitionLog, poison: bytes) -> None:
    log.append(one(1_000))
    log.append(poison)
    log.append(one(5_000))
    log.flush()
    assert run(log.search_timestamp(1_000)) == (len(one(1_000)) - 1, 1_000)
    assert run(log.search_timestamp(4_000)) == (log.end_address - 1, 5_000)
    assert run(log.search_timestamp(INT64_MAX)) is None


@pytest.mark.parametrize("timestamp_ms", TIMES)
@pytest.mark.parametrize("asked_ms", TIMES)
def test_times_at_the_ends_of_int64(log: PartitionLog, timestamp_ms: int, asked_ms: int) -> None:
    log.append(one(timestamp_ms))
    log.flush()
    expected = (log.end_address - 1, timestamp_ms) if timestamp_ms >= asked_ms else None
    assert run(log.search_timestamp(asked_ms)) == expected
    assert run(log.search_max_timestamp()) == (
        (log.end_address - 1, timestamp_ms) if timestamp_ms >= 0 else None
    )


def test_sums_beyond_int64_wrap() -> None:
    batch = raw_batch(pack_record(0, 5, None, None, ()), 1, base_ms=INT64_MAX)
    assert list(timestamps(batch, limit_bytes=1_000)) == [(0, INT64_MIN + 4)]


@given(times=st.lists(st.integers(0, 2**41), min_size=1, max_size=50), codec=st.sampled_from(list(Codec)))
def test_the_times_of_a_batch_are_those_of_its_records(times: list[int], codec: Codec) -> None:
    records = [Record(0, ms, b"k" * (ms % 3), bytes(ms % 300)) for ms in times]
    batch = encode_batch(records, codec=codec, base_offset=7)
    assert list(timestamps(batch, limit_bytes=1 << 20)) == list(enumerate(times, start=7))


@given(payload=st.binary(max_size=60), count=st.integers(1, 20))
def test_any_bytes_are_read_or_refused(payload: bytes, count: int) -> None:
    try:
        for _, timestamp_ms in timestamps(raw_batch(payload, count), limit_bytes=1_000):
            assert INT64_MIN <= timestamp_ms <= INT64_MAX
    except CorruptBatchError:
        return


# --- what a client asks ---


def frame(topics: list[tuple[str, list[tuple[int, int]]]], correlation_id: int = 7) -> bytes:
    """ListOffsets version 1, by hand: any partitions and times."""
    body = struct.pack(">hhihii", LIST_OFFSETS, 1, correlation_id, -1, -1, len(topics))
    for name, partitions in topics:
        body += struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(partitions))
        body += b"".join(struct.pack(">iq", *each) for each in partitions)
    return struct.pack(">i", len(body)) + body


def answer(client: RawClient) -> dict[int, tuple[int, int, int]]:
    """Partition to error code, time and offset, of the only topic."""
    _, body = decode_response(client.receive(), api_key=LIST_OFFSETS, version=1)
    (topic,) = body.topics
    found = {
        each.partition_index: (int(each.error_code.value), each.timestamp, each.offset)
        for each in topic.partitions
    }
    assert len(found) == len(topic.partitions), "each partition is answered once"
    return found


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


@pytest.mark.parametrize("time_ms", TIMES)
def test_any_time_is_answered(client: RawClient, time_ms: int) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic)
    batch = one(1_000)
    assert client.produce(topic, 0, batch).error_code == 0
    client.send(frame([(topic, [(0, time_ms)])]))
    code, _, offset = answer(client)[0]
    expected = {-1: len(batch), -2: 0, 0: len(batch) - 1, 1: len(batch) - 1}
    assert offset == expected.get(time_ms, -1)
    # Other times below 0 mean something in later versions alone, or nothing.
    assert code == (ErrorCode.UNSUPPORTED_VERSION if time_ms < -2 else ErrorCode.NONE)


def test_a_partition_that_is_named_twice_is_refused_once(client: RawClient) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, 2)
    client.send(frame([(topic, [(0, 5), *[(1, 5)] * 200, (-1, 5), (7, 5)])]))
    assert {index: code for index, (code, _, _) in answer(client).items()} == {
        0: ErrorCode.NONE,
        1: ErrorCode.INVALID_REQUEST,
        -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_more_searches_than_may_wait_are_all_answered(broker_cluster: StartCluster) -> None:
    """1,500 searches in one request; the bound on those that wait, for all clients together, is 1,000."""
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client, RawClient(cluster.bootstrap) as other:
        client.create_topic("t", 1_500)
        batch = one(1_000)
        for partition in (0, 700, 1_499):
            assert client.produce("t", partition, batch).error_code == 0
        client.send(frame([("t", [(partition, 5) for partition in range(1_500)])]))
        other.create_topic("other")
        assert other.list_offset("other", 0, 5) == (-1, -1)
        found = answer(client)
    assert {code for code, _, _ in found.values()} == {0}
    assert sorted(index for index, (_, _, offset) in found.items() if offset >= 0) == [0, 700, 1_499]


def test_a_long_request_lets_others_through(client: RawClient, one_broker: BrokerCluster) -> None:
    """9,000 unknown partitions are looked up in slices: others are served between them."""
    client.send(frame([("none", [(partition, 5) for partition in range(9_000)])]))
    with RawClient(one_broker.bootstrap) as other:
        deadline = time.monotonic() + 60
        other.create_topic(f"t-{uuid.uuid4().hex[:8]}")
        assert time.monotonic() < deadline
    found = answer(client)
    assert len(found) == 9_000
    assert {code for code, _, _ in found.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
