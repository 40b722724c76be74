"""A load moves its files to their hours while HDFS is copied: a backup has all that its manifests name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fix_memory_hdfs import MemoryHdfs
from headrace.backup import hdfs_tree
from headrace.backup.pace import Pace
from headrace.backup.writer import Writer

TABLE = "/data/page-view"
MANIFEST = f"{TABLE}/_log/00000000000000000000.json"
STAGED = f"{TABLE}/_staging/00000000000000000000/part.parquet"
MOVED = f"{TABLE}/hourly/2026/11/23/02/part.parquet"

Copied = Callable[[Callable[[MemoryHdfs], None]], set[str]]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """The files of a backup during which something is done just before the staged file is copied."""

    def copy(meanwhile: Callable[[MemoryHdfs], None]) -> set[str]:
        hdfs = MemoryHdfs({MANIFEST: b"{}", STAGED: b"rows"})
        original = hdfs_tree._copy_one

        def copy_one(hdfs_: MemoryHdfs, name: str, path: str, *others: object) -> bool:
            if path == STAGED and STAGED in hdfs.files:
                meanwhile(hdfs)
            return original(hdfs_, name, path, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(hdfs_tree, "_copy_one", copy_one)
        with Writer(tmp_path, [], Pace()) as writer:
            assert hdfs_tree._copy_tree(hdfs, "hdfs", writer, with_data=True) == []
            return {path.removeprefix("hdfs/tree") for path in writer.files}

    return copy


def test_a_file_that_its_load_moves_meanwhile_is_copied(copied: Copied) -> None:
    def move(hdfs: MemoryHdfs) -> None:
        hdfs.files[MOVED] = hdfs.files.pop(STAGED)

    assert copied(move) == {MANIFEST, MOVED}


def test_a_staged_file_that_is_deleted_is_missed_by_nobody(copied: Copied) -> None:
    def delete(hdfs: MemoryHdfs) -> None:
        del hdfs.files[STAGED]

    assert copied(delete) == {MANIFEST}
