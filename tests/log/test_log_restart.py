"""A copy that gives up all that it has, and begins where its leader does."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.log import partition
from headrace.log.config import LogConfig
from headrace.log.errors import AddressOutOfRangeError
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.wire.records import Record, encode_batch


def batch(value: bytes, **producer: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, value)], **producer))


def test_a_copy_restarts_before_its_start(tmp_path: Path) -> None:
    """Its leader, which an unclean election made, has nothing of it."""
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
    log.restart(100, may_go_back=True)
    assert log.start_address == log.end_address == log.flushed_address == 100
    assert log.producers.get(1) is None and log.epochs.starts() == ()
    again = PartitionLog(shutil.copytree(log.directory, tmp_path / "crashed"))
    assert (again.start_address, again.end_address) == (100, 100)
    again.close()
    log.append(batch(b"goes on"))
    log.flush()
    log.close()
    again = PartitionLog(log.directory)
    assert (again.start_address, again.end_address) == (100, log.end_address)
    again.close()


class DiedError(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


STEPS = [
    (partition, "save_cut"),
    (SegmentList, "truncate"),
    (partition.PartitionLog, "_new_segment"),
    (partition, "sync_directory"),
    (SegmentList, "replace_all"),
    (Segment, "delete"),
]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_crash_on_the_way_back_leaves_a_log_that_opens(
    tmp_path: Path, owner: Any, name: str, number: int, is_done: bool
) -> None:
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_024, retention_bytes=2_000))
    for _ in range(8):
        log.append(batch(bytes(900)))
    log.flush()
    for job in iter(log.begin_index, None):
        job.run()
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments()
    start, end = log.start_address, log.end_address
    real, calls = getattr(owner, name), 0

    def dies(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not is_done:
            raise DiedError
        result = real(*arguments, **more)
        if calls == number:
            raise DiedError
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dies)
        with contextlib.suppress(DiedError):
            log.restart(100, may_go_back=True)
    again = PartitionLog(shutil.copytree(log.directory, tmp_path / "again"))
    assert again.start_address in (start, 100) and again.end_address <= end
    again.append(batch(b"goes on"))
    again.flush()
    again.close()
    log.abandon()
