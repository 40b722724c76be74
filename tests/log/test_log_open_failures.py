"""A log that cannot be opened leaves no file open, also while its error is kept: the next try, and the check
whether somebody writes there, would find a writer.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.wire.records import Record, encode_batch

CONFIG = LogConfig(segment_bytes=600)
CALLS_MAX = 60


def open_below(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            path = descriptor.readlink()
        except FileNotFoundError:
            continue  # the one with which this was listed
        if path.is_relative_to(folder):
            found.append(path.name)
    return found


def left_by_a_crash(folder: Path) -> None:
    log = PartitionLog(folder, CONFIG)
    for number in range(12):
        log.append(encode_batch([Record(0, 1_000 + number, None, b"v" * 100)]))
    log.flush()
    log.abandon()
    with max(folder.glob("*.log")).open("ab") as torn:
        torn.write(b"half a batch")


@pytest.mark.parametrize(
    ("failing", "is_new"),
    [
        *((each, True) for each in ("fsync", "replace")),
        *((each, False) for each in ("fsync", "fdatasync", "pread", "posix_fadvise", "ftruncate")),
    ],
)
def test_a_log_that_cannot_be_opened_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, is_new: bool
) -> None:
    """Whichever of these calls is the one that fails."""
    real, kept = getattr(os, failing), []
    for passing in range(CALLS_MAX):
        folder, calls = tmp_path / str(passing), 0
        if not is_new:
            left_by_a_crash(folder)

        def call(*arguments: Any, passing: int = passing) -> Any:
            nonlocal calls
            calls += 1
            if calls > passing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, failing, call)
            try:
                log = PartitionLog(folder, CONFIG)
            except OSError as error:
                kept.append(error)
            else:
                log.abandon()
                break
        assert open_below(folder) == [], f"{passing} calls passed"
    else:
        pytest.fail(f"more than {CALLS_MAX} calls of {failing}")
    assert kept
