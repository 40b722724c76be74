"""How much room a disk has, and errors of a full one that say so.

Owns which errors mean "full", and their wording. Writes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
WARN_SHARE: Final = 0.85
"""From this share of used space on, a disk is worth a warning."""


class DiskSpace(NamedTuple):
    """The room of the file system that holds `path`, as `df` shows it: `free_bytes` for ordinary users."""

    path: Path
    free_bytes: int
    size_bytes: int

    @property
    def used_share(self) -> float:
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def is_nearly_full(self) -> bool:
        return self.used_share >= WARN_SHARE

    def __str__(self) -> str:
        return (
            f"{self.free_bytes:,} of {self.size_bytes:,} bytes are free on the disk of {self.path} "
            f"({self.used_share:.0%} used)"
        )


def space_of(path: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> DiskSpace:
    """The room on the disk of `path`, or of its nearest parent that exists. Raises `OSError`."""
    at = path.absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    found = statvfs(at)
    # What only root may use is neither free nor part of the size: `df` counts so, too.
    used = found.f_blocks - found.f_bfree
    return DiskSpace(path, found.f_bavail * found.f_frsize, (used + found.f_bavail) * found.f_frsize)


def file_system_of(path: Path) -> str:
    """Returns a name of the file system that holds `path`: all processes of one kernel, those in containers
    included, get the same one, and others another one. Raises `OSError`."""
    return hashlib.sha256(f"{kernel()}/{path.stat().st_dev}".encode()).hexdigest()[:16]


@cache
def kernel() -> str:
    """Returns a name of the running kernel, which a restart of the host changes, and one of a container does
    not.
    """
    try:
        return BOOT_ID_PATH.read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def is_full(error: BaseException) -> bool:
    """Whether this error says that a disk, or a quota on it, is full."""
    return isinstance(error, OSError) and error.errno in FULL_ERRORS


def explained(error: OSError, path: Path | None = None) -> str:
    """The error with its path; if a disk is full, also how much room there is and the way out.

    `path` is what was written, for an error that does not name it.
    """
    where = path if path is not None else Path(os.fsdecode(error.filename)) if error.filename else None
    problem = error.strerror or str(error)
    if where is None:
        return problem
    if not is_full(error):
        return f"{where}: {problem}"
    try:
        room = str(space_of(where))
    except OSError as other:
        room = f"its free space is not known ({other.strerror})"
    return f"{where}: {problem}: {room}. Free space there, then retry"
