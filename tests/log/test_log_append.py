"""Appending: addresses, rolls, a disk that fills up, retention, truncation."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_failing_disk import FailingDisk
from headrace.log.config import LogConfig, flush_wait_ms
from headrace.log.errors import AddressOutOfRangeError, LogStorageError
from headrace.log.partition import PartitionLog
from headrace.log.passing import pass_gap
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.wire.batch import hop, read_header, verify
from headrace.wire.records import Record, decode_records, encode_batch


def batch(value: bytes = b"v", count: int = 1, **fields: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000 + i, None, value) for i in range(count)], **fields))


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30))


def segment_count(log: PartitionLog) -> int:
    return len(list(log.directory.glob("*.log")))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=8),
    commit_every=st.integers(1, 4),
    segment_bytes=st.integers(1_024, 120_000),
)
def test_every_batch_gets_its_byte_address(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], commit_every: int, segment_bytes: int
) -> None:
    log = PartitionLog(tmp_path_factory.mktemp("log") / "t-0", LogConfig(segment_bytes=segment_bytes))
    log.leader_epoch = 3
    expected = 0
    crcs = []
    for number, size in enumerate(sizes):
        raw = batch(bytes(size), count=2)
        crcs.append(read_header(raw).crc)
        expected += len(raw)
        assert log.stage(memoryview(raw), read_header(raw)) == expected - 2
        if number % commit_every == 0:
            log.commit()
    log.flush()
    data = content(log)
    assert log.end_address == log.flushed_address == len(data) == expected
    for at, header in hop(data):
        end = at + header.size_bytes
        assert (header.address, header.next_offset, header.last_offset_delta) == (at, end, 1)
        assert header.partition_leader_epoch == 3
        verify(data, at, header)
        assert [record.offset for record in decode_records(data, at)] == [end - 2, end - 1]
    assert [header.crc for _, header in hop(data)] == crcs, "the checksums that the producer computed"
    names = sorted(path.name for path in log.directory.glob("*.log"))
    assert all(len(name) == 24 for name in names)
    assert int(names[0][:20]) == 0
    log.close()


def test_a_full_disk_refuses_whole_appends_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch(b"first", producer_id=1, producer_epoch=0, base_sequence=0))
    log.flush()
    before, entry = content(log), log.producers.get(1)
    disk = FailingDisk(monkeypatch, room_bytes=100)
    for sequence in (1, 2):
        raw = batch(b"x" * 60, producer_id=1, producer_epoch=0, base_sequence=sequence)
        log.stage(raw, read_header(raw))
    with pytest.raises(LogStorageError, match="Free space there") as caught:
        log.commit()
    assert caught.value.retriable
    assert log.end_address == log.staged_end_address == len(before)
    assert log.producers.get(1) == entry, "the refused batches did not change the producer's state"
    assert (log.directory / f"{0:020d}.log").stat().st_size == len(before)
    disk.room_bytes = 1 << 30
    log.append(batch(b"second", producer_id=1, producer_epoch=0, base_sequence=1))
    log.flush()
    data = content(log)
    values = [record.value for at, _ in hop(data) for record in decode_records(data, at)]
    assert values == [b"first", b"second"]
    log.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PartitionLog(tmp_path / "t-0")
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [bytes(buffers[0])[:7]], at))
    log.append(batch(b"a value"))
    log.flush()
    (record,) = decode_records(content(log))
    assert record.value == b"a value"
    log.close()


# --- truncation ---


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), cut=st.integers(0, 12))
def test_truncate_forgets_exactly_what_follows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = PartitionLog(folder / "t-0", LogConfig(segment_bytes=1_024))
    addresses = []
    for number, size in enumerate(sizes):
        raw = batch(bytes(size), producer_id=5, producer_epoch=1, base_sequence=number)
        addresses.append(log.append(raw).base_address)
    log.flush()
    data = content(log)
    kept = min(cut, len(sizes))
    address = (*addresses, log.end_address)[kept]
    log.truncate(address)
    assert (log.end_address, log.flushed_address) == (address, address)
    assert content(log) == data[:address]
    entry = log.producers.get(5)
    assert (entry.batches[-1].last_sequence if entry else -1) == kept - 1
    log.append(batch(b"after"))
    log.flush()
    log.close()
    again = PartitionLog(folder / "t-0", LogConfig(segment_bytes=1_024))
    assert content(again)[:address] == data[:address]
    again.close()


def test_truncate_only_at_a_batch(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch())
    log.flush()
    with pytest.raises(AddressOutOfRangeError, match="no batch begins there"):
        log.truncate(1)
    log.close()


# --- flush policy ---


@pytest.mark.parametrize(
    ("config", "records", "age_ms", "wait_ms"),
    [
        (LogConfig(), 1, 0, 0),
        (LogConfig(flush_messages=10), 9, 100, 59_900),
        (LogConfig(flush_messages=10), 9, 60_000, 0),
        (LogConfig(flush_messages=10), 9, 3_600_000, 0),
        (LogConfig(flush_messages=10), 10, 0, 0),
        (LogConfig(flush_ms=50), 1, 20, 30),
        (LogConfig(flush_ms=50), 1, 80, 0),
        (LogConfig(flush_messages=10, flush_ms=50), 10, 1, 0),
        (LogConfig(flush_messages=10, flush_ms=50), 3, 10, 40),
    ],
)
def test_flush_policy(config: LogConfig, records: int, age_ms: int, wait_ms: int) -> None:
    assert flush_wait_ms(config, records, age_ms) == wait_ms


@pytest.mark.parametrize("flushed", [True, False])
def test_a_copy_restarts_after_a_gap(tmp_path: Path, flushed: bool) -> None:
    config = LogConfig(segment_bytes=1_024)
    log = PartitionLog(tmp_path / "t-0", config)
    for _ in range(5):
        log.append(batch(bytes(900), producer_id=1, producer_epoch=0, base_sequence=0))
    log.flush()
    log.request_checkpoint()
    log.flush()
    end = log.end_address
    with pytest.raises(AddressOutOfRangeError, match=f"cannot restart at {end}, the log ends at {end}"):
        log.restart(end)
    log.restart(10_000_000)
    assert log.start_address == log.end_address == log.flushed_address == 10_000_000
    assert log.producers.get(1) is None
    with pytest.raises(AddressOutOfRangeError):
        log.position(end)
    log.append(batch(b"after the gap"))
    if flushed:
        log.flush()
    assert [path.name for path in sorted(log.directory.glob("*.log"))] == [f"{10_000_000:020d}.log"]
    log.abandon()
    again = PartitionLog(tmp_path / "t-0", config)
    assert again.start_address == 10_000_000
    assert content(again)[-len(b"after the gap") - 1 : -1] == b"after the gap"
    again.close()


def test_while_a_thread_restarts_a_copy_another_may_ask_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's log is restarted on a thread, and DescribeLogDirs does not wait for that."""
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch())
    log.flush()
    asked: list[int] = []
    forget, delete = SegmentList._forget_sealed, Segment.delete

    def forgotten(segments: SegmentList) -> None:
        asked.append(segments.start_address)
        forget(segments)

    def deleted(segment: Segment) -> None:
        asked.append(log.start_address)
        delete(segment)

    monkeypatch.setattr(SegmentList, "_forget_sealed", forgotten)
    monkeypatch.setattr(Segment, "delete", deleted)
    log.restart(10_000)
    assert asked == [10_000, 10_000]
    log.close()


