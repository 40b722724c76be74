"""The logs that a broker follows: whoever waits for a flush hears of its end, whoever has begun it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fix_replica_manager import CountingWorkers
from headrace.broker.config import BrokerConfig
from headrace.broker.followed import FollowedPartition, FollowedPartitions
from headrace.log.directory import PartitionName
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
    following.partitions.checkpoint()
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
