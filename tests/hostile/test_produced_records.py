"""Produce opens batches before it believes them: what a client sends hurts nobody but that client."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, RawClient
from headrace.wire.batch import (
    CRC_AT,
    HEADER_SIZE_BYTES,
    LENGTH_END_BYTES,
    MAGIC_AT,
    read_header,
    readdress,
    seal,
)
from headrace.wire.compression import XERIAL_HEADER, Codec, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, decode_records, encode_batch, pack_record

BOMB_BYTES: Final = 200 * 1024 * 1024
MEMORY_GROWTH_MAX_KB: Final = 250 * 1024
IN_2015_MS: Final = 1_430_000_000_000
CODECS: Final = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"records-{uuid4().hex[:12]}"
    client.create_topic(name)
    return name


def now_ms() -> int:
    return int(time.time() * 1000)


def sealed(records: bytes, count: int = 1, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    time_ms = now_ms()
    fields = {"base_timestamp_ms": time_ms, "max_timestamp_ms": time_ms, "attributes": 0} | fields
    fields["attributes"] |= int(codec)
    return seal(records, record_count=count, **fields)


def record(index: int = 0, value: bytes | None = b"v", delta_ms: int = 0) -> bytes:
    return pack_record(index, delta_ms, None, value, ())


GOOD: Final = record()


# --- records ---

BAD_RECORDS: Final = {
    "garbage": (b"\x01\x02\x03", 1, 0),
    "absurd length": (b"\xfe\xff\xff\xff\x0f" + bytes(8), 1, 0),
    "negative length": (b"\x03" + bytes(8), 1, 0),
    "absurd value": (b"\x18\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00\x00\x00", 1, 0),
    "second one cut": (GOOD + record(1)[:-1], 2, 1),
    "same offset twice": (GOOD + GOOD, 2, 1),
    "first offset missing": (record(1), 1, 0),
    "fewer than announced": (GOOD, 2, 1),
    "more than announced": (GOOD + record(1), 1, 0),
    "sixty announced": (GOOD, 60, 1),
}


@pytest.mark.parametrize(("records", "count", "culprit"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_with_a_bad_record_is_refused_by_that_records_number(
    client: RawClient, topic: str, codec: Codec, records: bytes, count: int, culprit: int
) -> None:
    result = client.produce(topic, 0, sealed(compress(codec, records), count, codec))
    assert result.error_code == ErrorCode.INVALID_RECORD, result
    assert [each.batch_index for each in result.record_errors] == [culprit]
    assert f"record {culprit}: " in (result.error_message or "")
    # The same through the fast path, which knows the request's head by now.
    assert client.produce(topic, 0, sealed(GOOD)).error_code == ErrorCode.NONE
    again = client.produce(topic, 0, sealed(compress(codec, records), count, codec))
    assert (again.error_code, again.record_errors) == (result.error_code, result.record_errors)
    assert len(decode_records(client.read_all(topic, 0))) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_data_that_no_codec_made_is_refused(client: RawClient, topic: str, codec: Codec) -> None:
    cut = compress(codec, GOOD * 50)[:-6]
    for data in (b"no codec", b"", cut):
        assert client.produce(topic, 0, sealed(data, 50, codec)).error_code == ErrorCode.INVALID_RECORD
    assert client.list_offset(topic, 0, -1)[0] == 0


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_a_good_batch_keeps_its_bytes_and_its_checksum(client: RawClient, topic: str, codec: Codec) -> None:
    time_ms = now_ms()
    records = [
        Record(0, time_ms, b"k", b"v" * 500, (("h", b"x"), ("h", None))),
        Record(1, time_ms - 9, None, None),
        Record(2, time_ms + 70, b"", b""),
    ]
    sent = encode_batch(records, codec=codec)
    for _ in range(2):
        assert client.produce(topic, 0, sent).error_code == ErrorCode.NONE
    stored = client.read_all(topic, 0)
    assert stored[MAGIC_AT : len(sent)] == sent[MAGIC_AT:]
    assert stored[CRC_AT : CRC_AT + 4] == sent[CRC_AT : CRC_AT + 4]


def test_headers_alone_are_checked_where_the_topic_says_so(client: RawClient) -> None:
    name = f"trusted-{uuid4().hex[:12]}"
    client.create_topic(name, config={"message.validation": "headers"})
    batch = sealed(b"whatever this is")
    for _ in range(2):
        assert client.produce(name, 0, batch).error_code == ErrorCode.NONE
    flipped = bytearray(batch)
    flipped[-1] ^= 1
    assert client.produce(name, 0, bytes(flipped)).error_code == ErrorCode.CORRUPT_MESSAGE


def test_a_mirrors_copy_takes_whatever_its_checksum_covers(client: RawClient) -> None:
    name = f"copy-{uuid4().hex[:12]}"
    client.create_topic(name, config={"headrace.mirror": "true"})
    batch = bytearray(sealed(b"an older broker stored this", base_timestamp_ms=-5, max_timestamp_ms=2**62))
    readdress(batch, 0, 0, leader_epoch=3)
    assert client.produce(name, 0, bytes(batch)).error_code == ErrorCode.NONE
    assert client.read_all(name, 0) == bytes(batch)


# --- timestamps ---


@pytest.mark.parametrize("time_ms", [IN_2015_MS, 0, -1], ids=["2015", "1970", "none"])
def test_old_records_and_those_without_a_timestamp_are_stored(
    client: RawClient, topic: str, time_ms: int
) -> None:
    batch = sealed(GOOD, base_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    for _ in range(2):
        assert client.produce(topic, 0, batch).error_code == ErrorCode.NONE


@pytest.mark.parametrize("time_ms", [-2, -(2**63), 2**63 - 1, IN_2015_MS * 1000, 253_402_300_799_000])
def test_timestamps_beyond_reason_are_refused(client: RawClient, topic: str, time_ms: int) -> None:
    batch = sealed(GOOD, base_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    for _ in range(2):
        result = client.produce(topic, 0, batch)
        assert result.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in result.record_errors] == [0]
        assert f"timestamp {time_ms} ms" in (result.error_message or "")
        assert "message.timestamp.after.max.ms=3600000" in (result.error_message or "")
        assert client.produce(topic, 0, sealed(GOOD)).error_code == ErrorCode.NONE
    assert client.list_offset(topic, 0, now_ms() + 3_600_000)[0] == -1


def test_the_record_out_of_bounds_is_named(client: RawClient, topic: str) -> None:
    records = GOOD + record(1, delta_ms=86_400_000) + record(2)
    result = client.produce(topic, 0, sealed(records, 3))
    assert (result.error_code, result.record_errors[0].batch_index) == (ErrorCode.INVALID_TIMESTAMP, 1)
    far = sealed(record(delta_ms=2**62), base_timestamp_ms=-(2**62), max_timestamp_ms=0)
    assert client.produce(topic, 0, far).error_code == ErrorCode.INVALID_RECORD, "a delta of 9 bytes"


def test_a_topics_own_bounds(client: RawClient) -> None:
    name = f"bounds-{uuid4().hex[:12]}"
    bounds = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "172800000"}
    client.create_topic(name, config=bounds)
    tomorrow = now_ms() + 86_400_000
    ahead = sealed(GOOD, base_timestamp_ms=tomorrow, max_timestamp_ms=tomorrow)
    old = sealed(GOOD, base_timestamp_ms=IN_2015_MS, max_timestamp_ms=IN_2015_MS)
    assert client.produce(name, 0, ahead).error_code == ErrorCode.NONE
    assert client.produce(name, 0, old).error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("claimed_ms", [2**62, -1, 0])
def test_a_wrong_largest_timestamp_is_corrected(client: RawClient, topic: str, claimed_ms: int) -> None:
    """As Apache Kafka does: one of Go's clients leaves the field out."""
    time_ms = now_ms()
    batch = sealed(GOOD + record(1, delta_ms=9), 2, base_timestamp_ms=time_ms, max_timestamp_ms=claimed_ms)
    for _ in range(2):
        assert client.produce(topic, 0, batch).error_code == ErrorCode.NONE
    header = read_header(client.read_all(topic, 0))
    assert (header.max_timestamp_ms, header.record_count) == (time_ms + 9, 2)
    assert client.list_offset(topic, 0, time_ms + 9)[1] == time_ms + 9


