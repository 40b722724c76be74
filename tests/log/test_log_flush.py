"""What one flush job makes durable when batches are written after it was begun."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.log import checkpoint
from headrace.log.config import LogConfig
from headrace.log.flush import FlushJob
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.wire.records import Record, encode_batch


def batch(value: bytes = b"v") -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, value)]))


def begun(log: PartitionLog) -> FlushJob:
    job = log.begin_flush()
    assert job is not None
    return job


def test_a_job_covers_what_is_written_before_its_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch(b"before the job"))
    job = begun(log)
    covered = log.append(batch(b"before the fsync")).end_address
    fdatasync = os.fdatasync

    def append_and_sync(fd: int) -> None:
        log.append(batch(b"during the fsync"))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", append_and_sync)
    flushed = job.run()
    assert flushed.upto_address == covered < log.end_address
    log.end_flush(flushed)
    assert log.flushed_address == covered
    monkeypatch.undo()
    log.close()


def test_a_job_does_not_cover_a_segment_that_it_does_not_sync(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0")
    first = log.append(batch(b"first")).end_address
    log.roll()
    job = begun(log)  # the new segment is empty: only the old one needs an fsync
    log.append(batch(b"in the new segment"))
    assert job.run().upto_address == first
    log.close()


def test_a_job_begun_before_a_roll_covers_the_old_segment_alone(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=250))
    log.append(batch(b"a" * 20))
    job = begun(log)
    sealed = log.append(batch(b"b" * 20)).end_address
    log.append(batch(b"c" * 200))
    assert len(list(log.directory.glob("*.log"))) == 2
    flushed = job.run()
    assert flushed.upto_address == sealed < log.end_address
    log.end_flush(flushed)
    log.flush()
    assert log.flushed_address == log.end_address
    log.close()


def test_a_job_looks_at_the_last_segments_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of 1 MB a second is 4,700 segments, and a partition may begin hundreds of flushes a second."""
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=250))
    for _ in range(20):
        log.append(batch(b"x" * 200))
    log.flush()
    log.append(batch(b"y" * 200))
    log.append(batch(b"z" * 200))
    looks: list[Segment] = []

    def counted(segment: Segment) -> int:
        looks.append(segment)
        return segment.base_address + segment.size_bytes

    monkeypatch.setattr(Segment, "end_address", property(counted))
    job = begun(log)
    assert len(job.files) == 2 and len(set(looks)) <= 4
    log.end_flush(job.run())
    assert log.flushed_address == log.end_address
    monkeypatch.undo()
    log.close()


def test_much_that_is_written_is_checkpointed_without_waiting_for_the_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.writing.CHECKPOINT_EVERY_BYTES", 1_000)
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch(b"x" * 400))
    log.flush()
    assert recovery_point(log) == 0, "too little for a checkpoint"
    log.append(batch(b"x" * 600))
    log.flush()
    assert recovery_point(log) == log.end_address > 1_000
    reached = log.end_address
    log.append(batch(b"x" * 400))
    log.flush()
    assert recovery_point(log) == reached
    log.close()


def test_a_close_saves_the_checkpoint_that_a_job_took_and_never_saved(tmp_path: Path) -> None:
    """A broker that stops ends its threads; a job that a timer begins then does not run. The next start did
    not know what was durable, and cut a tail that had rotted off, as one that a crash had torn.
    """
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch())
    log.flush()
    assert log.request_checkpoint()
    begun(log)  # and nobody runs it
    log.close()
    assert recovery_point(log) == log.end_address > 0


def recovery_point(log: PartitionLog) -> int:
    saved = checkpoint.load(log.directory)
    assert saved is not None
    return saved.recovery_point
