"""Files and folders of this host: how much a folder holds, and files that a crash leaves whole.

Owns the walk and the order of flushes. Pure hands: what is written, and where, is the callers'.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NEW: Final = ".new"


def folder_size_bytes(folder: Path) -> int:
    """What the files below hold, in bytes as they would be read; 0 for a folder that is not there.

    Files come and go meanwhile: it is a moment's view.
    """
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def write_durably(path: Path, text: str, *, is_durable: bool = True) -> None:
    """The old text or the new one, whatever happens; durable once it returns, if that is asked for.

    Only this user reads it: it may hold a password.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(path.name + NEW)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    new.replace(path)
    if is_durable:
        _flush(path.parent)


def remove_durably(path: Path) -> None:
    """Gone once it returns; it need not be there."""
    path.unlink(missing_ok=True)
    _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
