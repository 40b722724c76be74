"""Bytes of segment files, for a log that is mended: copied without what is damaged, and written in place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 1 << 20


def copy_segment(path: Path, copy: Path, base: int, end: int, holes: Iterable[tuple[int, int]]) -> None:
    """Copies the segment of the addresses [base, end) without those in `holes`, which are in order: the disk
    may no longer be able to read what is damaged. Raises `OSError`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = base
        for start, stop in [*holes, (end, end)]:
            start = min(start, end)
            patch(copy, at - base, _pieces(fd, at - base, start - base))
            at = max(at, min(stop, end))
    finally:
        os.close(fd)


def _pieces(fd: int, at: int, end: int) -> Iterator[bytes]:
    while at < end and (piece := os.pread(fd, min(PIECE_BYTES, end - at), at)):
        at += len(piece)
        yield piece


def patch(path: Path, at: int, pieces: Iterable[bytes]) -> None:
    """Writes the pieces to a file, from position `at` on. Raises `OSError`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while len(view):
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
    finally:
        os.close(fd)
