"""Folders for sockets, which nobody but this user may write to.

Owns how one is made and checked: another user who can write there could put a socket in a server's place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_own_folder(folder: Path) -> bool:
    """Makes the folder unless it is there; returns whether it is this user's, and others cannot write it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
