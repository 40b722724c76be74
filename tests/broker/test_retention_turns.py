"""Retention of all logs of a broker: the loop takes segments out in turns, a thread frees their bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fix_replica_manager import CountingWorkers
from headrace.broker.cold_reads import ColdReads
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.removals import Removals
from headrace.broker.replicas.retention import SEGMENTS_PER_TURN_MAX, Retention
from headrace.broker.settings.config import BrokerConfig
from headrace.log.directory import PartitionName
from headrace.log.errors import AddressOutOfRangeError
from headrace.log.index import IndexJob
from headrace.log.partition import PartitionLog
from headrace.log.segments import SegmentList
from headrace.log.starts import KnownStarts
from headrace.wire.batch import read_header
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

FAR_FUTURE_MS = 10**15


class Site:
    """A broker's logs, its loop and its threads, which go on when they are told to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = BrokerConfig({"log.retention.ms": "1000"}).topic_config({})
        self.workers = CountingWorkers()
        self.turns: list[Callable[[], None]] = []
        nothing = cast(Any, None)
        self.now_ms: int | None = FAR_FUTURE_MS
        self.partitions = Partitions(cast(Any, self.workers), lambda *_: nothing)
        self.followed = FollowedPartitions(cast(Any, self.workers), lambda *_: nothing)
        self.retention = Retention(
            self.partitions,
            self.followed,
            Removals(self.workers),
            ColdReads(cast(Any, self.workers)),
            lambda _, call: self.turns.append(call),
            lambda: self.now_ms,
        )

    def lead(self, name: str, segments: int) -> PartitionLog:
        log = self._filled(name, segments)
        self.partitions.add(Partition(name, 0, UUID(int=1), self._config, log, 0))
        return log

    def lead_after_a_crash(self, name: str) -> PartitionLog:
        """A start has read one segment from a checkpoint on, which lies in its middle."""
        log = self.lead(name, 0)
        log.append(encode_batch([Record(0, 1_000, None, b"x")]))
        log.request_checkpoint()
        log.flush()
        log.append(encode_batch([Record(0, 1_000, None, b"x")]))
        log.roll()
        log.flush()
        log.abandon()
        for index in log.directory.glob("*.index"):
            index.unlink()
        return self.lead(name, 0)

    def follow(self, name: str, segments: int) -> PartitionLog:
        log = self._filled(name, segments)
        followed = FollowedPartition(
            PartitionName(name, 0), UUID(int=1), self._config, log, high_watermark=log.end_address
        )
        followed.leader_start_address = log.end_address
        self.followed.add(followed)
        return log

    def _filled(self, name: str, segments: int) -> PartitionLog:
        log = PartitionLog(self._folder / f"{name}-0", self._config.log)
        for _ in range(segments):
            log.append(encode_batch([Record(0, 1_000, None, b"x")]))
            log.roll()
        log.request_checkpoint()
        log.flush()
        return log

    def produce(self, name: str) -> Waiter:
        """Stages a batch, which the end of the wakeup writes."""
        partition = self.partitions.get(name, 0)
        assert partition is not None
        raw = bytearray(encode_batch([Record(0, 1_000, None, b"x")]))
        partition.log.stage(raw, read_header(raw))
        waiter = Waiter(partition.log.staged_end_address)
        self.partitions.staged(partition, waiter, 1)
        return waiter

    def files(self) -> list[str]:
        """The files that still take room on the disk."""
        return sorted(path.name for path in self._folder.glob("*/*.log*") if path.stat().st_size)


class Waiter:
    """A producer's request with acks=1."""

    timeout_ms = 30_000
    durable = False

    def __init__(self, end_address: int) -> None:
        self.end_address = end_address
        self.codes: list[ErrorCode] = []

    def appended(self, code: ErrorCode, message: str | None) -> None:
        self.codes.append(code)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_bytes_are_freed_by_one_thread(site: Site) -> None:
    """To unlink 128 MB takes 33 ms: the loop must not wait for it, nor all threads, which fsync, too."""
    logs = [site.lead("led", 3), site.lead("other", 2), site.follow("followed", 4)]
    site.retention.enforce()
    assert [log.size_bytes for log in logs] == [0, 0, 0]
    assert len(site.files()) == 9 and all(name.endswith(".log.tmp") for name in site.files())
    site.workers.run()
    assert site.files() == [] and site.workers.most == 1 and not site.turns


