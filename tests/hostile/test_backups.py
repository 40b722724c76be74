"""Backups of an enemy: each lie is refused in a line that names it, and nothing is written."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from fuzzing.target_backups import BROKER, NAME, PARTITION, make, replace, rewrite
from headrace.backup import manifest, trees
from headrace.backup.errors import DamagedBackupError
from headrace.backup.writer import read_journal
from headrace.cli import main as cli
from headrace.cli.errors import ExitCode
from headrace.process.text import has_control

ENDS_WITHIN_S: Final = 20.0
Lie = Callable[[dict[str, Any]], None]


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf" / NAME
    folder.mkdir(parents=True)
    make(folder)
    return folder


@pytest.fixture
def headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, words)])
        began_s = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        output = shown.out + shown.err
        assert time.monotonic() - began_s < ENDS_WITHIN_S
        assert "Traceback" not in output and "HEADRACE_DEBUG" not in output, output
        assert not any(has_control(char) for char in output if char not in "\t\n"), output
        output.encode()  # a terminal can show it
        assert len(shown.err.splitlines()) <= 3
        return int(ended.value.code or 0), output

    return run


def test_an_honest_backup_is_restored(backup: Path, headrace: Callable[..., tuple[int, str]]) -> None:
    """Else the refusals below would say nothing."""
    home = backup.parent.parent / "new"
    assert headrace("backup", "verify", backup)[0] == 0
    code, output = headrace("restore", backup, "--into", home)
    assert code == 0 and "restored" in output
    assert (home / "data/east/broker-1" / PARTITION / "partition.json").exists()


def entry(at: int, value: object) -> Lie:
    return lambda values: values["files"][0].__setitem__(at, value)


def piece(field: str, value: object) -> Lie:
    return lambda values: values["pieces"][0].__setitem__(field, value)


def top(field: str, value: object) -> Lie:
    return lambda values: values.__setitem__(field, value)


LIES: Final[dict[str, tuple[Lie, str]]] = {
    "half a character in a path": (entry(0, f"{BROKER}/\ud800"), "no name that a file can have"),
    "a path that climbs": (entry(0, f"{BROKER}/../../x"), "a path that leaves its folder"),
    "a file of 10^400 bytes": (entry(1, 10**400), "is not a size"),
    "a file of 2^63 bytes": (entry(1, 1 << 63), "is not a size"),
    "more bytes than any disk has": (entry(1, (1 << 63) - 1), "bytes are free on the disk"),
    "a time without end": (top("began_ms", 1e400), "no time in milliseconds"),
    "a time after the year 9999": (top("ended_ms", 1 << 60), "no time in milliseconds"),
    "facts that are none": (piece("facts", None), "are no facts"),
    "partitions that are none": (piece("facts", {"partitions": [1]}), "are no partitions"),
    "a partition that climbs": (piece("facts", {"partitions": {"../x": {"topic_id": "1"}}}), "leaves its"),
    "a partition without a topic": (piece("facts", {"partitions": {"t-0": {"topic_id": 7}}}), "has no topic"),
    "a datacenter that colours the terminal": (piece("datacenter", "\x1b[31m"), "is no datacenter"),
    "a home that colours the terminal": (top("home", "\x1b[31m/x"), "is no home"),
    "configurations that are none": (top("configurations", {BROKER: 7}), "is not a manifest"),
    "data beside the home": (piece("data", "../../outside"), "leaves its folder"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_lies_is_refused_by_name(
    name: str, backup: Path, headrace: Callable[..., tuple[int, str]]
) -> None:
    lie, problem = LIES[name]
    rewrite(backup, lie)
    root = backup.parent.parent
    before = sorted(root.rglob("*"))
    code, output = headrace("restore", backup, "--into", root / "new")
    assert code == ExitCode.NEGATIVE and problem in output.replace("\n", " "), output
    assert "[31m" not in output or "\\x1b[31m" in output
    assert sorted(root.rglob("*")) == before, "nothing was written"
    assert headrace("backup", "list", backup.parent)[0] == 0
    headrace("backup", "list", backup.parent, "--json")
    headrace("backup", "verify", backup)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        pytest.skip("making a device needs root")


def link_to_zero(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path) -> None:
    os.truncate(path, 1 << 42)


@pytest.mark.parametrize("kind", [fifo, device, link_to_zero, folder, sparse])
@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256", "home/site.yaml"])
def test_a_file_of_another_kind_is_refused_at_once(
    kind: Callable[[Path], None], name: str, backup: Path, headrace: Callable[..., tuple[int, str]]
) -> None:
    """A pipe would make a reader wait for ever, a device give bytes without end."""
    kind(backup / name)
    home = backup.parent.parent / "new"
    code, output = headrace("restore", backup, "--into", home)
    assert code == ExitCode.NEGATIVE and Path(name).name in output.replace("\n", "")
    assert not home.exists()
    headrace("backup", "verify", backup)
    assert headrace("backup", "list", backup.parent)[0] == 0


def test_a_sparse_file_of_terabytes_is_refused_before_it_is_read(
    backup: Path, headrace: Callable[..., tuple[int, str]]
) -> None:
    """The manifest tells its true size: to read it for its digest would take hours."""
    path = backup / "home" / "site.yaml"
    sparse(path)
    size_bytes = path.stat().st_size

    def tell(values: dict[str, Any]) -> None:
        for each in values["files"]:
            if each[0] == "home/site.yaml":
                each[1] = size_bytes

    rewrite(backup, tell)
    code, output = headrace("restore", backup, "--into", backup.parent.parent / "new")
    assert code == ExitCode.NEGATIVE and "Nothing was written" in output.replace("\n", " ")


def test_a_manifest_that_is_not_text_is_refused_in_a_short_line(
    backup: Path, headrace: Callable[..., tuple[int, str]]
) -> None:
    for content in (b"\xff" * 100_000, b"[" * 100_000, b'{"format": 1e400}', b"null", b"\x00" * 1000):
        replace(backup, content)
        code, output = headrace("restore", backup, "--into", backup.parent.parent / "new")
        assert code == ExitCode.NEGATIVE and len(output) < 1500


@pytest.mark.parametrize(
    "line",
    [
        b'{"path": "/a", "text": "", "created": 1e400, "modified": 1}',
        b'{"path": "/a\\ud800", "text": "", "created": 1, "modified": 1}',
        b'{"path": "/a", "text": "\\ud800", "created": 1, "modified": 1}',
        b'{"path": "/a//b", "text": "", "created": 1, "modified": 1}',
        b'{"path": "/a/../b", "text": "", "created": 1, "modified": 1}',
        b'{"path": "/a/", "text": "", "created": 1, "modified": 1}',
        b'{"path": "/a\\u0000", "text": "", "created": 1, "modified": 1}',
        b'{"path": "/zookeeper/config", "text": "", "created": 1, "modified": 1}',
        b'{"path": "a", "text": "", "created": 1, "modified": 1}',
        b"[" * 200_000,
        b"\xff" * 200_000,
        b"7",
    ],
)
def test_a_tree_with_a_line_that_is_no_node_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / trees.TREE
    path.write_bytes(b'{"path": "/ok", "text": "", "created": 1, "modified": 1}\n' + line + b"\n")
    with pytest.raises(DamagedBackupError, match="line 2 is no node") as refused:
        trees.decode(path)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 600


def test_a_journal_of_nonsense_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'["a/b", 1e400, "", ""]\n' + b"[" * 60_000 + b'\n["a/c", 1, "", ""]\n\xff\n')
    assert list(read_journal(tmp_path)) == ["a/c"]
    path.unlink()
    os.mkfifo(path)
    assert read_journal(tmp_path) == {}


def test_a_whole_manifest_is_read_as_before(backup: Path) -> None:
    assert manifest.load(backup).piece(BROKER) is not None
