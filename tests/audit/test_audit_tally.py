"""Tallies from headers, by decoding, over the wrap of sequence numbers, and of concatenated ranges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit_world import BUCKET_MS, HOUR_A, PartitionBytes, concatenate, tally
from headrace.audit.batches.scan import record_timestamps
from headrace.audit.batches.tally import Span, check_bucket_ms
from headrace.wire.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, SEQUENCE_SPAN, read_header
from headrace.wire.compression import Codec
from headrace.wire.content import content_of
from headrace.wire.records import Record, encode_batch

CODECS = st.sampled_from(list(Codec))


@st.composite
def encoded_batches(draw: st.DrawFn) -> bytes:
    """A batch of any producer, with any timestamps around a few bucket edges, in any codec."""
    stamps = draw(st.lists(st.integers(HOUR_A - 3, HOUR_A + 2 * BUCKET_MS), min_size=1, max_size=12))
    producer_id = draw(st.sampled_from([-1, 7, 8]))
    known = producer_id >= 0
    return encode_batch(
        [Record(0, stamp, None, b"v") for stamp in stamps],
        codec=draw(CODECS),
        producer_id=producer_id,
        producer_epoch=0 if known else -1,
        base_sequence=draw(st.integers(0, 30)) if known else -1,
    )


@given(batches=st.lists(encoded_batches(), max_size=12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_tally_of_concatenated_ranges_is_the_union(batches: list[bytes], data: st.DataObject) -> None:
    log = PartitionBytes()
    for batch in batches:
        log.append(batch)
    cuts = sorted({0, len(log.cuts) - 1, *data.draw(st.lists(st.integers(0, len(log.cuts) - 1)))})
    pieces = [
        tally(memoryview(log.data)[log.cuts[low] : log.cuts[high]]) for low, high in itertools.pairwise(cuts)
    ]
    assert concatenate(pieces) == tally(log.data)


@given(batches=st.lists(encoded_batches(), max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_record_is_counted_once_in_its_bucket(batches: list[bytes]) -> None:
    log = PartitionBytes()
    expected: dict[tuple[int, int], int] = {}
    for batch in batches:
        log.append(batch)
        header = read_header(batch)
        for stamp in record_timestamps(batch, 0, header):
            key = (stamp - stamp % BUCKET_MS, header.producer_id)
            expected[key] = expected.get(key, 0) + 1
    counts: dict[tuple[int, int], int] = {}
    for span in tally(log.data):
        key = (span.bucket_start_ms, span.producer_id)
        counts[key] = counts.get(key, 0) + span.record_count
        if span.producer_id >= 0:
            assert span.last_sequence - span.first_sequence + 1 == span.record_count
    assert counts == expected


@given(
    codec=CODECS, count=st.integers(1, 50), offset_ms=st.integers(0, BUCKET_MS - 50), first=st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_trusting_a_producer_changes_no_tally(codec: Codec, count: int, offset_ms: int, first: int) -> None:
    batch = encode_batch(
        [Record(0, HOUR_A + offset_ms + index, b"k", b"v" * 20) for index in range(count)],
        codec=codec,
        producer_id=5,
        producer_epoch=1,
        base_sequence=first,
    )
    log = PartitionBytes()
    log.append(batch)
    trusting = tally(log.data, lambda producer_id: producer_id == 5)
    assert trusting == tally(log.data)
    bucket_ms = HOUR_A + offset_ms - offset_ms % BUCKET_MS
    assert trusting == (
        Span(bucket_ms, 5, 1, first, first + count - 1, count, 0, log.end, content_of(batch)),
    )


def test_a_repeated_batch_stays_visible() -> None:
    log = PartitionBytes()
    records = [Record(0, HOUR_A, None, b"v")] * 3
    batch = encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=10)
    log.append(batch)
    log.append(batch)
    spans = tally(log.data)
    assert [(span.first_sequence, span.last_sequence) for span in spans] == [(10, 12), (10, 12)]


def test_sequences_wrap_to_zero() -> None:
    log = PartitionBytes()
    log.append(
        encode_batch(
            [Record(0, HOUR_A, None, b"v")] * 5,
            producer_id=5,
            producer_epoch=0,
            base_sequence=SEQUENCE_SPAN - 2,
        )
    )
    spans = tally(log.data)
    assert [(span.first_sequence, span.last_sequence) for span in spans] == [
        (SEQUENCE_SPAN - 2, SEQUENCE_SPAN - 1),
        (0, 2),
    ]


def test_a_straddling_batch_without_producer_is_split_by_decoding() -> None:
    stamps = [HOUR_A - 1, HOUR_A, HOUR_A - 2, HOUR_A + BUCKET_MS]
    log = PartitionBytes()
    log.append(encode_batch([Record(0, stamp, None, b"v") for stamp in stamps], codec=Codec.ZSTD))
    counts = {span.bucket_start_ms: span.record_count for span in tally(log.data)}
    assert counts == {HOUR_A - BUCKET_MS: 2, HOUR_A: 1, HOUR_A + BUCKET_MS: 1}


def test_log_append_time_counts_all_records_at_the_brokers_time() -> None:
    log = PartitionBytes()
    records = [Record(0, HOUR_A + index * BUCKET_MS, None, b"v") for index in range(3)]
    log.append(encode_batch(records, attributes=LOG_APPEND_TIME_BIT))
    (span,) = tally(log.data)
    assert (span.bucket_start_ms, span.record_count) == (HOUR_A + 2 * BUCKET_MS, 3)


def test_control_batches_are_not_events() -> None:
    log = PartitionBytes()
    log.append(encode_batch([Record(0, HOUR_A, b"k", b"v")], attributes=CONTROL_BIT, producer_id=3))
    assert tally(log.data) == ()


def test_records_that_contradict_their_header_count_by_the_header() -> None:
    batch = bytearray(encode_batch([Record(0, HOUR_A, None, b"v")] * 3))
    batch[61] = 0xFF  # the first record's length
    (span,) = tally(batch)
    assert (span.bucket_start_ms, span.record_count) == (HOUR_A, 3)


def test_only_whole_batches_are_counted() -> None:
    log = PartitionBytes()
    for _ in range(2):
        log.append(encode_batch([Record(0, HOUR_A, None, b"v")]))
    (span,) = tally(log.data[:-1])
    assert (span.record_count, span.end_address) == (1, log.cuts[1])


@pytest.mark.parametrize("bucket_ms", [0, -1, 7, 7_200_000])
def test_a_bucket_must_divide_an_hour(bucket_ms: int) -> None:
    with pytest.raises(ValueError, match="does not divide an hour"):
        check_bucket_ms(bucket_ms)
