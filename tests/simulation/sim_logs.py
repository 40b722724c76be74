"""What the files of a replica hold."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Content(NamedTuple):
    """A log's bytes from `start` on."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def between(self, start: int, end: int) -> bytes:
        return self.data[max(0, start - self.start) : max(0, end - self.start)]


def content_of(folder: Path) -> Content:
    """Returns what a partition's segments hold."""
    paths = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
    start = int(paths[0].stem) if paths else 0
    return Content(start, b"".join(path.read_bytes() for path in paths))