def test_a_reader_at_the_end_goes_on_behind_a_gap(tmp_path: Path) -> None:
    """Where the next batch begins was known already, as the log's end."""
    log = PartitionLog(tmp_path / "log", LogConfig())
    log.append(batch())
    log.flush()
    end = log.end_address
    assert sum(piece.length_bytes for piece in log.slices(0, 1_000)) == end
    assert log.position(end) == end
    pass_gap(log, end + 5_000)
    assert log.position(end) == log.position(end + 1) == log.end_address == end + 5_000
    log.append(batch())
    log.flush()
    assert log.position(end) == end + 5_000
    assert sum(piece.length_bytes for piece in log.slices(end, 1_000)) == end
    assert log.position(end) == end + 5_000


def test_a_restart_that_a_crash_undid_restores_the_old_log(tmp_path: Path) -> None:
    """The new segment and the old ones exist: the removal of the old ones was not durable yet."""
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch(b"before"))
    log.flush()
    end, old = log.end_address, log.directory / f"{0:020d}.log"
    before = old.read_bytes()
    log.restart(5_000)
    log.append(batch(b"after"))
    log.abandon()
    old.write_bytes(before)
    again = PartitionLog(tmp_path / "t-0")
    assert (again.start_address, again.end_address) == (0, end)
    assert content(again) == before
    again.restart(5_000)
    assert again.append(batch(b"after")).base_address == 5_000
    again.close()
