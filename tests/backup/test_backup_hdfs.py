"""The files of an HDFS in a backup, and in an HDFS that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backup import hdfs_tree, servers
from headrace.backup.pace import Pace
from headrace.backup.writer import Earlier, Writer
from headrace.warehouse.hdfs.client import HdfsClient

pytestmark = pytest.mark.hdfs

FILES = {
    "/data/page-view/_log/00000000000000000000.json": b'{"sequence": 0}',
    "/data/page-view/hourly/2026/11/23/02/00000000000000000000-00000.parquet": bytes(range(256)) * 5000,
    "/data/page-view/hourly/dt=2026-11-23/hour=02/a b.parquet": b"with a space",
    "/data/page-view/_sealed/2026-11-23-02.v001.json": b"{}",
    "/user/empty": b"",
}


def content(hdfs: HdfsClient) -> dict[str, bytes]:
    return {path: hdfs.read(path, length=status.size_bytes) for path, status in hdfs.walk("/")}


def test_a_tree_is_copied_and_written_again(
    java_jars: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(java_jars["hdfs"].parent)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with servers.hdfs(tmp_path / "hdfs", home) as url, HdfsClient(url) as hdfs:
        for path, data in FILES.items():
            hdfs.write(path, data)
        with Writer(first, [], Pace()) as writer:
            assert not hdfs_tree._copy_tree(hdfs, "hdfs", writer, with_data=True)
            made = dict(writer.files)
        assert {path.removeprefix("hdfs/tree") for path in made} == FILES.keys()

        # The next load is committed while the files are copied.
        original, later = hdfs_tree._copy_one, "/data/page-view/_log/00000000000000000001.json"
        file = "/data/page-view/hourly/later.parquet"

        def committing(hdfs_: HdfsClient, name: str, path: str, *others: object) -> bool:
            if path.endswith("a b.parquet") and hdfs_.status(later) is None:
                hdfs_.write(file, b"later")
                hdfs_.write(later, b'{"sequence": 1}')
                hdfs_.delete("/user/empty")
            return original(hdfs_, name, path, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(hdfs_tree, "_copy_one", committing)
        with Writer(second, [Earlier(first, made)], Pace()) as writer:
            assert not hdfs_tree._copy_tree(hdfs, "hdfs", writer, with_data=True)
            assert writer.taken_over_bytes >= 256 * 5000
            names = {path.removeprefix("hdfs/tree") for path in writer.files}
        assert names == FILES.keys() - {"/user/empty"} | {later, file}
        with Writer(tmp_path / "second", [], Pace()) as writer:
            assert not hdfs_tree._copy_tree(hdfs, "hdfs", writer, with_data=False)
            assert all("_log" in path or "_sealed" in path for path in writer.files)
        wanted = content(hdfs)
    with servers.hdfs(tmp_path / "restored", home) as url, HdfsClient(url) as hdfs:
        assert hdfs_tree.restore_tree(url, second / "hdfs" / "tree") == len(wanted)
        assert content(hdfs) == wanted
