"""Whose a publisher's journal is: its lock is held as long as its publisher lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def claim(path: Path) -> int | None:
    """Opens and locks a journal whose publisher has ended; None while it lives. Close the descriptor after.

    Raises `OSError`.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_current = os.fstat(file).st_ino == path.stat().st_ino and path.is_file()
    except OSError:
        os.close(file)
        return None
    if not is_current:
        os.close(file)
        return None
    return file


def is_held(path: Path) -> bool:
    """Whether the publisher of a journal lives."""
    try:
        file = claim(path)
    except OSError:
        return False
    if file is not None:
        os.close(file)
    return file is None
