"""Record batches: round trips, golden bytes, and kafka-python's builder and parser as the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace.wire.batch import HEADER_SIZE_BYTES, hop, read_header, readdress, renumber, verify
from headrace.wire.builder import BatchBuilder
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, DecompressionLimitError, UnsupportedMagicError, WireError
from headrace.wire.records import Header, Record, decode_records, encode_batch
from headrace.wire.varints import zigzag

MILLENNIUM_MS = 946_684_800_000

blobs = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=8), blobs), max_size=3).map(tuple)
times = st.integers(MILLENNIUM_MS - 10**9, MILLENNIUM_MS + 10**9)
bodies = st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=30)
codecs = st.sampled_from(list(Codec))
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Timestamp, key, value and headers of a record.
Row = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]


def numbered(rows: Sequence[Row], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, *row) for i, row in enumerate(rows)]


@quick
@given(bodies, codecs, st.integers(0, 2**40))
def test_a_batch_gives_back_its_records(rows: list[Row], codec: Codec, base_offset: int) -> None:
    records = numbered(rows, base_offset)
    batch = encode_batch(records, codec=codec, base_offset=base_offset, producer_id=7, producer_epoch=1)
    header = read_header(batch)
    verify(batch, 0, header)
    assert header.size_bytes == len(batch)
    assert header.record_count == len(rows)
    assert header.max_timestamp_ms == max(row[0] for row in rows)
    assert decode_records(b"prefix" + batch, 6) == records


@quick
@given(bodies, codecs)
def test_builder_and_encoder_make_the_same_bytes(rows: list[Row], codec: Codec) -> None:
    builder = BatchBuilder(limit_bytes=10**6)
    for row in rows:
        assert builder.append(*row)
    built = builder.build(codec=codec, producer_id=9, producer_epoch=2, base_sequence=11)
    records = numbered(rows)
    assert built == encode_batch(records, codec=codec, producer_id=9, producer_epoch=2, base_sequence=11)
    assert builder.size_bytes == len(builder.build())


@quick
@given(bodies, codecs)
def test_kafka_python_reads_what_we_write(rows: list[Row], codec: Codec) -> None:
    theirs = DefaultRecordBatch(encode_batch(numbered(rows, 40), codec=codec, base_offset=40))
    assert theirs.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, tuple((h[0], h[1]) for h in r.headers)) for r in theirs]
    assert read == [tuple(record) for record in numbered(rows, 40)]


@quick
@given(bodies, codecs)
def test_we_read_what_kafka_python_writes(rows: list[Row], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), False, 5, 3, 17, 1 << 20)
    for i, (time_ms, key, value, head) in enumerate(rows):
        assert builder.append(i, time_ms, key, value, list(head)) is not None
    batch = bytes(builder.build())
    header = read_header(batch)
    verify(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, 17)
    assert decode_records(batch) == numbered(rows)


def test_golden_batch() -> None:
    """Written out by hand from the format's description; the CRC by another implementation."""
    batch = encode_batch(
        [Record(0, 1000, b"k", b"v"), Record(1, 998, None, b"", (("h", None),))],
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
    )
    assert batch.hex(" ") == (
        "00 00 00 00 00 00 00 00 00 00 00 44 ff ff ff ff 02 ff c5 f6 94 "
        "00 00 00 00 00 01 00 00 00 00 00 00 03 e8 00 00 00 00 00 00 03 e8 "
        "00 00 00 00 00 00 00 01 00 02 00 00 00 03 00 00 00 02 "
        "10 00 00 00 02 6b 02 76 00 "
        "12 00 03 02 01 00 02 02 68 01"
    )
    assert DefaultRecordBatch(batch).validate_crc()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101"), (2**31 - 1, "feffffff0f")],
)
def test_golden_varints(value: int, expected: str) -> None:
    assert zigzag(value).hex() == expected


def test_large_and_odd_records_are_packed_without_the_table() -> None:
    rows = [
        (1000, b"k" * 20_000, b"v" * 70_000, ()),
        (1000 + 10**12, None, b"", (("a" * 200, b"b" * 200),)),
        (0, b"", None, ()),
    ]
    builder = BatchBuilder(limit_bytes=10**6)
    for row in rows:
        assert builder.append(*row)
    assert decode_records(builder.build()) == numbered(rows)


def test_a_full_builder_refuses_records_but_takes_a_first_one_of_any_size() -> None:
    builder = BatchBuilder(limit_bytes=200)
    assert builder.append(1, None, b"x" * 500)
    assert not builder.append(1, None, b"x")
    builder = BatchBuilder(limit_bytes=200)
    while builder.append(1, None, b"x" * 20):
        assert builder.size_bytes <= 200
    assert builder.record_count == (200 - HEADER_SIZE_BYTES) // 27
    assert len(builder.build()) == builder.size_bytes


@pytest.mark.parametrize("codec", [c for c in Codec if c is not Codec.NONE])
def test_a_batch_never_has_more_records_than_bytes(codec: Codec) -> None:
    rows = [(1000, None, b"", ())] * 10_000
    batch = encode_batch(numbered(rows), codec=codec)
    header = read_header(batch)
    assert header.record_count <= header.size_bytes
    builder = BatchBuilder(limit_bytes=10**6)
    for row in rows:
        builder.append(*row)
    assert builder.build(codec=codec) == batch


