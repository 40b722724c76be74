"""One segment file: the bytes `[base_address, end_address)` of a partition's log.

Owns the file's name, its descriptor and its known starts. Does not decide when to roll, flush or delete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.log import scan
from headrace.log.errors import LogOfflineError, LogStorageError
from headrace.log.files import DISK_FULL, OpenFile
from headrace.log.staging import StagedBatch
from headrace.log.starts import KnownStarts
from headrace.wire.primitives import Buffer

SUFFIX: Final = ".log"
NAME_DIGITS: Final = 20


def file_name(base_address: int) -> str:
    """Returns the segment's name: its first address in 20 digits, so that names sort like addresses."""
    return f"{base_address:0{NAME_DIGITS}d}{SUFFIX}"


def base_address_of(name: str) -> int | None:
    """Returns the base address in a segment's file name; `None` for any other file."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != NAME_DIGITS or not stem.isdecimal():
        return None
    return int(stem)


class Segment:
    """A new segment (with `create_at_ms`), or an existing one, whose batch starts are not indexed yet."""

    __slots__ = (
        "_file",
        "_noted_max_timestamp_ms",
        "base_address",
        "created_ms",
        "last_append_ms",
        "path",
        "size_bytes",
        "starts",
    )

    def __init__(self, directory: Path, base_address: int, *, create_at_ms: int | None = None) -> None:
        self.path = directory / file_name(base_address)
        self.base_address = base_address
        self.starts = KnownStarts(base_address)
        self._noted_max_timestamp_ms: int | None = None
        self._file: OpenFile | None
        if create_at_ms is None:
            stat = self.path.stat()
            self._file = None
            self.size_bytes = stat.st_size
            self.created_ms = self.last_append_ms = int(stat.st_mtime * 1000)
        else:
            self._file = OpenFile(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self.size_bytes = 0
            self.created_ms = self.last_append_ms = create_at_ms

    @property
    def end_address(self) -> int:
        return self.base_address + self.size_bytes

    def written_end(self) -> int:
        """Returns the end of what was written. Any thread."""
        return self.base_address + self.size_bytes

    @property
    def file(self) -> OpenFile:
        """The open file; opened on first use."""
        if self._file is None:
            self._file = OpenFile(self.path)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def release(self) -> None:
        """Drops the descriptor; it is closed once no slice refers to it."""
        self._file = None

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Appends all or nothing. Raises `LogStorageError` if the file is as before, `LogOfflineError` if its
        content is unknown.
        """
        fd = self.file.fd
        at = self.size_bytes
        try:
            written = os.pwritev(fd, buffers, at)
            if written != size_bytes:
                rest = memoryview(b"".join(buffers))[written:]
                while len(rest):
                    count = os.pwrite(fd, rest, at + written)
                    written += count
                    rest = rest[count:]
        except OSError as error:
            problem = f"{self.path}: writing {size_bytes} bytes at {at} failed: {error.strerror}"
            if self._cut_back(fd) and error.errno in DISK_FULL:
                raise LogStorageError(f"{problem}; free disk space, then retry") from error
            raise LogOfflineError(problem) from error
        self.size_bytes = at + size_bytes

    def _cut_back(self, fd: int) -> bool:
        """Truncates the file to its size before the write; returns whether that succeeded."""
        try:
            os.ftruncate(fd, self.size_bytes)
        except OSError:
            return False
        return True

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self.file.fd, size_bytes)
        self.size_bytes = size_bytes
        self.starts = KnownStarts(self.base_address)
        self._noted_max_timestamp_ms = None

    def delete(self) -> None:
        """Deletes the file; slices in use keep working."""
        self.release()
        self.path.unlink()

    def note(self, batches: Sequence[StagedBatch]) -> None:
        """Records the starts of batches just written, if all starts before them are known."""
        starts = self.starts
        if starts.covered_address == batches[0].address:
            for address, size_bytes, max_timestamp_ms in batches:
                starts.note(address, size_bytes, max_timestamp_ms)

    # --- lookup ---

    def walk(self, address: int, end_address: int | None = None) -> Iterator[scan.Step]:
        """Yields batches from the greatest known start at or before `address` on; records new starts."""
        starts = self.starts
        end = self.end_address if end_address is None else end_address
        for step in scan.steps(self.file, self.base_address, starts.before(address), end):
            if step.address == starts.covered_address:
                starts.note(step.address, step.size_bytes, step.max_timestamp_ms)
            yield step

    def cover(self, address: int) -> None:
        """Scans until all starts up to `address` are known."""
        if self.starts.covered_address >= address:
            return
        for step in self.walk(address):
            if step.address + step.size_bytes >= address:
                return

    @property
    def max_timestamp_if_known_ms(self) -> int | None:
        """The greatest timestamp in the segment, -1 for none; `None` if unknown (a search must scan it)."""
        if self.starts.covered_address >= self.end_address:
            return self.starts.max_timestamp_ms
        return self._noted_max_timestamp_ms

    def note_max_timestamp(self, timestamp_ms: int) -> None:
        """Sets the greatest timestamp of a sealed segment, from a checkpoint."""
        self._noted_max_timestamp_ms = timestamp_ms
