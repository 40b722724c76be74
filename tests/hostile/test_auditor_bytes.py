"""The auditor's reading of damaged logs, byte by byte: it always reaches the end, and loses no good batch."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit_world import BUCKET_MS, DC, HOUR_A, TOPIC, Batch, PartitionBytes, tally
from headrace.audit.batches import scan
from headrace.audit.batches.raw_reader import READ_MAX_BYTES, RawBytes, RawReader
from headrace.audit.batches.tally import SPAN_RECORDS_MAX, RunningTally, Span, join
from headrace.audit.counting.partition_counter import CountedPartition, PartitionCounter, SourcePartition
from headrace.audit.counting.salvage import count_past_damage
from headrace.audit.times import OUTSIDE_MS, bucket_start, hour_start, is_named
from headrace.audit.topic.records import DATACENTER_TIER, CorruptRecord, RangeTally
from headrace.wire.batch import HEADER_SIZE_BYTES, SEQUENCE_SPAN, hop, read_header, seal
from headrace.wire.compression import Codec, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch, pack_record

STEPS_MAX = 200


class DamagedLog(RawReader):
    """A broker's answers about a damaged log: it finds batches by their headers, from the starts it knows."""

    def __init__(self, log: PartitionBytes, known_starts: list[int]) -> None:
        self.log = log
        self.known_starts = sorted({0, *known_starts})

    def end(self, topic: str, partition: int) -> int | None:
        return self.log.end

    def read(self, topic: str, partition: int, address: int, max_bytes: int = READ_MAX_BYTES) -> RawBytes:
        data, end = memoryview(bytes(self.log.data)), self.log.end
        if address == end:
            return RawBytes(ErrorCode.NONE, data[:0], end)
        at = max(start for start in self.known_starts if start <= address)
        while at < address:
            size_bytes = self._size(at)
            if size_bytes is None:
                return RawBytes(ErrorCode.KAFKA_STORAGE_ERROR, data[:0], -1)
            if address < at + size_bytes:
                break
            at += size_bytes
        if end - at <= max_bytes:
            return RawBytes(ErrorCode.NONE, data[at:], end, at)
        first_size_bytes = self._size(at)
        if first_size_bytes is None:
            return RawBytes(ErrorCode.KAFKA_STORAGE_ERROR, data[:0], -1)
        return RawBytes(ErrorCode.NONE, data[at : at + max(first_size_bytes, max_bytes)], end, at)

    def _size(self, at: int) -> int | None:
        try:
            header = read_header(self.log.data, at)
        except Exception:
            return None
        fits = header.is_stored_at(at) and at + header.size_bytes <= self.log.end
        return header.size_bytes if fits else None


def counter_of(trusted: bool = True) -> PartitionCounter:
    partition = CountedPartition(TOPIC, 0, SourcePartition(DC, 0), (DATACENTER_TIER,))
    return PartitionCounter(partition, 0, BUCKET_MS, lambda _datacenter, _id: trusted)


def counted(log: PartitionBytes, known_starts: list[int], *, trusted: bool = True) -> PartitionCounter:
    """A counter that has read the whole log."""
    counter, reader = counter_of(trusted), DamagedLog(log, known_starts)
    for _ in range(STEPS_MAX):
        if counter.counted_to == log.end:
            return counter
        assert count_past_damage(reader, counter) == (("", None))
    raise AssertionError(f"counted to {counter.counted_to} of {log.end} only")


def log_of(counts: list[int]) -> PartitionBytes:
    log = PartitionBytes()
    for index, count in enumerate(counts):
        log.append(Batch(0, 5, 0, sum(counts[:index]), count, HOUR_A + index % 3 * BUCKET_MS).encode())
    return log


def split(counter: PartitionCounter) -> tuple[list[RangeTally], list[CorruptRecord]]:
    records = counter.cut()
    tallies = [each for each in records if isinstance(each, RangeTally)]
    return tallies, [each for each in records if isinstance(each, CorruptRecord)]


