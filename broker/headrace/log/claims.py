"""Who works on a partition's files: its broker while the log is open, or an administrator's command.

A claim is a lock on one byte of a file in the data directory; which byte follows from the partition's name.
One descriptor serves all partitions, and the system releases the claims of a process that ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import threading
from pathlib import Path
from typing import Final

CLAIMS_FILE: Final = ".claims"
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def _byte_of(partition: str) -> int:
    return int.from_bytes(hashlib.sha256(partition.encode()).digest()[:7], "big")


def open_private(path: Path) -> int:
    """Opens a file that holds locks and nothing else; returns its descriptor. Raises `OSError`.

    No other user may open it, not even to read: a reader may lock it, too, and keep its owner out.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(fd).st_mode & 0o077 and os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, 0o600)
    return fd


class Claims:
    """The claims of one process in a data directory. Any thread may call. Raises `OSError`."""

    def __init__(self, directory: Path) -> None:
        self._fd = open_private(directory / CLAIMS_FILE)
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def take(self, partition: str) -> bool:
        """Claims a partition, by its folder's name; returns False if somebody else has it. As often as it was
        taken, it has to be released.
        """
        with self._lock:
            held = self._held.get(partition, 0)
            if not held:
                try:
                    self._set(fcntl.F_WRLCK, partition)
                except OSError as error:
                    if error.errno in (errno.EAGAIN, errno.EACCES):
                        return False
                    raise
            self._held[partition] = held + 1
            return True

    def release(self, partition: str) -> None:
        """Does nothing if the partition is not held."""
        with self._lock:
            held = self._held.pop(partition, 0)
            if held > 1:
                self._held[partition] = held - 1
            elif held:
                self._set(fcntl.F_UNLCK, partition)

    def _set(self, kind: int, partition: str) -> None:
        # A lock of the open file, not of the process: two threads or tests in one process exclude each other.
        lock = _FLOCK.pack(kind, os.SEEK_SET, _byte_of(partition), 1, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)

    def close(self) -> None:
        """Releases all of them."""
        os.close(self._fd)
