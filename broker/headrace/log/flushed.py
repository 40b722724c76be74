"""How far a log was flushed: a small file beside it, written about every second while the log grows.

The checkpoint says what was durable when it was saved. What was flushed since, and rots, looks like a write
that a crash has torn, and the next start would cut it off. Below the noted address it does not.

The note itself is not flushed. A process that is killed leaves it; after a power cut it may say less, and
never more, since it is written once the bytes below it are durable. Before a log is cut its checkpoint gets
another *lineage*, and a note of an earlier one is not believed: so it does not matter when a thread gets to
write it, nor beside whose log.

Format: lineage, address and the CRC-32C of both in one line of hex digits, whose length never changes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.log.names import FLUSHED

NO_LINEAGE: Final = 0  # of a checkpoint that an older version wrote: no note belongs to it
LINEAGE_BITS: Final = 53  # JSON's readers keep so many


def new_lineage() -> int:
    return 1 + secrets.randbelow((1 << LINEAGE_BITS) - 1)


def encode(lineage: int, address: int) -> bytes:
    body = b"%016x %016x" % (lineage, address)
    return body + b" %08x\n" % crc32c(body)


SIZE_BYTES: Final = len(encode(NO_LINEAGE, 0))


def load(directory: Path, lineage: int) -> int:
    """Returns the address below which a log of this lineage was flushed; 0 if no note says it."""
    try:
        with (directory / FLUSHED).open("rb") as file:
            content = file.read(SIZE_BYTES)
        noted, address = (int(field, 16) for field in content.split()[:2])
    except (OSError, ValueError):
        return 0
    is_whole = content == encode(noted, address)
    return address if is_whole and noted == lineage != NO_LINEAGE else 0


def write(directory: Path, lineage: int, address: int) -> None:
    """Any thread. Raises `OSError`."""
    fd = os.open(directory / FLUSHED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, encode(lineage, address), 0)
    finally:
        os.close(fd)


class FlushedNotes:
    """The notes of one open log. `lineage` goes into its checkpoints, too."""

    __slots__ = ("_directory", "_noted", "lineage")

    def __init__(self, directory: Path, lineage: int) -> None:
        self._directory = directory
        self.lineage = lineage or new_lineage()
        self._noted = 0

    def renew(self) -> int:
        """Begins another lineage, before the log is cut; returns it."""
        self.lineage, self._noted = new_lineage(), 0
        return self.lineage

    def due(self, flushed_address: int) -> Callable[[], None] | None:
        """Returns what writes the next note, on any thread; None if the last one says so already."""
        if flushed_address <= self._noted:
            return None
        self._noted = flushed_address
        directory, lineage = self._directory, self.lineage
        return lambda: write(directory, lineage, flushed_address)