def test_nothing_expires_before_the_time_is_known(site: Site) -> None:
    log, followed = site.lead("led", 3), site.follow("followed", 3)
    site.now_ms = None
    site.retention.enforce()
    assert log.start_address == followed.start_address == 0 and not site.turns
    site.now_ms = FAR_FUTURE_MS
    site.retention.enforce()
    assert log.size_bytes == followed.size_bytes == 0


def test_a_start_removes_what_was_not_freed(site: Site, tmp_path: Path) -> None:
    log = site.lead("led", 3)
    end = log.end_address
    site.retention.enforce()
    log.abandon()
    again = PartitionLog(tmp_path / "led-0")
    assert (again.start_address, again.end_address) == (end, end) and site.files() == []
    again.abandon()


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_checkpoint_is_saved_before_what_it_lacks_is_deleted(site: Site, *, is_followed: bool) -> None:
    """It has what producers have done: a broker that crashes then would not know it from the log any more."""
    log = site.follow("t", 1) if is_followed else site.lead("t", 1)
    start = log.end_address
    for _ in range(2):
        log.append(encode_batch([Record(0, 1_000, None, b"x")]))
        log.roll()
    log.flush()
    if is_followed:
        followed = site.followed.get(PartitionName("t", 0))
        assert followed is not None
        followed.leader_start_address = log.end_address
    site.retention.enforce()
    assert log.start_address == start, "that far the last one knows all"
    site.retention.enforce()
    assert len(site.turns) == 1, "the log is looked at again"
    site.workers.run()
    while site.turns:
        site.turns.pop()()
    assert log.start_address == log.end_address


def test_a_turn_of_the_loop_takes_out_a_bounded_number_of_segments(site: Site) -> None:
    log, other = site.lead("large", SEGMENTS_PER_TURN_MAX + 7), site.lead("small", 2)
    count = len(site.files())
    site.retention.enforce()
    gone = sum(name.endswith(".tmp") for name in site.files())
    assert 0 < gone <= SEGMENTS_PER_TURN_MAX < count
    site.retention.enforce()
    assert len(site.turns) == 1, "it is at work still"
    while site.turns:
        site.turns.pop()()
    assert (log.size_bytes, other.size_bytes) == (0, 0)


def test_a_segment_whose_timestamps_are_not_known_is_read_on_a_thread_first(site: Site) -> None:
    log = site.lead_after_a_crash("led")
    site.retention.enforce()
    assert log.start_address == 0 and len(site.workers.jobs) == 1
    for _ in range(3):
        site.workers.run()
        while site.turns:
            site.turns.pop()()
    assert log.start_address == log.end_address and not site.workers.jobs


def test_a_segment_that_cannot_be_read_is_asked_for_once_a_round(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.lead_after_a_crash("led")
    asked: list[None] = []

    def fails(_: IndexJob) -> KnownStarts:
        asked.append(None)
        raise MemoryError

    monkeypatch.setattr(IndexJob, "run", fails)
    for rounds in (1, 2):
        site.retention.enforce()
        site.workers.run()
        assert len(asked) == rounds and not site.turns and log.start_address == 0


def test_a_segment_that_cannot_be_taken_out_hides_none_that_were(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a consumer that had read there would be sent to another segment, at a place before its begin."""
    log = site.lead("led", 3)
    starts = [segment.base_address for segment in log._segments]
    assert log.position(starts[1] + 1) == starts[1]
    take_out, left = SegmentList.take_out_oldest, [2]

    def fails(segments: SegmentList) -> Path:
        if not left[0]:
            raise OSError(5, "Input/output error")
        left[0] -= 1
        return take_out(segments)

    monkeypatch.setattr(SegmentList, "take_out_oldest", fails)
    site.retention.enforce()
    assert log.start_address == starts[2] and log.epochs.at(starts[1]) == -1
    with pytest.raises(AddressOutOfRangeError, match="is outside"):
        log.position(starts[1] + 1)
    site.retention.enforce()
    assert "retention failed: [Errno 5]" in caplog.text


def test_what_a_full_disk_refused_meanwhile_is_not_acknowledged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention makes room, so the next batch of the same wakeup is stored, at the same address."""
    log = site.lead("led", 0)
    site.produce("led")
    site.partitions.commit()
    refused = site.produce("led")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        site.retention.enforce()
    stored = site.produce("led")
    assert stored.end_address == refused.end_address
    site.partitions.commit()
    assert refused.codes == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert stored.codes == [ErrorCode.NONE] and log.end_address == stored.end_address
