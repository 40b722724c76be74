"""A disk that fails: the log goes offline, repeats no fsync, and recovers when reopened."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.log import checkpoint
from headrace.log.config import LogConfig
from headrace.log.errors import LogOfflineError, LogStorageError
from headrace.log.files import PAGE_BYTES
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop
from headrace.wire.records import Record, encode_batch


def batch(value: bytes = b"v", **fields: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, value)], **fields))


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30))


class Disk:
    """Makes calls of `os` fail while `faults` names them, and records all calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: dict[str, int] = {}
        self.calls: list[tuple[Any, ...]] = []
        for name in ("fdatasync", "fsync", "pwritev", "ftruncate", "posix_fadvise", "pread"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments[1:]))
            if name in self.faults:
                raise OSError(self.faults[name], os.strerror(self.faults[name]))
            return real(*arguments)

        return call

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_fsync_nothing_is_appended_flushed_or_saved(
    tmp_path: Path, disk: Disk, number: int
) -> None:
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_024))
    first, second = batch(b"first"), batch(b"second")
    log.append(first)
    log.flush()
    log.append(second)
    disk.faults["fdatasync"] = number
    with pytest.raises(LogOfflineError) as raised:
        log.flush()
    message = str(raised.value)
    assert "\n" not in message
    assert f"{tmp_path / 't-0'} is offline: fsync failed: {os.strerror(number)}; " in message
    assert f"addresses from {len(first)} on" in message
    assert "tries to open the log again by itself" in message
    assert not raised.value.retriable
    assert log.flushed_address == len(first)
    assert len(list(hop(content(log)))) == 1, "unflushed batches never become visible"

    disk.faults.clear()
    syncs = disk.count("fdatasync") + disk.count("fsync")
    for act in (log.flush, log.roll, lambda: log.append(batch(b"third"))):
        with pytest.raises(LogOfflineError):
            act()
    assert log.begin_flush() is None
    assert log.delete_expired_segments(10**15) == []
    log.close()
    assert disk.count("fdatasync") + disk.count("fsync") == syncs, "no page is synced a second time"
    assert log.flushed_address == len(first)
    assert log.staged_end_address == log.end_address
    saved = checkpoint.load(log.directory)
    assert saved is not None and saved.recovery_point == 0, "as it was when the log was created"

    again = PartitionLog(tmp_path / "t-0")
    assert content(again) == content_of_files(again)
    assert again.flushed_address == again.end_address == len(first) + len(second)
    again.append(batch(b"third"))
    again.flush()
    assert len(list(hop(content(again)))) == 3


def content_of_files(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def test_batches_that_the_disk_lost_are_cut_off_when_reopened(tmp_path: Path, disk: Disk) -> None:
    log = PartitionLog(tmp_path / "t-0")
    first, second = batch(bytes(PAGE_BYTES)), batch(bytes(PAGE_BYTES))
    log.append(first)
    log.flush()
    log.request_checkpoint()
    log.flush()
    log.append(second)
    disk.faults["fdatasync"] = errno.EIO
    with pytest.raises(LogOfflineError):
        log.flush()
    log.close()
    disk.faults.clear()
    file = log.directory / f"{0:020d}.log"
    with file.open("r+b") as damaged:  # the page that was never written
        damaged.seek(2 * PAGE_BYTES)
        damaged.write(b"\xff" * 100)
    disk.calls.clear()
    again = PartitionLog(tmp_path / "t-0")
    assert again.end_address == again.flushed_address == len(first) == file.stat().st_size
    recovered = [call for call in disk.calls if call[0] in ("fdatasync", "posix_fadvise", "pread")]
    # Before unflushed bytes are read, the page cache's copy of them is dropped, from a page boundary on.
    assert recovered[:2] == [("fdatasync",), ("posix_fadvise", PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)]
    assert recovered[2][0] == "pread"
    again.append(second)
    again.flush()
    assert again.flushed_address == len(first) + len(second)


@pytest.mark.parametrize(
    ("faults", "offline"),
    [
        ({"pwritev": errno.ENOSPC}, False),
        ({"pwritev": errno.EDQUOT}, False),
        ({"pwritev": errno.EIO}, True),
        ({"pwritev": errno.EROFS}, True),
        ({"pwritev": errno.ENOSPC, "ftruncate": errno.EIO}, True),
    ],
)
def test_only_a_full_disk_is_retriable(
    tmp_path: Path, disk: Disk, faults: dict[str, int], offline: bool
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    first = batch(b"first")
    log.append(first)
    disk.faults = faults
    with pytest.raises(LogStorageError) as raised:
        log.append(batch(b"second", producer_id=7, producer_epoch=0, base_sequence=0))
    disk.faults = {}
    assert os.strerror(faults["pwritev"]) in str(raised.value)
    assert (log.offline is not None) is isinstance(raised.value, LogOfflineError) is offline
    assert log.end_address == log.staged_end_address == len(first)
    assert log.producers.get(7) is None
    if offline:
        with pytest.raises(LogOfflineError):
            log.append(batch(b"second"))
        log.close()
        log = PartitionLog(tmp_path / "t-0")
    log.append(batch(b"second"))
    log.flush()
    assert len(list(hop(content(log)))) == 2


@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("open", errno.EMFILE)])
def test_want_of_room_or_descriptors_at_a_checkpoint_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, code: int
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    real = getattr(os, call)

    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    log.append(batch(b"first"))
    log.flush()  # of the folder, too
    log.append(batch(b"second"))
    monkeypatch.setattr(os, call, fails)
    assert log.request_checkpoint()
    log.flush()
    assert log.offline is None and log.flushed_address == log.end_address
    assert f"no checkpoint was saved: {log.directory}" in caplog.text
    monkeypatch.setattr(os, call, real)
    log.append(batch(b"third"))
    log.close()
    assert (log.directory / "checkpoint").exists()
    assert len(list(hop(content(PartitionLog(tmp_path / "t-0"))))) == 3


@pytest.mark.parametrize("call", ["fsync", "unlink"])
def test_a_restart_that_fails_takes_the_log_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = PartitionLog(tmp_path / "t-0")
    first = batch(b"first")
    log.append(first)
    log.flush()

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as faulty:
        faulty.setattr(os, call, fails)
        with pytest.raises(LogOfflineError, match="restarting at 5000 failed: Input/output error"):
            log.restart(5_000)
    with pytest.raises(LogOfflineError):
        log.append(batch(b"second"))
    log.close()
    again = PartitionLog(tmp_path / "t-0")
    assert (again.start_address, again.end_address) == (0, len(first)), "as it was before"
    again.close()


def open_files(folder: Path) -> list[Path]:
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the loop
            found.append(fd.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def test_a_log_that_failed_keeps_no_file_open(tmp_path: Path, disk: Disk) -> None:
    """Its error had a traceback, and that the job of the flush. As long as the log was known, and until the
    garbage collector came, somebody seemed to write to its file, so it was not opened again.
    """
    log = PartitionLog(tmp_path / "t-0")
    log.append(batch())
    disk.faults["fdatasync"] = errno.EIO
    gc.disable()
    try:
        for act in (log.close, log.flush):
            with suppress(LogOfflineError):
                act()
        assert log.offline is not None
        log.abandon()
        assert open_files(tmp_path) == []
    finally:
        gc.enable()
