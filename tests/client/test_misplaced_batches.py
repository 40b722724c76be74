"""A bit that rots in a batch's base offset, which no checksum covers: no record gets another offset by it."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from fix_fake_log import FakeLog
from headrace.client.errors import CorruptRecordsError
from headrace.client.keeping import keep
from headrace.client.partition_fetch import PartitionFetch
from headrace.client.unpacking import ConsumerRecord, FetchedBatches, Unpacker
from headrace.wire.fetch import FetchPartition, FetchPartitionResult
from headrace.wire.records import Record, decode_records, encode_batch

FETCHES_MAX = 200
LARGE_BYTES = 1 << 19


class Rot(NamedTuple):
    """Which bit is flipped of which batch's base offset."""

    batch: int
    bit: int


class Reader:
    """Reads a log as a consumer does, with fetches of `fetch_bytes`; leaves a bad batch out at its second
    reading.
    """

    def __init__(self, log: FakeLog, start: int, fetch_bytes: int) -> None:
        self.log = log
        self.records: list[ConsumerRecord] = []
        self.bytes_read: dict[int, bytes] = {}
        self.left_out: list[tuple[int, int]] = []
        self._state = PartitionFetch("t", 0, fetch_bytes)
        self._state.move_to(start)
        self._unpacker = Unpacker(check_crcs=True, decode_limit_bytes=1 << 20)

    @property
    def position(self) -> int:
        return self._state.position or 0

    def read(self, *, whole_batches: bool = False) -> None:
        """Reads to the log's end."""
        state = self._state
        for _ in range(FETCHES_MAX):
            if state.position == self.log.end:
                return
            if not state.pieces:
                part = FetchPartition(0, state.fetch_position, state.fetch_bytes)
                records, address = self.log.read(part.fetch_offset, part.max_bytes), self.log.address_of(part)
                keep(state, FetchPartitionResult(0, 0, self.log.end, memoryview(records), address=address))
            try:
                while state.pieces:
                    if whole_batches:
                        self._take_batches()
                    else:
                        self._unpacker.add_records(state, self.records, 1 << 30)
            except CorruptRecordsError as error:
                if state.suspect != error.offset:
                    state.suspect = error.offset
                    state.rewind()
                    continue
                assert error.next_offset is not None
                self.left_out.append((error.offset, error.next_offset))
                state.move_to(error.next_offset)
        raise AssertionError(f"reading ended at {state.position} of {self.log.end}")

    def _take_batches(self) -> None:
        found: list[FetchedBatches] = []
        try:
            self._unpacker.add_batches(self._state, found, 1 << 30)
        finally:
            self.bytes_read |= {each.address: bytes(each.buffer) for each in found}


def make_log(sizes: list[tuple[int, int]], *, by_address: bool = True) -> tuple[FakeLog, list[int]]:
    """Returns a log of batches of so many records of so many bytes, and where each ends."""
    log, ends = FakeLog(by_address), []
    for number, (count, size_bytes) in enumerate(sizes):
        log.append(encode_batch([Record(0, number, None, b"v" * size_bytes) for _ in range(count)]))
        ends.append(log.end)
    return log, ends


def spoil(log: FakeLog, rot: Rot) -> None:
    batch = bytearray(log.batches[rot.batch])
    batch[7 - rot.bit // 8] ^= 1 << rot.bit % 8
    log.batches[rot.batch] = bytes(batch)


SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200)), min_size=2, max_size=12)


@st.composite
def rotten_logs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Rot, int, int]:
    """Returns the sizes of a log's batches, the rot, where to begin, at or before it, and a fetch's size."""
    sizes = draw(SIZES)
    rot = Rot(draw(st.integers(0, len(sizes) - 1)), draw(st.integers(0, 63)))
    _, ends = make_log(sizes)
    begin = draw(st.integers(0, ends[rot.batch] - 1))
    return sizes, rot, begin, draw(st.sampled_from([1, 300, 1_000, LARGE_BYTES]))


SMALL = [(1, 0)] * 4


