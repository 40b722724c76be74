"""Writes that pass the page cache, for bytes that nobody is about to read: those of a follower.

A write into the page cache costs a follower half of its CPU: pages are found, filled, written back and given
away again. The kernel takes whole blocks only, and only from memory that is aligned as they are (open(2),
O_DIRECT). So what lies before the first whole block and behind the last one goes through the page cache, and
no block is written by both ways: what was durable before is not written again. Content that lies otherwise in
memory is copied first; a follower's seldom does (`Fetcher`).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.wire.primitives import Buffer

BLOCK_BYTES: Final = 4096
"""At least as large as any disk's logical block, and a page."""
PIECE_BYTES: Final = 1024 * 1024
"""Of one write of what must be copied; each thread that writes keeps as much memory."""
NOT_SUPPORTED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT})
"""The file system has no such writes, or /proc is not mounted."""

_kept = threading.local()


def write(fd: int, content: Buffer, at: int) -> None:
    """Writes all of `content` at position `at` of a file that ends there. Raises `OSError`: how much was
    written is unknown then.
    """
    view = memoryview(content)
    end = at + len(view)
    first, last = -(-at // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if first < last:
        _write_cached(fd, view[: first - at], at)
        done = _write_blocks(fd, view[first - at : last - at], first)
        view, at = view[first - at + done :], first + done
    _write_cached(fd, view, at)


def _write_cached(fd: int, view: memoryview, at: int) -> None:
    while len(view):
        count = os.pwrite(fd, view, at)
        if count == 0:
            raise OSError(errno.EIO, "the disk accepts no more bytes")
        view, at = view[count:], at + count


def _write_blocks(fd: int, view: memoryview, at: int) -> int:
    """Writes whole blocks; returns how many bytes of them. The others can be written through the page cache
    alone, or not at all.
    """
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NOT_SUPPORTED:
            return 0
        raise
    try:
        with _if_supported():
            return _whole_blocks(os.pwrite(direct, view, at))
        with _if_supported():
            return _write_copies(direct, view, at)
        return 0
    finally:
        os.close(direct)


def _write_copies(direct: int, view: memoryview, at: int) -> int:
    aligned, done = _aligned(), 0
    while done < len(view):
        piece = view[done : done + PIECE_BYTES]
        aligned[: len(piece)] = piece
        count = os.pwrite(direct, aligned[: len(piece)], at + done)
        done += _whole_blocks(count)
        if count < len(piece):
            break
    return done


def _whole_blocks(size_bytes: int) -> int:
    return size_bytes - size_bytes % BLOCK_BYTES


@contextmanager
def _if_supported() -> Iterator[None]:
    """Ends the block if the kernel takes nothing written in this way."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise


def _aligned() -> memoryview:
    """Returns this thread's own memory, which begins at a page."""
    kept: memoryview | None = getattr(_kept, "memory", None)
    if kept is None or len(kept) != PIECE_BYTES:
        kept = _kept.memory = memoryview(mmap.mmap(-1, PIECE_BYTES))
    return kept
