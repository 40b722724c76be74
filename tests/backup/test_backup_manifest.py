"""A manifest is not believed before it was checked: paths leave no folder, sizes and digests are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.backup import manifest
from headrace.backup.errors import BackupError, DamagedBackupError, HalfBackupError
from headrace.backup.manifest import FileEntry, Manifest, Piece
from headrace.backup.pace import Pace
from headrace.backup.restoring import restore
from headrace.backup.verifying import check_all, verify

CONTENT = b"what a broker kept"
PATH = "east-broker-1/page-view-0/partition.json"


def entry(path: str, content: bytes = CONTENT) -> FileEntry:
    return FileEntry(path, len(content), hashlib.sha256(content).hexdigest(), "")


def made(*files: FileEntry) -> Manifest:
    piece = Piece("east-broker-1", "broker", "east", "data/east/broker-1", {"partitions": {}})
    return Manifest(1, 2, "/srv/home", "host", {}, {}, (piece,), files)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A whole backup of one file."""
    folder = tmp_path / "backup"
    (folder / PATH).parent.mkdir(parents=True)
    (folder / PATH).write_bytes(CONTENT)
    manifest.save(folder, made(entry(PATH)))
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest as an enemy would: the digest fits again."""
    values = json.loads((folder / manifest.MANIFEST).read_bytes())
    change(values)
    content = json.dumps(values).encode()
    (folder / manifest.MANIFEST).write_bytes(content)
    (folder / manifest.DIGEST).write_text(f"{hashlib.sha256(content).hexdigest()}  {manifest.MANIFEST}\n")


def test_a_whole_backup_is_read_as_it_was_written(backup: Path) -> None:
    assert manifest.load(backup) == made(entry(PATH))
    assert not verify(backup, Pace()).damaged


def test_without_a_manifest_it_is_half_a_backup(backup: Path) -> None:
    (backup / manifest.MANIFEST).unlink()
    with pytest.raises(HalfBackupError, match="half a backup"):
        manifest.load(backup)


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.DIGEST])
def test_a_flipped_bit_of_the_manifest_is_found(backup: Path, name: str) -> None:
    content = bytearray((backup / name).read_bytes())
    content[len(content) // 4] ^= 1
    (backup / name).write_bytes(content)
    with pytest.raises(DamagedBackupError):
        manifest.load(backup)


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "east-broker-1/../../outside",
        "/etc/passwd",
        "east-broker-1//x",
        "east-broker-1/./x",
        "east-broker-1/x\ny",
        "east-broker-1\\x/y",
        "nobody/x",
        "east-broker-1",
        "",
        "east-broker-1/" + "x" * 300,
        "east-broker-1/" + "x/" * 600 + "x",
        7,
        None,
    ],
)
def test_a_path_that_leaves_the_backup_is_refused(backup: Path, path: object) -> None:
    rewrite(backup, lambda values: values["files"][0].__setitem__(0, path))
    with pytest.raises(DamagedBackupError):
        manifest.load(backup)


@pytest.mark.parametrize("data", ["../home", "/srv", "data/../../x", "", "a\x00b"])
def test_a_piece_that_leaves_the_home_is_refused(backup: Path, data: str) -> None:
    rewrite(backup, lambda values: values["pieces"][0].__setitem__("data", data))
    with pytest.raises(DamagedBackupError):
        manifest.load(backup)


def test_two_files_in_one_place_are_refused(backup: Path) -> None:
    rewrite(backup, lambda values: values["files"].append(values["files"][0]))
    with pytest.raises(DamagedBackupError, match="there twice"):
        manifest.load(backup)
    rewrite(backup, lambda values: values["files"][1].__setitem__(0, f"{PATH}/below"))
    with pytest.raises(DamagedBackupError, match="a file and a folder"):
        manifest.load(backup)


@pytest.mark.parametrize("size", [-1, True, "7", None, 1e30])
def test_a_size_that_is_none_is_refused(backup: Path, size: object) -> None:
    rewrite(backup, lambda values: values["files"][0].__setitem__(1, size))
    with pytest.raises(DamagedBackupError):
        manifest.load(backup)


def test_sizes_and_digests_that_lie_are_found(backup: Path, tmp_path: Path) -> None:
    rewrite(backup, lambda values: values["files"][0].__setitem__(1, len(CONTENT) + 1))
    assert verify(backup, Pace()).damaged == [(PATH, "it has 18 bytes instead of 19")]
    rewrite(backup, lambda values: values["files"][0].__setitem__(slice(1, 3), [len(CONTENT), "0" * 64]))
    assert verify(backup, Pace()).damaged == [(PATH, "its SHA-256 is another one")]
    with pytest.raises(DamagedBackupError, match="Nothing was restored"):
        restore(backup, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_symbolic_link_is_not_followed(backup: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    if link == "file":
        outside.write_bytes(CONTENT)
        (backup / PATH).unlink()
        (backup / PATH).symlink_to(outside)
    else:
        (backup / PATH).parent.rename(outside)
        (backup / PATH).parent.symlink_to(outside)
    with pytest.raises(DamagedBackupError, match="1 files are damaged"):
        check_all(backup, Pace())


@pytest.mark.parametrize(
    "values", ["[]", "7", "{}", '{"format": 2}', '{"format": 1, "pieces": 1}', "[" * 5000]
)
def test_a_document_that_is_no_manifest_is_refused(backup: Path, values: str) -> None:
    (backup / manifest.MANIFEST).write_text(values)
    digest = hashlib.sha256(values.encode()).hexdigest()
    (backup / manifest.DIGEST).write_text(f"{digest}  {manifest.MANIFEST}\n")
    with pytest.raises(BackupError):
        manifest.load(backup)


def test_files_that_nobody_named_are_told(backup: Path) -> None:
    (backup / "notes.txt").write_text("mine")
    assert verify(backup, Pace()).extra == ["notes.txt"]