@example((SMALL, Rot(1, 0), 0, LARGE_BYTES))  # in the middle of an answer
@example((SMALL, Rot(1, 5), 70, LARGE_BYTES))  # first in an answer, which begins inside it
@example((SMALL, Rot(1, 5), 0, 1))  # alone in an answer
@example((SMALL, Rot(3, 5), 0, 1))  # alone, at the log's end
@given(rotten_logs())
def test_each_record_that_is_returned_has_its_offset(
    made: tuple[list[tuple[int, int]], Rot, int, int],
) -> None:
    sizes, rot, begin, fetch_bytes = made
    log, ends = make_log(sizes)
    expected = {record.offset: record.timestamp_ms for record in log.records()}
    spoil(log, rot)
    reader = Reader(log, begin, fetch_bytes)
    reader.read()
    left_out = range(max(begin, ends[rot.batch] - len(log.batches[rot.batch])), ends[rot.batch])
    assert reader.left_out == [(left_out.start, left_out.stop)]
    assert {record.offset: record.timestamp_ms for record in reader.records} == {
        offset: time_ms for offset, time_ms in expected.items() if offset >= begin and offset not in left_out
    }


@given(rotten_logs())
def test_whole_batches_lie_at_their_addresses(made: tuple[list[tuple[int, int]], Rot, int, int]) -> None:
    sizes, rot, begin, fetch_bytes = made
    log, ends = make_log(sizes)
    sound = list(log.batches)
    spoil(log, rot)
    reader = Reader(log, begin, fetch_bytes)
    reader.read(whole_batches=True)
    assert [end for _, end in reader.left_out] == [ends[rot.batch]]
    found = b"".join(reader.bytes_read[address] for address in sorted(reader.bytes_read))
    wanted = [i for i in range(len(sizes)) if ends[i] > begin and i != rot.batch]
    assert found == b"".join(sound[i] for i in wanted)
    for address, part in reader.bytes_read.items():
        assert b"".join(sound)[address : address + len(part)] == part


@given(SIZES, st.data(), st.sampled_from([1, 300, 1_000, LARGE_BYTES]), st.integers(0, 60), st.integers(0, 7))
def test_a_flipped_bit_of_a_header_costs_its_batch_and_no_other(
    sizes: list[tuple[int, int]], data: st.DataObject, fetch_bytes: int, at: int, bit: int
) -> None:
    log, ends = make_log(sizes)
    bad = data.draw(st.integers(0, len(sizes) - 1))
    expected = {
        each.offset for i, batch in enumerate(log.batches) if i != bad for each in decode_records(batch)
    }
    batch = bytearray(log.batches[bad])
    batch[at] ^= 1 << bit
    start = ends[bad] - len(batch)
    log.batches[bad] = bytes(batch)
    reader = Reader(log, 0, fetch_bytes)
    reader.read()
    is_epoch = 12 <= at < 16  # no checksum covers it, and no record depends on it
    assert reader.left_out == ([] if is_epoch else [(start, ends[bad])])
    found = {each.offset for each in reader.records}
    assert found >= expected if is_epoch else found == expected


@given(SIZES, st.data())
def test_a_reader_that_begins_inside_a_batch_leaves_nothing_out(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    log, _ = make_log(sizes)
    start = data.draw(st.integers(0, log.end - 1))
    reader = Reader(log, start, data.draw(st.sampled_from([1, 300, 1_000])))
    reader.read()
    assert reader.left_out == []
    assert [each.offset for each in reader.records] == [
        record.offset for record in log.records() if record.offset >= start
    ]


@given(SIZES, st.data())
def test_a_batch_behind_a_gap_is_no_misplaced_one(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """A broker passes over what an administrator set aside, and begins an answer behind it."""
    log, ends = make_log(sizes)
    gap = data.draw(st.integers(0, len(sizes) - 1))
    reader = Reader(
        log, data.draw(st.integers(0, ends[gap] - 1)), data.draw(st.sampled_from([1, 300, 1_000]))
    )
    before = log.batches[:gap], log._ends[:gap], ends[gap - 1] if gap else 0
    behind = log.batches[gap + 1 :], log._ends[gap + 1 :], log.end
    expected = [each.offset for batch in (*before[0], *behind[0]) for each in decode_records(batch)]
    begin = reader.position
    log.batches, log._ends, log.end = before
    if begin < log.end:
        reader.read()
    log.batches, log._ends, log.end = behind
    if log.batches:
        reader.read()
    assert reader.left_out == []
    assert [each.offset for each in reader.records] == [offset for offset in expected if offset >= begin]


@given(SIZES, st.sampled_from([1, 300, LARGE_BYTES]))
def test_offsets_that_count_records_are_not_compared(sizes: list[tuple[int, int]], fetch_bytes: int) -> None:
    log, _ = make_log(sizes, by_address=False)
    reader = Reader(log, 0, fetch_bytes)
    reader.read()
    assert reader.left_out == []
    assert [each.offset for each in reader.records] == list(range(log.end))
