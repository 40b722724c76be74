"""Checks a backup: that its files are those that its manifest names, each with its size and SHA-256."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.backup import manifest
from headrace.backup.errors import DamagedBackupError
from headrace.backup.manifest import FileEntry, Manifest
from headrace.backup.pace import Pace

KNOWN = frozenset({manifest.MANIFEST, manifest.DIGEST})
ANOTHER_DIGEST: Final = "its SHA-256 is another one"


class Verified(NamedTuple):
    """What a check found. `damaged`: path and what is wrong with it; `extra`: files that no manifest
    names.
    """

    manifest: Manifest
    damaged: list[tuple[str, str]]
    extra: list[str]


def verify(
    folder: Path,
    pace: Pace,
    files: Iterable[FileEntry] | None = None,
    observe: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Reads a backup, or these files of it. Calls `observe` with the bytes read so far.

    Raises `HalfBackupError`, `DamagedBackupError` for a manifest that cannot be used, `OSError`.
    """
    found = manifest.load(folder)
    damaged: list[tuple[str, str]] = []
    read_bytes = 0
    for entry in found.files if files is None else files:
        problem = problem_of(folder, entry, pace)
        if problem is not None:
            damaged.append((entry.path, problem))
        read_bytes += entry.size_bytes
        observe(read_bytes)
    extra = [] if files is not None else sorted(_names(folder) - found.by_path.keys() - KNOWN)
    return Verified(found, damaged, extra)


def check_all(folder: Path, pace: Pace, files: Iterable[FileEntry] | None = None) -> Manifest:
    """Raises `DamagedBackupError` that names the first files that are damaged."""
    found = verify(folder, pace, files)
    if found.damaged:
        raise damaged_error(folder, found.damaged)
    return found.manifest


def damaged_error(folder: Path, damaged: Sequence[tuple[str, str]]) -> DamagedBackupError:
    named = "; ".join(f"{path!r}: {problem}" for path, problem in damaged[:5])
    return DamagedBackupError(
        f"{folder}: {len(damaged)} files are damaged: {named}. Nothing was restored; take an older backup"
    )


def problem_of(folder: Path, entry: FileEntry, pace: Pace) -> str | None:
    """Returns what is wrong with a file, one line; None if nothing is."""
    try:
        fd = open_inside(folder, entry.path)
    except FileNotFoundError:
        return "it is missing"
    except (OSError, DamagedBackupError) as error:
        return str(error)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes != entry.size_bytes:
            return f"it has {size_bytes} bytes instead of {entry.size_bytes}"
        sums = hashlib.sha256()
        while piece := os.read(fd, pace.chunk_bytes):
            pace.spend(len(piece))
            sums.update(piece)
        return None if sums.hexdigest() == entry.sha256 else ANOTHER_DIGEST
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    finally:
        os.close(fd)


def open_inside(folder: Path, path: str) -> int:
    """Opens a regular file of a backup, through no symbolic link. Raises `DamagedBackupError`, `OSError`."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, name = path.split("/")
    try:
        for part in folders:
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            except NotADirectoryError:
                raise DamagedBackupError(f"{part} is no folder of its own") from None
            os.close(at)
            at = inner
        if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise DamagedBackupError("it is no regular file")
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _names(folder: Path) -> set[str]:
    return {
        str((Path(parent) / name).relative_to(folder))
        for parent, _, names in os.walk(folder)
        for name in names
    }
