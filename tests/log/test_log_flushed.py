"""The note of how far a log was flushed: what rots below it keeps the log closed, and is never cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_log import SMALL, batch, content, files, segments
from headrace.log import checkpoint, flushed, scan, set_aside
from headrace.log.check import check_partition
from headrace.log.errors import LogDamagedError
from headrace.log.names import FLUSHED
from headrace.log.partition import PartitionLog
from headrace.wire.batch import readdress

SIZE = len(batch(0, 100))


def grow(log: PartitionLog, *numbers: int) -> None:
    for number in numbers:
        log.append(batch(number, 100))
    log.flush()


def note(log: PartitionLog) -> None:
    """What a broker does every second."""
    write = log.notes.due(log.flushed_address)
    if write is not None:
        write()


def rot(folder: Path, address: int) -> None:
    (path,) = [each for each in segments(folder) if 0 <= address - int(each.stem) < each.stat().st_size]
    with path.open("r+b") as file:
        file.seek(address - int(path.stem) + SIZE - 3)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def test_what_rots_after_the_last_checkpoint_is_not_cut_off(folder: Path) -> None:
    log = PartitionLog(folder)
    grow(log, 0, 1, 2)
    note(log)
    log.append(batch(3, 100))  # written, and perhaps on the disk
    log.abandon()
    rot(folder, SIZE)
    before = files(folder)
    with pytest.raises(LogDamagedError, match=f"address {SIZE}: .*below {3 * SIZE} was durable"):
        PartitionLog(folder)
    assert files(folder) == before
    (finding,) = check_partition(folder).findings
    assert (finding.start, finding.end) == (SIZE, 2 * SIZE)
    set_aside.set_aside(folder)
    again = PartitionLog(folder)
    assert again.end_address == 4 * SIZE
    again.abandon()


def test_what_a_crash_tears_above_the_note_is_cut_off(folder: Path) -> None:
    log = PartitionLog(folder)
    grow(log, 0, 1)
    note(log)
    grow(log, 2)
    log.abandon()
    rot(folder, 2 * SIZE)
    again = PartitionLog(folder)
    assert again.end_address == 2 * SIZE
    again.abandon()


def test_a_file_that_lost_what_was_flushed_is_damage(folder: Path) -> None:
    log = PartitionLog(folder)
    grow(log, 0, 1)
    note(log)
    log.abandon()
    (path,) = segments(folder)
    path.write_bytes(path.read_bytes()[:SIZE])
    with pytest.raises(LogDamagedError, match=f"ends here, but everything below {2 * SIZE} was durable"):
        PartitionLog(folder)


def test_a_log_that_was_cut_believes_no_note_of_before(folder: Path) -> None:
    log = PartitionLog(folder)
    grow(log, 0, 1, 2, 3)
    late = log.notes.due(log.flushed_address)
    assert late is not None
    log.truncate(SIZE)
    late()  # a slow thread
    grow(log, 7)
    log.abandon()
    again = PartitionLog(folder)
    assert content(again) == content_of(0, 7) and again.end_address == 2 * SIZE
    note(again)
    again.abandon()
    rot(folder, SIZE)
    with pytest.raises(LogDamagedError):
        PartitionLog(folder)


def content_of(*numbers: int) -> bytes:
    """What a log holds of these batches, one behind the other."""
    parts = [bytearray(batch(number, 100)) for number in numbers]
    for at, part in enumerate(parts):
        readdress(part, 0, at * SIZE, 0)
    return b"".join(parts)


def test_a_log_that_begins_anew_believes_no_note_of_before(folder: Path) -> None:
    log = PartitionLog(folder)
    grow(log, 0, 1)
    late = log.notes.due(log.flushed_address)
    assert late is not None
    log.restart(1_000_000)
    late()
    log.abandon()
    assert PartitionLog(folder).end_address == 1_000_000


def test_another_topic_s_note_says_nothing(tmp_path: Path) -> None:
    old, new = PartitionLog(tmp_path / "old"), PartitionLog(tmp_path / "new")
    grow(old, 0, 1, 2)
    grow(new, 0)
    note(old)
    shutil.copy(tmp_path / "old" / FLUSHED, tmp_path / "new" / FLUSHED)
    old.abandon()
    new.abandon()
    assert PartitionLog(tmp_path / "new").end_address == SIZE


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=60), at=st.integers(0, 60), flip=st.integers(1, 255))
def test_a_damaged_note_says_nothing(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, at: int, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    (folder / FLUSHED).write_bytes(raw)
    assert flushed.load(folder, 5) == 0
    whole = bytearray(flushed.encode(5, 77))
    (folder / FLUSHED).write_bytes(whole)
    assert (flushed.load(folder, 5), flushed.load(folder, 6), flushed.load(folder, 0)) == (77, 0, 0)
    whole[at % len(whole)] ^= flip
    (folder / FLUSHED).write_bytes(whole)
    assert flushed.load(folder, 5) == 0


def test_notes_are_written_when_there_is_something_new(folder: Path) -> None:
    log = PartitionLog(folder)
    assert log.notes.due(log.flushed_address) is None
    grow(log, 0)
    note(log)
    assert log.notes.due(log.flushed_address) is None
    log.append(batch(1, 100))
    assert log.notes.due(log.flushed_address) is None, "it is not flushed"
    log.close()


def test_a_cut_reads_what_lies_behind_the_last_checkpoint_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of 100 GB that was cut by a batch kept its replica out of sync for minutes."""
    log = PartitionLog(folder, SMALL)
    grow(log, *range(10))
    log.request_checkpoint()
    grow(log, 10)
    grow(log, 11, 12)
    read: list[int] = []
    headers = scan.headers

    def counted(*arguments: object) -> object:
        for header in headers(*arguments):  # type: ignore[arg-type]
            read.append(header.address)
            yield header

    monkeypatch.setattr(scan, "headers", counted)
    log.truncate(12 * SIZE)
    assert read == [11 * SIZE]
    entry = log.producers.get(9)
    assert entry is not None and entry.batches[-1].last_sequence == 11
    saved = checkpoint.load(folder)
    assert saved is not None and saved.recovery_point == 11 * SIZE
    log.abandon()
    again = PartitionLog(folder, SMALL)
    assert again.end_address == 12 * SIZE and again.producers.get(9) is not None
    again.abandon()


def test_a_cut_below_the_last_checkpoints_reads_all(folder: Path) -> None:
    log = PartitionLog(folder, SMALL)
    grow(log, *range(6))
    log.close()
    log = PartitionLog(folder, SMALL)
    log.truncate(3 * SIZE)
    entry = log.producers.get(9)
    assert entry is not None and entry.batches[-1].last_sequence == 2
    log.abandon()
    assert PartitionLog(folder, SMALL).end_address == 3 * SIZE


def test_a_cut_forgets_no_producer_whose_batches_retention_has_deleted(folder: Path) -> None:
    log = PartitionLog(folder, SMALL)
    for number in range(3):
        log.append(batch(number, 100, producer=7))
    for number in range(9):
        log.append(batch(number, 100))
    log.flush()
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments(upto=log.end_address, source_start=log.end_address)
    assert log.start_address > 3 * SIZE
    grow(log, 9)
    log.truncate(12 * SIZE)
    entry = log.producers.get(7)
    assert entry is not None and entry.batches[-1].last_sequence == 2
    log.abandon()
