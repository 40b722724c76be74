"""Files and folders of this host: how much a folder holds, and files that a crash leaves whole.

Owns the walk and the order of flushes. Callers decide what is written, and where.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headrace.agent.errors import AgentStateError
from headrace.agent.reserve import write_with_reserve

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int, int]

NEW: Final = ".new"

# Units may share files, such as those of Airflow's home, and are put at the same time.
_WRITING: Final = threading.Lock()


def folder_size_bytes(folder: Path) -> int:
    """The sizes of all files below a folder, summed up; 0 for a folder that does not exist.

    A snapshot: files may be created and deleted concurrently. Raises `OSError` for what cannot be read, as on
    a dead disk: that is not empty.
    """
    total = 0
    for parent, _, names in os.walk(folder, onerror=_raise_unless_gone):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def write_files(files: Mapping[Path, str], kept_before: Mapping[Path, Path] = MappingProxyType({})) -> None:
    """Writes files (path → text), and the folders that they need. They may hold passwords: only this user can
    read them. Brings the folders of `kept_before` (`UnitProcess`) that are not there yet.

    A file that holds its text already is not written: that needs no room on a full disk. Raises
    `AgentStateError`, and as `write_durably` does.
    """
    for folder, before in kept_before.items():
        _bring(folder, before)
    for path, text in files.items():
        if holds(path, text):
            path.chmod(0o600)
        else:
            write_durably(path, text, is_durable=False)


def _bring(folder: Path, before: Path) -> None:
    """Moves a folder of data to its place. Raises `AgentStateError`: without it the unit would begin anew."""
    if folder.exists() or not before.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before.rename(folder)
    except OSError as error:
        raise AgentStateError(
            f"{before} holds data of a unit, written by an earlier version, and cannot be moved to {folder}: "
            f"{error.strerror}; move it there"
        ) from error
    logger.warning("%s, where an earlier version kept it, is %s now", before, folder)


def holds(path: Path, text: str) -> bool:
    """Whether the file has exactly this text."""
    try:
        return path.read_text() == text
    except (OSError, ValueError):
        return False


def stamp_of(path: Path) -> Stamp | None:
    """Returns what changes when a file is replaced or written; None while it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def write_durably(path: Path, text: str, *, is_durable: bool = True) -> None:
    """Replaces a file, so that a crash leaves the old text or the new one. A crash of the machine may leave
    an empty file if not `is_durable`, which is for files that are made again.

    Only this user can read it: it may hold a password. Raises `DiskFullError` if there is no room, even in
    the agent's reserve, and `OSError`.
    """
    with _WRITING:
        write_with_reserve(path, lambda: _replace(path, text, is_durable=is_durable))


def _replace(path: Path, text: str, *, is_durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(path.name + NEW)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        # A piece of it would take the room that the next attempt needs.
        new.unlink(missing_ok=True)
        raise
    if is_durable:
        _flush(path.parent)


def remove_durably(path: Path) -> None:
    """Removes a file, which need not exist, and fsyncs its folder."""
    path.unlink(missing_ok=True)
    _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
