"""The logs that a broker follows: whoever waits for a flush hears of its end, whoever has begun it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fix_replica_manager import CountingWorkers
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FORGET_EVERY_BYTES, FollowedPartitions
from headrace.broker.settings.config import BrokerConfig
from headrace.log.directory import PartitionName
from headrace.log.files import PAGE_BYTES
from headrace.log.partition import PartitionLog
from headrace.replication.following import Truncate
from headrace.wire.records import Record, encode_batch


class Following:
    """One followed partition with a batch that is not flushed."""

    def __init__(self, folder: Path) -> None:
        self.workers = CountingWorkers()
        self.partitions = FollowedPartitions(cast(Any, self.workers), lambda *_: None)
        config = BrokerConfig().topic_config({})
        log = PartitionLog(folder / "t-0", config.log)
        log.append(bytearray(encode_batch([Record(0, 1_000, None, b"x")])))
        name = PartitionName("t", 0)
        self.one = FollowedPartition(name, UUID(int=1), config, log, high_watermark=0)
        self.partitions.add(self.one)
        self.heard: list[str] = []

    def waits(self, who: str) -> bool:
        return self.partitions.flush(self.one, lambda _: self.heard.append(who))


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


def test_a_fetcher_hears_of_the_end_of_a_checkpoints_flush(following: Following) -> None:
    following.partitions.checkpoint(following.one)
    assert following.waits("fetcher")
    following.workers.run()
    assert following.heard == ["fetcher"]
    assert not following.waits("fetcher")


def test_the_fetcher_of_a_new_leader_hears_of_the_flush_that_the_one_before_began(
    following: Following,
) -> None:
    assert following.waits("the old leader's")
    assert following.waits("the new leader's")
    following.workers.run()
    assert following.heard == ["the new leader's"]


def test_the_fetcher_of_a_new_leader_hears_of_the_cut_that_the_one_before_began(following: Following) -> None:
    following.one.log.flush()
    following.partitions.cut(following.one, Truncate(0), lambda _: following.heard.append("old"))
    assert following.waits("new")
    following.workers.run()
    assert following.heard == ["new"]


@pytest.mark.parametrize("keeps_pages", [False, True])
def test_pages_that_nobody_reads_are_given_back_once_they_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_pages: bool
) -> None:
    following = Following(tmp_path)
    following.partitions._keeps_pages = keeps_pages
    log, calls = following.one.log, list[tuple[str, int]]()
    sync = os.fdatasync

    def synced(fd: int) -> None:
        calls.append(("sync", 0))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, _start, size, _: calls.append(("forget", size)))
    value = b"v" * (FORGET_EVERY_BYTES // 2)
    for _ in range(3):
        log.append(bytearray(encode_batch([Record(0, 1_000, None, value)])))
        calls.clear()
        assert following.waits("fetcher")
        following.workers.run()
        forgotten = [size for kind, size in calls if kind == "forget"]
        if keeps_pages or log.end_address < FORGET_EVERY_BYTES:
            assert not forgotten
        elif forgotten:
            assert calls[0][0] == "sync" and forgotten == [log.end_address - log.end_address % PAGE_BYTES]
    assert keeps_pages or following.one.forgotten_address > FORGET_EVERY_BYTES
    log.abandon()