# --- bombs ---


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_in_bounded_memory(
    one_broker: BrokerCluster, client: RawClient, topic: str, codec: Codec
) -> None:
    bomb = snappy_bomb() if codec is Codec.SNAPPY else compress(codec, record(value=bytes(BOMB_BYTES)))
    batch = sealed(bomb, 1, codec)
    assert len(batch) < 1_000_000
    before_kb = resident_kb(one_broker[1].pid)
    result = client.produce(topic, 0, batch)
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE, result
    assert resident_kb(one_broker[1].pid) - before_kb < MEMORY_GROWTH_MAX_KB
    assert client.produce(topic, 0, sealed(GOOD)).error_code == ErrorCode.NONE


def snappy_bomb() -> bytes:
    """A block that announces four thousand million bytes."""
    block = b"\xff\xff\xff\xff\x0f" + bytes(20)
    return XERIAL_HEADER + struct.pack(">i", len(block)) + block


def test_snappy_that_announces_or_splits_too_much(client: RawClient, topic: str) -> None:
    announced = client.produce(topic, 0, sealed(snappy_bomb(), 1, Codec.SNAPPY))
    assert announced.error_code == ErrorCode.MESSAGE_TOO_LARGE
    tiny = struct.pack(">i", 3) + b"\x01\x00a"
    split = client.produce(topic, 0, sealed(XERIAL_HEADER + tiny * 100_000, 1, Codec.SNAPPY))
    assert split.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_more_records_than_bytes_are_stored_only_within_max_message_bytes(
    client: RawClient, topic: str
) -> None:
    name = f"headers-{uuid4().hex[:12]}"
    client.create_topic(name, config={"message.validation": "headers"})
    many = sealed(compress(Codec.ZSTD, record(value=None) * 1_000_000), 1_000_000, Codec.ZSTD)
    assert read_header(many).record_count > len(many)
    for each in (topic, name):
        assert client.produce(each, 0, many).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert client.list_offset(each, 0, -1)[0] == 0
    # Few enough to fit.
    few = sealed(compress(Codec.ZSTD, record(value=None) * 10_000), 10_000, Codec.ZSTD)
    assert read_header(few).record_count > len(few)
    assert client.produce(name, 0, few).error_code == ErrorCode.NONE
    stored = read_header(client.read_all(name, 0))
    assert (stored.codec, stored.record_count) == (Codec.NONE, 10_000)
    absurd = sealed(compress(Codec.ZSTD, b"\xff" * 1_000), 2**31 - 1, Codec.ZSTD)
    for each in (topic, name):
        assert client.produce(each, 0, absurd).error_code == ErrorCode.INVALID_RECORD


