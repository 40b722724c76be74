"""Lookups of any offset and any timestamp, compared with a plain model of the log."""

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import scan
from headrace.log.checkpoint import Checkpoint, encode
from headrace.log.config import LogConfig
from headrace.log.errors import AddressOutOfRangeError, LogReadError
from headrace.log.partition import PartitionLog
from headrace.log.search import Scanned, Search, TimestampedOffset
from headrace.log.starts import SPAN_BYTES
from headrace.wire.batch import hop
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

CONFIG = LogConfig(segment_bytes=1500)


@dataclass
class Stored:
    address: int
    size: int
    timestamps: list[int]


def build(
    path: Path, batches: list[list[int]], codec: Codec = Codec.NONE
) -> tuple[PartitionLog, list[Stored]]:
    """Batches given as their records' timestamps."""
    log = PartitionLog(path, CONFIG)
    stored = []
    for timestamps in batches:
        records = [Record(0, ms, None, b"some value %d" % ms) for ms in timestamps]
        raw = bytearray(encode_batch(records, codec=codec))
        appended = log.append(raw)
        stored.append(Stored(appended.base_address, appended.end_address - appended.base_address, timestamps))
    log.flush()
    return log, stored


def run(search: Search) -> TimestampedOffset | None:
    """Runs a whole search on this thread."""
    try:
        scan = next(search)
        while True:
            scanned = scan.run()
            scan.learn()
            scan = search.send(scanned)
    except StopIteration as ended:
        found: TimestampedOffset | None = ended.value
        return found


def segment_count(log: PartitionLog) -> int:
    return len(list(log.directory.glob("*.log")))


batch_lists = st.lists(st.lists(st.integers(1_000, 1_060), min_size=1, max_size=9), min_size=1, max_size=25)


@settings(max_examples=40, deadline=None)
@given(batches=batch_lists, reopen=st.booleans(), data=st.data())
def test_position_and_slices_for_any_offset(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], reopen: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, stored = build(folder / "t-0", batches)
    if reopen:
        log.close()
        log = PartitionLog(folder / "t-0", CONFIG)
    whole = b"".join(each.read() for each in log.slices(0, 1 << 30))
    for _ in range(12):
        offset = data.draw(st.integers(0, log.end_address), label="offset")
        max_bytes = data.draw(st.integers(0, 4_000), label="max_bytes")
        holding = [each for each in stored if each.address <= offset < each.address + each.size]
        expected = holding[0].address if holding else log.end_address
        assert log.position(offset) == expected
        got = b"".join(each.read() for each in log.slices(offset, max_bytes))
        assert got == whole[expected : expected + len(got)]
        sizes = [header.size_bytes for _, header in hop(got)]
        assert sum(sizes) == len(got), "whole batches only"
        assert len(got) <= max_bytes or len(sizes) == 1
        assert got or expected == log.end_address, "at least one batch, if one is there"
    log.close()


