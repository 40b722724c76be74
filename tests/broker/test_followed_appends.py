"""What a follower appends on a thread, past the page cache: same batches, same errors, bounded memory."""

from __future__ import annotations

import errno
import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fix_replica_manager import CountingWorkers
from headrace.broker.replicas import followed_partitions as followed_room
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.settings.config import BrokerConfig
from headrace.log import direct
from headrace.log.appending import DIRECT_MIN_BYTES
from headrace.log.directory import PartitionName
from headrace.log.errors import LogError, LogOfflineError, LogStorageError
from headrace.log.partition import PartitionLog
from headrace.replication.following import Append
from headrace.wire.batch import hop
from headrace.wire.records import Record, encode_batch


class Following:
    """Partitions that are followed, each with one short batch that is flushed."""

    def __init__(self, folder: Path, count: int = 1, *, keeps_pages: bool = False) -> None:
        self.workers = CountingWorkers()
        self.partitions = FollowedPartitions(
            cast(Any, self.workers), lambda *_: None, keeps_pages=keeps_pages
        )
        self.failed: list[str] = []
        self.partitions.on_offline = lambda one: self.failed.append(str(one))
        self.errors: list[LogError | None] = []
        self.then: list[str] = []
        self.leaders = 0
        config = BrokerConfig().topic_config({})
        self.all = []
        for index in range(count):
            log = PartitionLog(folder / f"t-{index}", config.log)
            log.append(bytearray(encode_batch([Record(0, 1_000, None, b"x")])))
            log.flush()
            one = FollowedPartition(PartitionName("t", index), UUID(int=1), config, log, high_watermark=0)
            self.partitions.add(one)
            self.all.append(one)

    def append(self, index: int = 0, size_bytes: int = DIRECT_MIN_BYTES) -> bool:
        """Appends a batch of about that size that its leader has sent; returns whether a thread does it."""
        log = self.all[index].log
        self.leaders += 1
        leader = PartitionLog(log.directory.with_name(f"leader-{self.leaders}"))
        leader.append_verbatim(b"".join(each.read() for each in log.slices(0, 1 << 30)))
        leader.append(bytearray(encode_batch([Record(0, 1_000, None, b"v" * size_bytes)])))
        found = leader.slices(log.end_address, 1 << 30, leader.end_address)
        batches = b"".join(each.read() for each in found)
        step = Append(batches, [header for _, header in hop(batches)], 0, 0, None)
        return self.partitions.append(
            self.all[index], step, self.errors.append, lambda one: self.then.append(str(one))
        )


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


def fail_writes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def write(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(direct, "write", write)


def test_the_log_has_the_batches_once_they_are_durable(following: Following) -> None:
    one, before = following.all[0], following.all[0].log.end_address
    assert following.append()
    assert one.is_working, "the next fetch must wait"
    assert one.log.end_address == before
    following.workers.run()
    assert one.log.flushed_address == one.log.end_address > before + DIRECT_MIN_BYTES
    assert (following.errors, following.then) == ([None], ["t-0"])
    assert not one.is_working
    assert following.append(), "and so on"


def test_short_appends_are_written_at_once(following: Following) -> None:
    assert not following.append(size_bytes=100)
    assert not following.all[0].is_working


def test_what_is_in_memory_until_it_is_written_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_room, "APPENDING_MAX_BYTES", 2 * DIRECT_MIN_BYTES + 1_000)
    following = Following(tmp_path, 3)
    assert [following.append(index) for index in range(3)] == [True, True, False]
    following.workers.run()
    assert following.append(2)


@pytest.mark.parametrize("reader", ["consumers", "nobody waits for the disk"])
def test_some_logs_are_written_through_the_page_cache(tmp_path: Path, reader: str) -> None:
    following = Following(tmp_path, keeps_pages=reader == "consumers")
    if reader != "consumers":
        one = following.all[0]
        one.set_config(replace(one.config, acks_all_waits_for_fsync=False))
    assert not following.append()


def test_a_full_disk_is_told_and_the_log_goes_on(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = following.all[0].log.end_address
    with monkeypatch.context() as patch:
        fail_writes(patch, errno.ENOSPC)
        assert following.append()
        following.workers.run()
    (error,) = following.errors
    assert isinstance(error, LogStorageError) and not isinstance(error, LogOfflineError)
    assert not following.failed and following.all[0].log.end_address == before
    assert following.append()
    following.workers.run()
    assert following.errors[1] is None


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_takes_the_log_offline(
    following: Following, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    if call == "write":
        fail_writes(monkeypatch, errno.EIO)
    else:
        monkeypatch.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "gone")))
    assert following.append()
    following.workers.run()
    (error,) = following.errors
    assert isinstance(error, LogOfflineError)
    assert ("fsync failed" in str(error)) == (call == "fsync")
    assert following.failed == ["t-0"]
    with pytest.raises(LogOfflineError):
        following.append()
    file = following.all[0].log._segments.active.in_use()
    assert file is not None
    fd = file.fd
    del file
    following.all[0].log.abandon()
    gc.collect()  # the errors of `CountingWorkers` hold their frames
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)  # else nobody could open the log again: somebody may still write to it


def test_a_log_that_is_followed_no_more_waits_for_its_append(following: Following) -> None:
    one, idle = following.all[0], list[int]()
    assert following.append()
    following.partitions.remove(one, lambda: idle.append(one.log.end_address))
    assert not idle
    following.workers.run()
    assert idle == [one.log.flushed_address]
    assert idle[0] > DIRECT_MIN_BYTES


def test_a_log_whose_checkpoint_is_saved_is_not_appended_to_by_a_second_thread(following: Following) -> None:
    # Its leader's answer comes meanwhile. The first thread to end would give the log to a new leader.
    one, idle = following.all[0], list[bool]()
    assert following.partitions.checkpoint(one)
    assert not following.append()
    following.partitions.remove(one, lambda: idle.append(one.log.appending is None))
    following.workers.run()
    assert idle == [True]


def test_retention_and_checkpoints_leave_an_append_alone(following: Following) -> None:
    one = following.all[0]
    one.log.config = replace(one.log.config, segment_ms=1)
    assert following.append()
    assert not following.partitions.delete_expired(one, 1 << 50)
    following.partitions.checkpoint(one)
    following.workers.run()
    assert following.errors == [None]
    assert len(list(one.log.directory.glob("*.log"))) == 1
    one.log.close()
    assert PartitionLog(one.log.directory).end_address == one.log.end_address
