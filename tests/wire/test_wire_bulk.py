"""Packing and unpacking many records at once gives what packing and unpacking each by itself gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.batch import HEADER_SIZE_BYTES, read_header
from headrace.wire.builder import BatchBuilder
from headrace.wire.compression import Codec
from headrace.wire.errors import WireError
from headrace.wire.records import Header, Record, RecordColumns, _unpack, decode_records, encode_batch
from headrace.wire.uniform import RUN_RECORDS_MIN, unpack_uniform
from headrace.wire.varints import VARINT_TABLE_SIZE

NOON_MS = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]

lengths = st.sampled_from([0, 1, 55, 63, 64, 200, 8191, 8192, VARINT_TABLE_SIZE - 40, VARINT_TABLE_SIZE])
steps_ms = st.sampled_from([0, 1, 63, 64, 8191, 8192, VARINT_TABLE_SIZE, 600_000, -1])
counts = st.sampled_from([1, 2, RUN_RECORDS_MIN, 63, 64, 65, 300])
seeds = st.integers(0, 2**32)
quick = settings(max_examples=80, deadline=None)


@st.composite
def uniform_rows(draw: st.DrawFn) -> list[Row]:
    """Values of one length whose times change a few times: what is packed and unpacked in stretches."""
    length = draw(lengths)
    contents = random.Random(draw(seeds))
    rows: list[Row] = []
    time_ms = NOON_MS
    for count in draw(st.lists(counts, min_size=1, max_size=4)):
        rows += [(time_ms, None, contents.randbytes(length), ()) for _ in range(count)]
        time_ms += draw(steps_ms)
    return rows


@st.composite
def nearly_uniform_rows(draw: st.DrawFn) -> list[Row]:
    """The same with one other record somewhere."""
    rows = draw(uniform_rows())
    odd: Row = draw(
        st.sampled_from(
            [
                (NOON_MS, None, None, ()),
                (NOON_MS, b"", b"v", ()),
                (NOON_MS, b"k" * 70, b"v" * 200, ()),
                (NOON_MS, None, b"v" * 200, (("h", None),)),
                (NOON_MS + 10**12, None, b"v", ()),
                (NOON_MS - 10**12, None, b"v", ()),
                (NOON_MS, None, b"v" * 70_000, ()),
            ]
        )
    )
    rows.insert(draw(st.integers(0, len(rows))), odd)
    return rows


any_rows = st.one_of(uniform_rows(), nearly_uniform_rows())


def records_of(rows: list[Row]) -> list[Record]:
    return [Record(i, *row) for i, row in enumerate(rows)]


def payload(batch: bytes) -> bytes:
    return batch[HEADER_SIZE_BYTES:]


@quick
@given(any_rows, st.sampled_from([Codec.NONE, Codec.ZSTD]), seeds)
def test_the_builder_makes_the_bytes_of_the_encoder(rows: list[Row], codec: Codec, seed: int) -> None:
    expected = encode_batch(records_of(rows), codec=codec, producer_id=9, producer_epoch=2, base_sequence=11)
    builder = BatchBuilder(limit_bytes=10**9)
    interruptions = random.Random(seed)
    for row in rows:
        before_bytes = builder.bound_bytes
        assert builder.append(*row)
        assert builder.bound_bytes > before_bytes
        if interruptions.random() < 0.05:
            # Packs what was appended so far: the rest begins at any offset delta.
            assert builder.size_bytes == builder.bound_bytes
    assert builder.bound_bytes >= len(encode_batch(records_of(rows)))
    assert builder.build(codec=codec, producer_id=9, producer_epoch=2, base_sequence=11) == expected
    assert builder.max_timestamp_ms == max(row[0] for row in rows)


@quick
@given(any_rows, st.integers(HEADER_SIZE_BYTES, 100_000))
def test_a_batch_is_filled_to_the_last_record_that_fits(rows: list[Row], limit_bytes: int) -> None:
    builder = BatchBuilder(limit_bytes)
    taken = 0
    while taken < len(rows) and builder.append(*rows[taken]):
        taken += 1
    assert taken >= 1
    assert builder.size_bytes == len(encode_batch(records_of(rows[:taken])))
    if taken > 1:
        assert builder.size_bytes <= limit_bytes
    if taken < len(rows):
        assert len(encode_batch(records_of(rows[: taken + 1]))) > limit_bytes


@quick
@given(any_rows, st.integers(0, 2**40))
def test_records_come_back(rows: list[Row], base_offset: int) -> None:
    records = [Record(base_offset + i, *row) for i, row in enumerate(rows)]
    assert decode_records(encode_batch(records, base_offset=base_offset)) == records


def test_uniform_batches_are_unpacked_at_once_and_others_are_not() -> None:
    rows: list[Row] = [(NOON_MS + i // 100, None, b"%04d" % i, ()) for i in range(1000)]
    found = unpack_uniform(payload(encode_batch(records_of(rows))), len(rows))
    assert found is not None
    assert found.values == [row[2] for row in rows]
    assert found.timestamp_deltas_ms == [i // 100 for i in range(1000)]
    for odd in ((NOON_MS, b"k", b"0500", ()), (NOON_MS, None, b"0500.", ()), (NOON_MS, None, None, ())):
        batch = encode_batch(records_of([*rows[:500], odd, *rows[501:]]))
        assert unpack_uniform(payload(batch), len(rows)) is None


def test_offsets_with_gaps_are_not_uniform() -> None:
    records = [Record(2 * i, NOON_MS, None, b"v", ()) for i in range(100)]
    batch = encode_batch(records, keep_offsets=True)
    assert unpack_uniform(payload(batch), 100) is None
    assert decode_records(batch) == records


@quick
@given(uniform_rows(), st.data())
def test_damaged_uniform_batches_are_read_as_before(rows: list[Row], data: st.DataObject) -> None:
    """Whatever the bytes are: both ways agree, or the fast one leaves the batch to the other."""
    batch = encode_batch(records_of(rows))
    damaged = bytearray(payload(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        # Most damage to a value changes nothing but the value: aim at the bytes between values, too.
        at = data.draw(st.one_of(st.integers(0, len(damaged) - 1), st.integers(0, min(40, len(damaged) - 1))))
        damaged[at] ^= data.draw(st.integers(1, 255))
    fast = unpack_uniform(bytes(damaged), len(rows))
    if fast is None:
        return
    header = read_header(batch)
    slow, end = _unpack(bytes(damaged), header)
    assert end == len(damaged)
    assert slow == RecordColumns(
        list(range(len(rows))),
        [header.base_timestamp_ms + delta_ms for delta_ms in fast.timestamp_deltas_ms],
        [None] * len(rows),
        fast.values,
        [()] * len(rows),
    )


def test_log_append_time_of_uniform_batches() -> None:
    rows: list[Row] = [(NOON_MS + i // 50, None, b"v", ()) for i in range(100)]
    decoded = decode_records(encode_batch(records_of(rows), attributes=0x08))
    assert {record.timestamp_ms for record in decoded} == {NOON_MS + 1}


def test_a_builder_packs_headers_when_it_gets_them() -> None:
    headers: list[Header] = [("a", b"1")]
    builder = BatchBuilder(10_000)
    builder.append(NOON_MS, None, b"v", headers)
    headers.append(("b", b"2"))
    (record,) = decode_records(builder.build())
    assert list(record.headers) == [("a", b"1")]
    with pytest.raises(AttributeError):
        builder.append(NOON_MS, None, b"v", ((b"not text", b""),))  # type: ignore[arg-type]
    assert builder.record_count == 1


def test_a_claim_of_more_records_than_there_are_is_refused() -> None:
    batch = bytearray(encode_batch(records_of([(NOON_MS, None, b"v" * 30, ())] * 100)))
    for count in (99, 101, 300):
        batch[57:61] = count.to_bytes(4, "big")
        with pytest.raises(WireError):
            decode_records(bytes(batch))
