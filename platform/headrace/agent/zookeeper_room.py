"""Room that a disk keeps for ZooKeeper's own files: without it, a full disk ends ZooKeeper, and nobody can
delete a topic to free some.

Two kinds: blocks behind the end of the transaction log that is being written, so that it grows on a full
disk, too; and a file `reserve` beside the data, which is removed when ZooKeeper has to start on a full disk,
for its snapshot and its next log. Both come back once there is room. Changes no byte that ZooKeeper wrote.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from pathlib import Path
from typing import Final

from headrace.agent.reserve import StateReserve
from headrace.process.disk import explained, space_of

logger = logging.getLogger(__name__)

AHEAD_BYTES: Final = 4 << 20
"""Of a log behind its end: some ten thousand changes."""
RESERVE_BYTES: Final = 4 << 20
FULL_BYTES: Final = 1 << 20
"""A disk with less is full: ZooKeeper needs that much to start."""
SPARE_FACTOR: Final = 4
"""Room is taken ahead only where the disk has so many times of it: it must not be what fills the disk."""
_KEEP_SIZE: Final = 1
_BLOCK_BYTES: Final = 512
_SLACK_BYTES: Final = 64 << 10
_LOG: Final = re.compile(r"log\.([0-9a-f]{1,16})")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]


def keep_room(directory: Path, *, is_running: bool) -> None:
    """Keeps room for the ZooKeeper whose unit has this folder. Called again and again; raises nothing."""
    reserve = StateReserve(directory / "reserve", RESERVE_BYTES)
    try:
        if not is_running and space_of(directory).free_bytes < FULL_BYTES and reserve.release():
            logger.warning(
                "ZooKeeper does not run, and the disk of %s is full: its reserve is given to it", directory
            )
            return
        logs = _logs(directory / "data" / "version-2")
        for path in logs[-1:]:
            _take_ahead(path)
        for path in logs[:-1]:
            _give_back(path)
        reserve.fill()
    except OSError as error:
        logger.debug("no room is kept for ZooKeeper: %s", explained(error, directory))


def _logs(folder: Path) -> list[Path]:
    """The transaction logs, the one that is written last."""
    try:
        found = [
            (int(match[1], 16), path) for path in folder.iterdir() if (match := _LOG.fullmatch(path.name))
        ]
    except FileNotFoundError:
        return []
    return [path for _, path in sorted(found) if path.is_file() and not path.is_symlink()]


def _take_ahead(path: Path) -> None:
    """Gives the log blocks up to `AHEAD_BYTES` behind its end, which stays where it is.

    By the system call: the C library's own `posix_fallocate` writes bytes where a disk cannot do it.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        wanted_bytes = found.st_size + AHEAD_BYTES
        has_bytes = found.st_blocks * _BLOCK_BYTES
        if has_bytes >= wanted_bytes - AHEAD_BYTES // 2:
            return
        if space_of(path).free_bytes < SPARE_FACTOR * (wanted_bytes - has_bytes):
            return
        if _LIBC.fallocate(fd, _KEEP_SIZE, 0, wanted_bytes):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(fd)


def _give_back(path: Path) -> None:
    """Frees what an older log has behind its end."""
    found = path.stat()
    if found.st_blocks * _BLOCK_BYTES > found.st_size + _SLACK_BYTES:
        os.truncate(path, found.st_size)
