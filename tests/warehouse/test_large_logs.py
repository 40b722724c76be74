"""A commit log with more files and hours than one read takes: a client may write events of all times."""

from __future__ import annotations

import pytest

from fix_memory_hdfs import MemoryHdfs
from headrace.warehouse import commitlog
from headrace.warehouse.commitlog import ChangeTooLargeError, CommitLog
from headrace.warehouse.hdfs.errors import HdfsError
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, Manifest, ManifestError, TableState

PATHS = TopicPaths("/data", "t")
LIMIT_BYTES = 10_000


class Died(BaseException):
    """Stands for SIGKILL."""


class Limited(MemoryHdfs):
    """A read returns no more than an HDFS client reads at once."""

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(path, offset=offset, length=length)
        if len(data) > LIMIT_BYTES:
            raise HdfsError(f"read {path}: over the limit")
        return data


def commit(log: CommitLog, files: int) -> Manifest:
    def rebase(now: TableState) -> Manifest:
        made = [
            DataFile(
                PATHS.data_file(n * HOUR_MS, now.next_sequence, n),
                f"{PATHS.base}/s/{n}",
                n * HOUR_MS,
                1,
                1,
                1,
            )
            for n in range(files)
        ]
        return Manifest(now.next_sequence, "load", "t", f"c{now.next_sequence}", 0, "w", files=tuple(made))

    return log.commit(f"c{log.state().next_sequence}", rebase)


def test_manifests_and_states_that_are_larger_than_one_read_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "READ_SIZE_MAX_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(commitlog, "STATE_EVERY", 1)
    hdfs = Limited()
    log = CommitLog(hdfs, PATHS)
    for _ in range(2):
        manifest = commit(log, 100)
        hdfs.files |= {file.staged: b"?" for file in manifest.files}
        log.complete(manifest, None)
    assert len(hdfs.files[PATHS.manifest(1)]) > 2 * LIMIT_BYTES < len(hdfs.files[PATHS.state(1)])
    assert len(log.state().files) == 200
    assert len(log.manifests()) == 2 and log.problem_of_state(log.manifests()) == ""
    monkeypatch.setattr(commitlog, "FILE_SIZE_MAX_BYTES", LIMIT_BYTES)
    with pytest.raises(ManifestError, match=r"it has \d+ bytes"):
        log.manifests()


def test_a_run_that_died_behind_a_large_state_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run finds that state there, and looks whether it is whole."""
    monkeypatch.setattr(commitlog, "READ_SIZE_MAX_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(commitlog, "STATE_EVERY", 1)
    hdfs = Limited()
    log = CommitLog(hdfs, PATHS)
    manifest = commit(log, 100)
    hdfs.files |= {file.staged: b"?" for file in manifest.files}

    def die(call: str) -> None:
        if call == "delete":
            raise Died

    hdfs.before = die
    with pytest.raises(Died):
        log.complete(manifest, None)
    hdfs.before = lambda _: None
    assert len(hdfs.files[PATHS.state(0)]) > LIMIT_BYTES
    assert log.complete_all(None) == [manifest]
    assert log.to_complete() == [] and len(log.state().files) == 100


def test_a_change_that_nobody_could_read_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "MANIFEST_SIZE_MAX_BYTES", LIMIT_BYTES)
    log = CommitLog(MemoryHdfs(), PATHS)
    with pytest.raises(ChangeTooLargeError, match="100 files of 100 hours are too many"):
        commit(log, 100)
    assert log.manifests() == []
    assert commit(log, 10).sequence == 0