@settings(max_examples=40, deadline=None)
@given(
    batches=batch_lists,
    reopen=st.sampled_from(["no", "clean", "crash"]),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    wanted=st.lists(st.integers(995, 1_065), min_size=1, max_size=10),
)
def test_the_first_record_at_or_after_a_timestamp(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    reopen: str,
    codec: Codec,
    wanted: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, stored = build(folder / "t-0", batches, codec)
    if reopen != "no":
        log.close() if reopen == "clean" else log.abandon()
        log = PartitionLog(folder / "t-0", CONFIG)
    records = [
        (each.address + each.size - len(each.timestamps) + at, ms)
        for each in stored
        for at, ms in enumerate(each.timestamps)
    ]
    for timestamp in wanted:
        expected = next(((offset, ms) for offset, ms in records if ms >= timestamp), None)
        assert run(log.search_timestamp(timestamp)) == expected
    newest = max(ms for _, ms in records)
    assert run(log.search_max_timestamp()) == next(each for each in records if each[1] == newest)
    log.close()


def test_unflushed_records_are_invisible(tmp_path: Path) -> None:
    log, _ = build(tmp_path / "t-0", [[1_000]])
    visible = log.end_address
    log.append(encode_batch([Record(0, 5_000, None, b"late")]))
    assert log.end_address > log.flushed_address == visible
    assert sum(each.length_bytes for each in log.slices(0, 1 << 20)) == visible
    assert log.slices(visible, 1 << 20) == []
    assert run(log.search_timestamp(2_000)) is None
    assert run(log.search_max_timestamp()) == (visible - 1, 1_000)
    log.flush()
    assert run(log.search_timestamp(2_000)) == (log.end_address - 1, 5_000)
    assert run(log.search_max_timestamp()) == (log.end_address - 1, 5_000)
    log.close()


def test_offsets_outside_are_refused(tmp_path: Path) -> None:
    log, _ = build(tmp_path / "t-0", [[1_000], [1_001]])
    for offset in (-1, log.end_address + 1):
        with pytest.raises(AddressOutOfRangeError, match=f"offset {offset} is outside"):
            log.position(offset)
    log.close()


def test_a_header_inside_a_payload_is_ignored(tmp_path: Path) -> None:
    forged = encode_batch([Record(0, 9_999, None, b"forged")])
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    for _ in range(40):
        log.append(encode_batch([Record(0, 1_000, None, forged)]))
    log.flush()
    log.close()
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    size = log.end_address // 40
    for offset in range(0, log.end_address, 37):
        assert log.position(offset) == offset // size * size
    assert run(log.search_timestamp(5_000)) is None
    log.close()


def cold_log(path: Path, timestamps: list[int]) -> tuple[PartitionLog, list[int]]:
    """A log whose segments have no known starts, and its records' offsets. A batch is a third of a span."""
    config = LogConfig(segment_bytes=4 * SPAN_BYTES)
    log = PartitionLog(path, config)
    value = bytes(SPAN_BYTES // 3)
    offsets = [log.append(encode_batch([Record(0, ms, None, value)])).end_address - 1 for ms in timestamps]
    log.close()
    (path / "checkpoint").write_bytes(encode(Checkpoint(log.end_address, epochs=log.epochs.starts())))
    return PartitionLog(path, config), offsets


def test_cold_segments_of_many_spans(tmp_path: Path) -> None:
    timestamps = [*range(1_000, 1_040), 900]
    log, offsets = cold_log(tmp_path / "first", timestamps)
    assert segment_count(log) == 4
    assert run(log.search_max_timestamp()) == (offsets[39], 1_039)
    log.close()
    log, offsets = cold_log(tmp_path / "second", timestamps)
    for offset, ms in zip(offsets[:-1], timestamps, strict=False):
        assert run(log.search_timestamp(ms)) == (offset, ms)
    assert run(log.search_timestamp(1_040)) is None
    log.append(encode_batch([Record(0, 2_000, None, b"not flushed")]))
    assert run(log.search_max_timestamp()) == (offsets[39], 1_039)
    log.close()
    # The greatest timestamp is in the active segment, in another span than the last batch.
    log, offsets = cold_log(tmp_path / "third", [5, 9, *[1] * 9])
    assert segment_count(log) == 1
    assert run(log.search_max_timestamp()) == (offsets[1], 9)
    log.append(encode_batch([Record(0, 99, None, b"not flushed")]))
    assert run(log.search_max_timestamp()) == (offsets[1], 9), "only the last span is read again"
    log.close()


def test_a_search_continues_while_its_log_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, offsets = cold_log(tmp_path / "t-0", list(range(1_000, 1_040)))
    reads: list[int] = []
    real = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    search = log.search_timestamp(1_039)
    first = next(search)
    assert reads == [], "choosing the next segment reads nothing"
    # Retention deletes the segment that is being scanned and the next one; others are appended.
    found: list[Scanned] = []
    thread = threading.Thread(target=lambda: found.append(first.run()))
    log.config = replace(log.config, retention_bytes=5 * SPAN_BYTES)
    log.append(encode_batch([Record(0, 1_039, None, bytes(SPAN_BYTES))]))
    log.flush()
    assert len(log.delete_expired_segments()) == 2
    thread.start()
    thread.join(10)
    assert found == [Scanned()] and reads == []
    first.learn()
    second = search.send(found[0])
    assert second.base_address == log.start_address > first.base_address
    assert second.run() == Scanned()
    second.learn()
    third = search.send(Scanned())
    with pytest.raises(StopIteration) as ended:
        search.send(third.run())
    assert ended.value.value == (offsets[39], 1_039)
    # The scanned segment's starts are known now: the next search does not scan it.
    again = log.search_timestamp(1_039)
    assert next(again).base_address == third.base_address
    log.close()


@pytest.mark.parametrize("max_bytes", [SPAN_BYTES * 3 // 2, SPAN_BYTES * 8, SPAN_BYTES * 8 + 1])
def test_a_fetch_from_known_starts_is_one_slice_and_reads_no_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    for number in range(200):
        log.append(encode_batch([Record(0, number, None, bytes(SPAN_BYTES // 5))]))
    log.flush()

    def refuse(*_: object) -> bytes:
        raise AssertionError("a header was read")

    monkeypatch.setattr(scan, "_read", refuse)
    address, fetched = log.start_address, 0
    while address < log.end_address:
        (piece,) = log.slices(address, max_bytes)
        assert max_bytes - SPAN_BYTES * 6 // 5 < piece.length_bytes <= max_bytes or log.end_address == (
            address + piece.length_bytes
        )
        address += piece.length_bytes
        fetched += 1
    assert address == log.end_address and fetched > 1


@pytest.mark.parametrize("indexed", [True, False])
def test_a_search_passes_over_damage(tmp_path: Path, *, indexed: bool) -> None:
    """No consumer can read it either; what lies behind is found, as far as it is known to begin there."""
    timestamps = list(range(1_000, 1_040))
    log, offsets = cold_log(tmp_path / "t-0", timestamps)
    if indexed:
        run(log.search_max_timestamp())
    first = min(log.directory.glob("*.log"))
    with first.open("r+b") as file:
        file.seek(offsets[3] + 1)  # where the fifth batch begins
        file.write(bytes(61))
    second_segment = next(at for at, offset in enumerate(offsets) if offset > first.stat().st_size)
    for at, ms in enumerate(timestamps):
        found = run(log.search_timestamp(ms))
        if at < 4 or at >= second_segment:
            assert found == (offsets[at], ms)
        else:
            assert found is not None and found in list(zip(offsets, timestamps, strict=True))
            assert ms <= found.timestamp_ms <= timestamps[second_segment]
            assert not indexed or found.timestamp_ms == max(ms, 1_006)  # where a span begins
    assert run(log.search_max_timestamp()) == (offsets[-1], 1_039)
    log.close()


def test_a_file_that_cannot_be_opened_is_an_error_of_its_readers(tmp_path: Path) -> None:
    """Else each Fetch that asked for it ended its connection, and a follower got nothing of that leader."""
    log, _ = build(tmp_path, [[1_000]] * 40)
    log.close()
    log = PartitionLog(tmp_path, CONFIG)
    first, second = [segment.base_address for segment in log._segments][:2]
    (tmp_path / f"{first:020d}.log").unlink()
    for read in (lambda: log.slices(first, 1), lambda: log.position(first + 1)):
        with pytest.raises(LogReadError, match=r"00000\.log: it cannot be opened: No such file"):
            read()
    assert log.slices(second, 1)
    log.abandon()
