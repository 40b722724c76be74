"""Files of a log: descriptors that stay open while a slice is being sent, atomic replacement, directory
fsync. Knows nothing about batches.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log.names import TEMPORARY_SUFFIX
from headrace.process.disk import FULL_ERRORS

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The disk is full but works: a later write may succeed.
DISK_FULL: Final = FULL_ERRORS | {errno.EFBIG}


class OpenFile:
    """One file descriptor, closed when the last reference is dropped.

    A fetch response that is being sent holds a reference: if retention deletes the segment before it is
    sent, no other file gets the descriptor's number.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, flags: int = os.O_RDWR) -> None:
        self.fd = -1
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self.fd

    def drop_page_cache(self, position_bytes: int) -> None:
        """Drops cached pages from `position_bytes` on, so that the next reads see what the disk holds.

        After a failed fsync the kernel may cache pages as clean that were never written. Raises `OSError`.
        """
        os.fdatasync(self.fd)
        start = position_bytes - position_bytes % PAGE_BYTES
        os.posix_fadvise(self.fd, start, 0, os.POSIX_FADV_DONTNEED)

    def forget_pages(self) -> None:
        """Lets the kernel use the memory of this file's whole pages again. Those that are not on the disk yet
        stay, and so does the last one, to which more will be written.
        """
        size_bytes = os.fstat(self.fd).st_size
        whole_bytes = size_bytes - size_bytes % PAGE_BYTES
        if whole_bytes:  # 0 would mean the whole file
            os.posix_fadvise(self.fd, 0, whole_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


FileReference = weakref.ref[OpenFile]


class FileSlice(NamedTuple):
    """`length_bytes` of `file` from `position_bytes` on; for sendfile."""

    file: OpenFile
    position_bytes: int
    length_bytes: int

    @property
    def fileno(self) -> int:
        return self.file.fd

    def read(self) -> bytes:
        """Returns the bytes; fewer only if the file was cut concurrently."""
        parts = []
        at, left = self.position_bytes, self.length_bytes
        while left:
            part = os.pread(self.file.fd, left, at)
            if not part:
                break
            parts.append(part)
            at += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def cut_back(fd: int, size_bytes: int) -> bool:
    """Truncates a file to its size before a write that failed; returns whether that succeeded."""
    try:
        os.ftruncate(fd, size_bytes)
    except OSError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """Makes creations, renames and removals in the directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, content: bytes, *, fsync: Callable[[int], None] = os.fsync) -> None:
    """Replaces the file at `path`; a crash leaves the old file or the new one, never a mixture."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while len(view):
            view = view[os.write(fd, view) :]
        fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)
