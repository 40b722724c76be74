"""An append and its fsync as one job, past the page cache: what `append_verbatim` and a flush leave."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import appending, direct
from headrace.log.appending import DIRECT_MIN_BYTES, AppendJob
from headrace.log.config import LogConfig
from headrace.log.errors import AddressMismatchError, LogOfflineError, LogStorageError
from headrace.log.partition import PartitionLog
from headrace.wire.batch import BatchHeader, hop
from headrace.wire.records import Record, encode_batch

LONG = DIRECT_MIN_BYTES


def source(folder: Path, sizes: list[int]) -> PartitionLog:
    """Returns a log with a batch of about each size."""
    log = PartitionLog(folder)
    log.leader_epoch = 3
    for number, size in enumerate(sizes):
        value = bytes([number % 251]) * size
        log.append(bytearray(encode_batch([Record(0, 1_000 + number, None, value)])))
    log.flush()
    return log


def fetched(log: PartitionLog, address: int, max_bytes: int = 1 << 30) -> tuple[bytes, list[BatchHeader]]:
    content = b"".join(each.read() for each in log.slices(address, max_bytes))
    return content, [header for _, header in hop(content)]


def begin(copy: PartitionLog, log: PartitionLog) -> AppendJob | None:
    return copy.begin_append(*fetched(log, copy.end_address))


def followed(copy: PartitionLog, log: PartitionLog) -> AppendJob:
    """Returns a job for all that `log` has and the copy lacks."""
    job = begin(copy, log)
    assert job is not None
    return job


def content(log: PartitionLog) -> bytes:
    return fetched(log, log.start_address)[0]


def a_copy(folder: Path, log: PartitionLog) -> PartitionLog:
    """Returns a copy that has the first batch alone, durable."""
    copy = PartitionLog(folder)
    first = next(hop(content(log)))[1].size_bytes
    copy.append_verbatim(content(log)[:first])
    copy.flush()
    return copy


@pytest.fixture
def pair(tmp_path: Path) -> tuple[PartitionLog, PartitionLog]:
    """A log with a long batch between two short ones, and its copy, which has the first one."""
    log = source(tmp_path / "log", [100, LONG + 5_000, 10])
    return log, a_copy(tmp_path / "copy", log)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20_000), min_size=2, max_size=12),
    fetches=st.lists(st.integers(1, 30_000), min_size=1, max_size=12),
    block_bytes=st.sampled_from([512, direct.BLOCK_BYTES]),
    piece_blocks=st.integers(1, 4),
)
def test_a_job_leaves_what_an_append_and_a_flush_leave(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    fetches: list[int],
    block_bytes: int,
    piece_blocks: int,
) -> None:
    folder = tmp_path_factory.mktemp("jobs")
    log = source(folder / "log", sizes)
    by_jobs, by_writes = a_copy(folder / "jobs", log), a_copy(folder / "writes", log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appending, "DIRECT_MIN_BYTES", 1)
        patch.setattr(direct, "BLOCK_BYTES", block_bytes)
        patch.setattr(direct, "PIECE_BYTES", piece_blocks * block_bytes)
        for max_bytes in (*fetches, 1 << 30):
            batches, headers = fetched(log, by_jobs.end_address, max_bytes)
            if not batches:
                break
            job = by_jobs.begin_append(batches, headers)
            assert job is not None
            assert job.run().upto_address == job.flush.upto_address
            by_jobs.end_append(job)
            by_writes.append_verbatim(batches, headers)
            by_writes.flush()
    for copy in (by_jobs, by_writes):
        assert content(copy) == content(log)
        assert copy.flushed_address == copy.end_address == copy.staged_end_address == log.end_address
        assert copy.epochs.latest == 3
        known = copy._segments.active
        assert known.max_timestamp_if_known_ms == 1_000 + len(sizes) - 1, "each batch was noted"
    by_jobs.abandon()
    again = PartitionLog(folder / "jobs")
    assert again.end_address == log.end_address
    assert content(again) == content(log)


def test_the_log_has_nothing_of_a_job_before_it_ended(pair: tuple[PartitionLog, PartitionLog]) -> None:
    log, copy = pair
    before = copy.end_address
    job = followed(copy, log)
    job.run()
    assert copy.end_address == copy.flushed_address == before
    assert not copy.slices(before, 1 << 30)
    copy.end_append(job)
    assert content(copy) == content(log)


def test_a_batch_is_looked_up_as_after_any_append(pair: tuple[PartitionLog, PartitionLog]) -> None:
    log, copy = pair
    job = followed(copy, log)
    job.run()
    copy.end_append(job)
    for _, header in hop(content(log)):
        assert copy.position(header.base_offset) == header.address


@pytest.mark.parametrize("missing", ["open", "write"])
def test_where_the_file_system_has_no_such_writes_the_page_cache_is_used(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    log, copy = pair
    refuse_direct(monkeypatch, missing, errno.EINVAL)
    job = followed(copy, log)
    job.run()
    copy.end_append(job)
    assert content(copy) == content(log)


def address_of(data: Any) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def test_what_lies_in_memory_as_on_the_disk_is_not_copied(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = pair
    batches, headers = fetched(log, copy.end_address)
    begin = copy.end_position_bytes % direct.BLOCK_BYTES
    memory = memoryview(mmap.mmap(-1, begin + len(batches)))[begin:]
    memory[:] = batches
    written = refuse_direct(monkeypatch, "write", errno.EIO, after=1)
    monkeypatch.setattr(direct, "_write_copies", _fails)
    job = copy.begin_append(memory, headers)
    assert job is not None
    job.run()
    copy.end_append(job)
    assert content(copy) == content(log)
    assert len(written) == 1


def refuse_direct(monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, after: int = 0) -> list[int]:
    """Makes opening for direct writes fail, or those writes behind the first `after`. The others are of
    aligned memory, as the kernel demands it.
    """
    real_open, real_write, opened, written = os.open, os.pwrite, set[int](), list[int]()

    def open_(path: Any, flags: int, *rest: Any) -> int:
        if not flags & os.O_DIRECT:
            return real_open(path, flags, *rest)
        if call == "open":
            raise OSError(number, os.strerror(number))
        fd = real_open(path, flags & ~os.O_DIRECT, *rest)  # where the tests run there may be none
        opened.add(fd)
        return fd

    def pwrite(fd: int, data: Any, at: int) -> int:
        if fd in opened:
            if len(written) >= after:
                raise OSError(number, os.strerror(number))
            if address_of(data) % 512:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            written.append(at)
        return real_write(fd, data, at)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    return written


@pytest.mark.parametrize("after", [0, 2])
def test_after_a_full_disk_the_file_is_as_before_and_the_log_goes_on(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    log, copy = pair
    before = copy.end_address
    with monkeypatch.context() as patch:
        patch.setattr(direct, "PIECE_BYTES", 64 * 1024)
        written = refuse_direct(patch, "write", errno.ENOSPC, after=after)
        job = followed(copy, log)
        with pytest.raises(LogStorageError, match="No space left on device") as raised:
            job.run()
        assert not isinstance(raised.value, LogOfflineError)
        assert len(written) == after
    copy.drop_append()
    assert job.file.path.stat().st_size == before == copy.end_address
    job = followed(copy, log)
    job.run()
    copy.end_append(job)
    assert content(copy) == content(log)


@pytest.mark.parametrize("fault", ["write", "cut"])
def test_a_write_that_leaves_the_file_unknown_says_so(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    log, copy = pair
    refuse_direct(monkeypatch, "write", errno.EIO if fault == "write" else errno.ENOSPC)
    if fault == "cut":
        monkeypatch.setattr(os, "ftruncate", _fails)
    job = followed(copy, log)
    with pytest.raises(LogOfflineError, match=f"writing {len(job.batches)} bytes at {job.at} failed"):
        job.run()


def _fails(*_: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_short_write_is_completed(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = pair
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(1, len(data) // 2)], at))
    job = followed(copy, log)
    job.run()
    copy.end_append(job)
    assert content(copy) == content(log)


def test_a_disk_that_takes_nothing_is_an_error(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = pair
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(LogOfflineError, match="the disk accepts no more bytes"):
        followed(copy, log).run()


def test_a_failed_fsync_is_no_storage_error(
    pair: tuple[PartitionLog, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = pair
    job = followed(copy, log)
    monkeypatch.setattr(os, "fdatasync", _fails)
    with pytest.raises(OSError, match="Input/output error"):
        job.run()


@pytest.mark.parametrize("written_bytes", [0, 1, 4_096, LONG // 2, LONG + 5_000, LONG + 6_000])
def test_a_crash_in_the_middle_leaves_whole_batches(
    pair: tuple[PartitionLog, PartitionLog], written_bytes: int
) -> None:
    log, copy = pair
    job = followed(copy, log)
    os.pwrite(job.file.fd, bytes(memoryview(job.batches)[:written_bytes]), job.at)
    copy.abandon()  # as SIGKILL leaves it
    again = PartitionLog(copy.directory)
    ends = [header.next_offset for _, header in hop(content(log))]
    assert again.end_address == max(end for end in ends if end <= job.at + written_bytes or end == job.at)
    assert content(again) == content(log)[: again.end_address]


def test_a_crash_behind_the_write_leaves_all_of_it(pair: tuple[PartitionLog, PartitionLog]) -> None:
    log, copy = pair
    followed(copy, log).run()
    copy.abandon()
    assert content(PartitionLog(copy.directory)) == content(log)


@pytest.mark.parametrize("why", ["short", "unflushed", "new segment", "checkpoint", "pristine"])
def test_some_appends_are_not_a_job(tmp_path: Path, why: str) -> None:
    log = source(tmp_path / "log", [100, 10 if why == "short" else LONG])
    copy = a_copy(tmp_path / "copy", log)
    act: dict[str, Callable[[], Any]] = {
        "unflushed": lambda: setattr(copy, "flushed_address", 0),
        "new segment": lambda: setattr(copy, "config", LogConfig(segment_bytes=copy.end_address + 1)),
        "checkpoint": lambda: setattr(copy, "_checkpoint_requested", True),
    }
    act.get(why, lambda: None)()
    target = PartitionLog(tmp_path / "new") if why == "pristine" else copy
    assert begin(target, log) is None


def test_batches_of_another_address_are_refused(pair: tuple[PartitionLog, PartitionLog]) -> None:
    log, copy = pair
    with pytest.raises(AddressMismatchError):
        copy.begin_append(*fetched(log, 0))
    assert copy.appending is None


def test_a_log_that_is_offline_begins_no_job(pair: tuple[PartitionLog, PartitionLog]) -> None:
    log, copy = pair
    copy.take_offline("its disk is gone")
    with pytest.raises(LogOfflineError, match="its disk is gone"):
        begin(copy, log)


def test_an_old_segment_is_not_sealed_while_a_thread_writes_behind_it(
    pair: tuple[PartitionLog, PartitionLog],
) -> None:
    log, copy = pair
    copy.config = LogConfig(segment_ms=1)
    job = followed(copy, log)
    copy.delete_expired_segments(1 << 50, source_start=0)
    job.run()
    copy.end_append(job)
    assert content(copy) == content(log)
    copy.delete_expired_segments(1 << 50, source_start=0)
    copy.flush()
    assert len(list(copy.directory.glob("*.log"))) == 2


def test_the_page_cache_is_passed(pair: tuple[PartitionLog, PartitionLog], tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct writes")
    log, copy = pair
    written: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(fd: int, data: Any, at: int) -> int:
        written.append((at, real(fd, data, at)))
        return written[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        job = followed(copy, log)
        job.run()
    blocks = [(at, size) for at, size in written if at % direct.BLOCK_BYTES == 0 == size % direct.BLOCK_BYTES]
    assert sum(size for _, size in blocks) > len(job.batches) - 2 * direct.BLOCK_BYTES
    assert all(size < direct.BLOCK_BYTES for at, size in written if (at, size) not in blocks)
    assert sum(size for _, size in written) == len(job.batches), "nothing is written twice"
