"""More buffers than one pwritev takes, and writes that the kernel does in part: all of it arrives, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.log.partition import PartitionLog
from headrace.log.segment import BUFFERS_MAX
from headrace.log.staging import COPY_BELOW_BYTES
from headrace.wire.batch import hop, read_header
from headrace.wire.records import Record, encode_batch


def staged(log: PartitionLog, count: int) -> int:
    """Stages so many batches, each a buffer of its own; returns their bytes."""
    raw = encode_batch([Record(0, 1, None, bytes(COPY_BELOW_BYTES))])
    for _ in range(count):
        log.stage(memoryview(bytearray(raw)), read_header(raw))
    return count * len(raw)


def check(log: PartitionLog, count: int, size_bytes: int) -> None:
    log.commit()
    log.flush()
    assert log.offline is None and log.end_address == size_bytes
    log.close()
    again = PartitionLog(log.directory)
    content = b"".join(each.read() for each in again.slices(0, 1 << 30))
    assert [header.is_stored_at(at) for at, header in hop(content)] == [True] * count
    again.close()


@pytest.mark.parametrize("count", [BUFFERS_MAX, BUFFERS_MAX + 1, 2 * BUFFERS_MAX + 7])
def test_more_buffers_than_one_write_takes(tmp_path: Path, count: int) -> None:
    log = PartitionLog(tmp_path / "t-0")
    check(log, count, staged(log, count))


def test_partial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def partial(fd: int, buffers: Any, at: int) -> int:
        return real(fd, b"".join(buffers)[: COPY_BELOW_BYTES // 3], at)

    monkeypatch.setattr(os, "pwritev", partial)
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: real(fd, raw[:10_007], at))
    log = PartitionLog(tmp_path / "t-0")
    check(log, 9, staged(log, 9))