def test_readdress_gives_a_batch_its_byte_address() -> None:
    batch = bytearray(b"..." + encode_batch(numbered([(1000, None, b"v", ())] * 3)))
    made = read_header(batch, 3)
    assert made.address < 0
    assert not made.is_stored_at(made.address)
    base_offset = readdress(batch, 3, 12_345, leader_epoch=7)
    header = read_header(batch, 3)
    verify(batch, 3, header)
    end = 12_345 + header.size_bytes
    assert (header.base_offset, header.next_offset, header.address) == (base_offset, end, 12_345)
    assert header == made._replace(base_offset=end - 3, partition_leader_epoch=7), (
        "nothing else, the CRC neither"
    )
    assert header.is_stored_at(12_345)
    assert not header.is_stored_at(12_346)
    assert [r.offset for r in decode_records(batch, 3)] == [end - 3, end - 2, end - 1]


@quick
@given(bodies, codecs, st.integers(0, 2**62))
def test_a_stored_batch_is_told_from_a_producers(rows: list[Row], codec: Codec, address: int) -> None:
    batch = bytearray(encode_batch(numbered(rows), codec=codec))
    made = read_header(batch)
    assert not made.is_stored_at(made.address)
    readdress(batch, 0, address, leader_epoch=0)
    header = read_header(batch)
    assert header.is_stored_at(header.address)
    assert header.address == address < header.base_offset


def test_renumbering_a_batch_equals_encoding_it_again() -> None:
    records = numbered([(1000, None, b"v", ())] * 3)
    batch = bytearray(b"." + encode_batch(records, producer_id=1, producer_epoch=2, base_sequence=3))
    renumber(batch, 1, 4, 5, 6)
    assert batch[1:] == encode_batch(records, producer_id=4, producer_epoch=5, base_sequence=6)


def test_log_append_time_replaces_the_records_own() -> None:
    batch = encode_batch([Record(0, 10, None, b"a"), Record(1, 20, None, b"b")], attributes=0x08)
    assert [r.timestamp_ms for r in decode_records(batch)] == [20, 20]


def test_control_and_transactional_bits_are_recognised() -> None:
    header = read_header(encode_batch([Record(0, 1, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=0x30))
    assert header.is_control
    assert header.is_transactional


def test_sequence_numbers_wrap_as_kafkas_do() -> None:
    batch = encode_batch(numbered([(1, None, b"", ())] * 3), producer_id=1, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 0


def test_offsets_of_a_compacted_batch_are_kept() -> None:
    records = [Record(103, 1, b"a", b"1"), Record(109, 2, b"b", b"2")]
    batch = encode_batch(records, base_offset=100, keep_offsets=True, last_offset_delta=11)
    assert decode_records(batch) == records
    assert read_header(batch).next_offset == 112


def test_hop_finds_every_complete_batch_and_stops_at_a_short_tail() -> None:
    batches = [encode_batch(numbered([(1, None, b"x" * n, ())])) for n in (1, 50, 9)]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [at for at, _ in hop(data)] == starts
    for cut in range(len(data)):
        whole = sum(1 for i, at in enumerate(starts) if at + len(batches[i]) <= cut)
        assert [at for at, _ in hop(data[:cut])] == starts[:whole]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named(magic: int) -> None:
    old = bytearray(40)
    old[16] = magic
    with pytest.raises(UnsupportedMagicError, match=f"format {magic}"):
        read_header(old)


@pytest.mark.parametrize("codec", [c for c in Codec if c is not Codec.NONE])
def test_a_bomb_is_refused_before_it_unpacks(codec: Codec) -> None:
    batch = encode_batch(numbered([(1, None, bytes(3_000_000), ())]), codec=codec)
    with pytest.raises(DecompressionLimitError):
        decode_records(batch, limit_bytes=1_000_000)
    assert len(decode_records(batch, limit_bytes=4_000_000)) == 1


@quick
@given(bodies, codecs, st.data())
def test_damaged_batches_raise_wire_errors_only(rows: list[Row], codec: Codec, data: st.DataObject) -> None:
    batch = bytearray(encode_batch(numbered(rows), codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(batch) - 1))
        batch[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(batch)))
    for damaged in (bytes(batch), bytes(batch[:cut])):
        try:
            header = read_header(damaged)
            decode_records(damaged, limit_bytes=1_000_000)
            list(hop(damaged))
            verify(damaged, 0, header)
        except WireError:
            pass


@quick
@given(bodies, codecs, st.data())
def test_the_checksum_finds_a_flipped_byte(rows: list[Row], codec: Codec, data: st.DataObject) -> None:
    batch = bytearray(encode_batch(numbered(rows), codec=codec))
    at = data.draw(st.integers(17, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatchError):
        verify(
            batch,
            0,
            read_header(encode_batch(numbered(rows), codec=codec))._replace(
                crc=int.from_bytes(batch[17:21], "big")
            ),
        )


def test_a_header_name_that_is_not_utf_8_is_read_nevertheless() -> None:
    """Librdkafka's users may send one, and Kafka stores it."""
    raw = bytearray(encode_batch([Record(0, 1, None, b"v", (("name", b"x"),))]))
    raw[raw.index(b"name")] = 0xFF
    assert decode_records(raw)[0].headers == (("\ufffdame", b"x"),)