# --- order, while a batch is checked on a thread ---


def large_batch(**fields: int) -> bytes:
    """A valid batch that unpacks to 3 MB: too much for the event loop."""
    records = [Record(i, now_ms(), None, b"v" * 3_000) for i in range(1_000)]
    plain = encode_batch(records, codec=Codec.ZSTD)
    header = read_header(plain)
    return seal(
        plain[HEADER_SIZE_BYTES:],
        attributes=int(Codec.ZSTD),
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        **fields,
    )


def test_requests_behind_one_that_is_checked_on_a_thread_keep_their_order(
    client: RawClient, topic: str
) -> None:
    frames = []
    for number in range(30):
        sequence = (number + 2) // 3 * 1_000 + (number - (number + 2) // 3)
        batch = (
            large_batch(base_sequence=sequence, producer_id=77, producer_epoch=0)
            if number % 3 == 0
            else sealed(GOOD, base_sequence=sequence, producer_id=77, producer_epoch=0)
        )
        frames.append(client.produce_frame(topic, 0, batch, acks=(1, -1)[number % 2]))
    client.send(b"".join(frames))
    results = [client.read_produced() for _ in frames]
    assert {result.error_code for result in results} == {ErrorCode.NONE}, results
    offsets = [result.base_offset for result in results]
    assert offsets == sorted(offsets) and len(set(offsets)) == 30


def test_without_acks_the_order_is_the_same(client: RawClient, topic: str) -> None:
    client.send(client.produce_frame(topic, 0, large_batch(), acks=0))
    client.send(client.produce_frame(topic, 0, encode_batch([Record(0, now_ms(), None, b"x")]), acks=0))
    last = client.produce(topic, 0, encode_batch([Record(0, now_ms(), None, b"y")]))
    assert last.error_code == ErrorCode.NONE
    headers = []
    data = client.read_all(topic, 0)
    at = 0
    while at < len(data):
        headers.append(read_header(data, at))
        at += headers[-1].size_bytes
    assert [header.record_count for header in headers] == [1_000, 1, 1]


# --- refusals ---


def test_a_broken_batch_in_anothers_name_holds_nobody_up(
    one_broker: BrokerCluster, client: RawClient, topic: str
) -> None:
    def batch(sequence: int) -> bytes:
        return sealed(GOOD, producer_id=9_001, producer_epoch=0, base_sequence=sequence)

    for sequence in range(3):
        assert client.produce(topic, 0, batch(sequence)).error_code == ErrorCode.NONE
    forged = bytearray(batch(0))
    forged[CRC_AT] ^= 0xFF
    with RawClient(one_broker.bootstrap) as attacker:
        assert attacker.produce(topic, 0, bytes(forged)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert (
            attacker.produce("no-such-topic", 0, bytes(forged)).error_code
            == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    result = client.produce(topic, 0, batch(3))
    assert result.error_code == ErrorCode.NONE, result.error_message


def test_a_batch_cut_in_its_length_field_is_refused(client: RawClient, topic: str) -> None:
    batch = bytearray(sealed(GOOD))
    struct.pack_into(">i", batch, LENGTH_END_BYTES - 4, 2**31 - 1)
    assert client.produce(topic, 0, bytes(batch)).error_code == ErrorCode.CORRUPT_MESSAGE