@given(
    counts=st.lists(st.integers(1, 5), min_size=2, max_size=12),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_flipped_bits_cost_only_their_own_batches(
    counts: list[int], flips: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = log_of(counts)
    sound = bytes(log.data)
    for position, bit in flips:
        log.data[position % log.end] ^= 1 << bit
    starts = data.draw(st.lists(st.sampled_from(log.cuts[:-1])))
    counter = counted(log, starts)
    tallies, corrupt = split(counter)
    records: list[RangeTally | CorruptRecord] = [*tallies, *corrupt]
    pieces = sorted((each.from_address, each.to_address) for each in records)
    assert pieces[0][0] == 0 and pieces[-1][1] == log.end
    assert all(low[1] == high[0] for low, high in itertools.pairwise(pieces))
    aside = [(each.from_address, each.to_address) for each in corrupt]
    for index, ((start, end), count) in enumerate(zip(itertools.pairwise(log.cuts), counts, strict=True)):
        # The leader's epoch is neither in the checksum nor needed.
        same = all(log.data[at] == sound[at] for at in range(start, end) if not start + 12 <= at < start + 16)
        is_aside = any(low < end and start < high for low, high in aside)
        if not same:
            assert is_aside
        elif not is_aside:
            spans = [
                span
                for each in tallies
                for span in each.spans
                if span.first_sequence <= sum(counts[:index])
                and sum(counts[:index]) + count - 1 <= span.last_sequence
            ]
            assert len(spans) == 1


class Served(DamagedLog):
    """A broker that sends the bytes from a known start on without a look at them."""

    def read(self, topic: str, partition: int, address: int, max_bytes: int = READ_MAX_BYTES) -> RawBytes:
        at = max(start for start in self.known_starts if start <= address)
        return RawBytes(ErrorCode.NONE, memoryview(bytes(self.log.data))[at:], self.log.end, at)


@given(counts=st.lists(st.integers(1, 5), min_size=2, max_size=6), bit=st.integers(0, 63), data=st.data())
def test_reading_goes_on_behind_a_batch_whose_offset_is_wrong(
    counts: list[int], bit: int, data: st.DataObject
) -> None:
    log = log_of(counts)
    index = data.draw(st.integers(0, len(counts) - 1))
    start, end = log.cuts[index], log.cuts[index + 1]
    address = data.draw(st.integers(start, end - 1))
    log.data[start + 7 - bit // 8] ^= 1 << bit % 8
    assert Served(log, log.cuts[:-1]).next_batch_after(TOPIC, 0, address) == end
    counter = counter_of()
    counter.skip_to(start)
    assert count_past_damage(Served(log, log.cuts[:-1]), counter) == ("", None)
    _, corrupt = split(counter)
    assert [(each.from_address, each.to_address) for each in corrupt] == [(start, end)]


@pytest.mark.parametrize("index", range(4))
def test_a_damaged_batch_that_begins_before_what_is_counted_is_set_aside(index: int) -> None:
    """The log was exchanged: its batches begin elsewhere."""
    log = log_of([3, 1, 4, 2])
    start, end = log.cuts[index], log.cuts[index + 1]
    log.data[end - 1] ^= 1
    counter = counter_of()
    counter.skip_to(start + 5)
    assert count_past_damage(Served(log, log.cuts[:-1]), counter) == ("", None)
    _, corrupt = split(counter)
    assert [(each.from_address, each.to_address) for each in corrupt] == [(start + 5, end)]


def test_a_good_batch_behind_a_gap_is_not_passed_over() -> None:
    """The place was set aside between two reads."""
    log = log_of([2, 3, 4])
    reader = Served(log, [])

    def behind_gap(topic: str, partition: int, address: int, max_bytes: int = READ_MAX_BYTES) -> RawBytes:
        at = log.cuts[2]
        return RawBytes(ErrorCode.NONE, memoryview(bytes(log.data))[at:], log.end, at)

    reader.read = behind_gap  # type: ignore[method-assign]
    assert reader.next_batch_after(TOPIC, 0, log.cuts[1]) == log.cuts[2]


@pytest.mark.parametrize("starts_known", [True, False])
def test_a_zeroed_batch_is_named_and_counting_goes_on(starts_known: bool) -> None:
    log = log_of([3, 4, 5, 2])
    start, end = log.cuts[1], log.cuts[2]
    log.data[start:end] = bytes(end - start)
    counter = counted(log, log.cuts[:-1] if starts_known else [])
    tallies, (corrupt,) = split(counter)
    assert (corrupt.from_address, corrupt.record_count, corrupt.first_ms) == (start, None, None)
    assert "whose header cannot be believed" in corrupt.cause
    # Without a later start the broker cannot say where the next batch begins.
    assert corrupt.to_address == (end if starts_known else log.end)
    assert sum(span.record_count for each in tallies for span in each.spans) == (10 if starts_known else 3)


def test_a_wrong_checksum_keeps_what_the_header_says() -> None:
    log = log_of([3, 4, 5])
    log.data[log.cuts[1] + HEADER_SIZE_BYTES + 3] ^= 1
    tallies, (corrupt,) = split(counted(log, []))
    place = (corrupt.from_address, corrupt.to_address)
    assert place == (log.cuts[1], log.cuts[2])
    numbers = (corrupt.producer_id, corrupt.producer_epoch, corrupt.first_sequence, corrupt.last_sequence)
    assert (corrupt.record_count, *numbers) == (4, 5, 0, 3, 6)
    assert (corrupt.first_ms, corrupt.in_tally) == (HOUR_A + BUCKET_MS, False)
    assert [(each.from_address, each.to_address) for each in tallies] == [
        (0, log.cuts[1]),
        (log.cuts[2], log.end),
    ]


@given(
    payload=st.binary(max_size=200),
    count=st.integers(1, 2**31 - 1),
    base_ms=st.integers(-(2**63), 2**63 - 1),
    max_ms=st.integers(-(2**63), 2**63 - 1),
    codec=st.sampled_from(list(Codec)),
    producer=st.sampled_from(
        [(-1, -1, -1), (7, 0, SEQUENCE_SPAN - 1), (2**63 - 1, 2**15 - 1, 5), (7, -1, -1)]
    ),
    trusted=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_batch_under_a_right_checksum_is_counted_or_named(
    payload: bytes,
    count: int,
    base_ms: int,
    max_ms: int,
    codec: Codec,
    producer: tuple[int, int, int],
    trusted: bool,
) -> None:
    log = log_of([2])
    batch = seal(
        payload,
        record_count=count,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        attributes=int(codec),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    if count < len(batch):
        log.append(batch)
    log.append(Batch(0, 5, 0, 2, 3, HOUR_A).encode())
    tallies, corrupt = split(counted(log, log.cuts[:-1], trusted=trusted))
    assert sum(s.record_count for t in tallies for s in t.spans if s.producer_id == 5) == 5
    for each in corrupt:
        assert each.record_count is None or each.record_count < len(batch)
    for found in tallies:
        for span in found.spans:
            assert is_named(span.bucket_start_ms) or span.bucket_start_ms == OUTSIDE_MS
            assert -(2**31) <= span.record_count < 2**31


def hostile(payload: bytes, count: int, codec: Codec = Codec.NONE) -> RunningTally:
    log = PartitionBytes()
    log.append(
        seal(
            payload,
            record_count=count,
            base_timestamp_ms=HOUR_A,
            max_timestamp_ms=HOUR_A,
            attributes=int(codec),
        )
    )
    running = RunningTally(BUCKET_MS)
    assert running.feed(log.data, 0) == log.end
    return running


def test_a_varint_without_end_costs_ten_bytes() -> None:
    bomb = compress(Codec.ZSTD, b"\xff" * (63 << 20))
    running = hostile(bomb, 2, Codec.ZSTD)
    assert (running.damages[0].record_count, running.damages[0].cause) == (2, "varint of more than 10 bytes")


def test_a_batch_that_unpacks_to_gigabytes_is_not_unpacked() -> None:
    bomb = compress(Codec.ZSTD, bytes(scan.DECODED_MAX_BYTES + 1))
    running = hostile(bomb, 3, Codec.ZSTD)
    assert "unpacks to more than" in running.damages[0].cause
    assert [span.record_count for span in running.spans] == [3]


def test_a_record_of_negative_length_is_named() -> None:
    running = hostile(b"\x03" + bytes(7), 1)
    (damage,) = running.damages
    assert (damage.record_count, damage.in_tally) == (1, True)
    assert damage.cause == "record 0 claims -2 bytes, 7 are left"


def test_a_count_that_cannot_be_true_counts_nothing() -> None:
    running = hostile(pack_record(0, 0, None, b"v", ()), 40)
    assert (running.spans, running.damages[0].record_count) == ((), None)


def test_a_batch_over_too_many_buckets_counts_by_its_header() -> None:
    count = scan.RUNS_PER_BATCH_MAX + 2
    records = [Record(0, HOUR_A + index * BUCKET_MS, None, b"v") for index in range(count)]
    log = PartitionBytes()
    log.append(encode_batch(records))
    running = RunningTally(BUCKET_MS)
    running.feed(log.data, 0)
    assert [span.record_count for span in running.spans] == [count]
    assert "more than 10000 times" in running.damages[0].cause


@given(time_ms=st.integers(-(2**64), 2**64))
def test_times_that_no_calendar_has_share_one_bucket(time_ms: int) -> None:
    start = bucket_start(time_ms, BUCKET_MS)
    assert start == (time_ms - time_ms % BUCKET_MS if is_named(time_ms) else OUTSIDE_MS)
    assert hour_start(start) == hour_start(time_ms)


def test_microseconds_for_milliseconds_are_counted_outside_of_the_calendar() -> None:
    log = PartitionBytes()
    log.append(encode_batch([Record(0, HOUR_A * 1_000 + index, None, b"v") for index in range(3)]))
    (span,) = tally(log.data)
    assert (span.bucket_start_ms, span.record_count) == (OUTSIDE_MS, 3)


def test_counts_never_leave_an_avro_int() -> None:
    span = Span(HOUR_A, -1, -1, -1, -1, SPAN_RECORDS_MAX, 0, 1)
    assert join(span, span) is None


def test_tallies_stay_small_enough_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.audit.counting.partition_counter.SPANS_PER_TALLY_MAX", 4)
    log = PartitionBytes()
    for number in range(10):
        log.append(Batch(0, number, 0, 0, 1, HOUR_A).encode())
    counter = counter_of()
    counter.feed(memoryview(bytes(log.data)), 0)
    assert counter.is_full
    tallies, _ = split(counter)
    assert [len(each.spans) for each in tallies] == [4, 4, 2]
    assert [each.from_address for each in tallies[1:]] == [each.to_address for each in tallies[:-1]]


def test_a_header_for_another_place_stops_the_count_there() -> None:
    log = log_of([1, 2, 3])
    struct.pack_into(">q", log.data, log.cuts[1], 2**62)  # the base offset: no checksum covers it
    counter = counter_of()
    counter.feed(memoryview(bytes(log.data)), 0)
    assert counter.counted_to == log.cuts[1]
    tallies, (corrupt,) = split(counted(log, []))
    assert (corrupt.from_address, corrupt.to_address) == (log.cuts[1], log.cuts[2])
    assert sum(span.record_count for each in tallies for span in each.spans) == 4
    assert len(list(hop(log.data))) == 3
