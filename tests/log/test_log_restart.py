"""A copy that gives up all that it has, and begins where its leader does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.log.config import LogConfig
from headrace.log.errors import AddressOutOfRangeError
from headrace.log.partition import PartitionLog
from headrace.wire.records import Record, encode_batch


def batch(value: bytes, **producer: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, value)], **producer))


def test_a_copy_restarts_before_its_start(tmp_path: Path) -> None:
    """Its leader, which an unclean election made, has nothing of it. Neither a crash before the old files are
    gone nor one behind it finds a log that lacks what a checkpoint says.
    """
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_024, retention_bytes=2_000))
    for _ in range(8):
        log.append(batch(bytes(900), producer_id=1, producer_epoch=0, base_sequence=0))
    log.flush()
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments()
    start, end = log.start_address, log.end_address
    with pytest.raises(AddressOutOfRangeError):
        log.restart(100)
    for inside in (start, end):
        with pytest.raises(AddressOutOfRangeError):
            log.restart(inside, may_go_back=True)
    shutil.copytree(log.directory, tmp_path / "before")
    log.restart(100, may_go_back=True)
    assert log.start_address == log.end_address == log.flushed_address == 100
    assert log.producers.get(1) is None and log.epochs.starts() == ()
    again = PartitionLog(shutil.copytree(log.directory, tmp_path / "crashed"))
    assert (again.start_address, again.end_address) == (100, 100)
    again.close()
    for old in (tmp_path / "before").glob("*.log"):
        shutil.copy(old, tmp_path / "crashed")
    undone = PartitionLog(tmp_path / "crashed")
    assert undone.offline is None and undone.end_address in (100, end)
    undone.close()
    log.append(batch(b"goes on"))
    log.flush()
    log.close()
    again = PartitionLog(log.directory)
    assert (again.start_address, again.end_address) == (100, log.end_address)
    again.close()
