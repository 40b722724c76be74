"""Retention deletes nothing of which the last checkpoint does not know the producers: a crash would make them
older than they are, and refuse what they send next.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from headrace.log import flush
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.wire.records import Record, encode_batch

CONFIG = LogConfig(segment_bytes=1_000, retention_bytes=2_500, retention_ms=-1)
EARLY, BUSY = 1, 2


def batch(sequence: int, producer_id: int, value: bytes = b"v" * 200) -> bytearray:
    numbers: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return bytearray(encode_batch([Record(0, 1_000, None, value)], **numbers))


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Its checkpoint knows the first batch of an early producer, and not the second one."""
    made = PartitionLog(tmp_path / "t-0", CONFIG)
    made.append(batch(0, EARLY))
    made.request_checkpoint()
    made.flush()
    made.append(batch(1, EARLY))
    for sequence in range(20):
        made.append(batch(sequence, BUSY))
    made.flush()
    return made


def last_sequence(log: PartitionLog, producer_id: int) -> int | None:
    known = log.producers.get(producer_id)
    return None if known is None else known.batches[-1].first_sequence


def opened_after_a_crash(log: PartitionLog) -> PartitionLog:
    log.abandon()
    return PartitionLog(log.directory)


def test_a_producer_whose_batches_retention_deleted_is_known_after_a_crash(log: PartitionLog) -> None:
    assert log.delete_expired_segments() == []
    assert log.awaits_checkpoint
    log.flush()
    assert not log.awaits_checkpoint
    assert log.delete_expired_segments() and log.start_address > 600
    again = opened_after_a_crash(log)
    assert last_sequence(again, EARLY) == 1
    assert last_sequence(again, BUSY) == 19
    again.close()


def test_what_the_checkpoint_knows_is_deleted_at_once(log: PartitionLog) -> None:
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments()
    again = opened_after_a_crash(log)
    assert not again.awaits_checkpoint
    again.config = LogConfig(segment_bytes=1_000, retention_bytes=1_000, retention_ms=-1)
    assert again.delete_expired_segments(), "so it is after a start"
    again.close()


def test_a_full_disk_does_not_keep_retention_from_making_room(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its checkpoint knows is older than the log then, and is not believed after a crash."""

    def has_no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert log.delete_expired_segments() == []
    monkeypatch.setattr(flush, "save", has_no_room)
    log.flush()
    assert log.delete_expired_segments()
    again = opened_after_a_crash(log)
    assert last_sequence(again, EARLY) is None
    assert last_sequence(again, BUSY) == 19
    again.close()


def test_a_cut_leaves_the_checkpoint_before_it(log: PartitionLog) -> None:
    end = log.end_address
    log.append(batch(20, BUSY))
    log.request_checkpoint()
    log.flush()  # it says something of what is cut: the one before it counts again
    log.truncate(end)
    log.flush()
    assert log.delete_expired_segments() == []
    assert log.awaits_checkpoint


def test_a_log_that_is_offline_awaits_nothing(log: PartitionLog) -> None:
    assert log.delete_expired_segments() == []
    assert log.awaits_checkpoint
    log.take_offline("its disk is gone")
    assert not log.awaits_checkpoint, "else retention would look at it again and again"


def test_what_was_not_flushed_waits_for_that_alone(log: PartitionLog) -> None:
    log.config = LogConfig(segment_bytes=1_000, retention_bytes=10_000_000, retention_ms=-1)
    assert log.delete_expired_segments() == [], "nothing has expired"
    log.flush()
    assert not log.awaits_checkpoint


def test_a_cut_does_not_bring_back_what_an_old_checkpoint_knows_of_deleted_batches(log: PartitionLog) -> None:
    """A follower that is cut behind a new leader's last batch falls back to the checkpoint before the last
    one. The log may begin behind that by now.
    """
    end = log.end_address
    log.append(batch(20, BUSY))
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments() and log.start_address > 600
    log.truncate(end)
    assert last_sequence(log, EARLY) is None, "it sent more since: that would be refused for good"
    assert last_sequence(log, BUSY) == 19
    again = opened_after_a_crash(log)
    assert last_sequence(again, EARLY) is None
    again.close()
