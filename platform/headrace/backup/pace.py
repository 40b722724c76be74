"""How fast a backup copies, and whether there is room for it. Time is an argument."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.backup.errors import BackupError
from headrace.process.disk import space_of

CHUNK_BYTES: Final = 1 << 20
SPARE_BYTES: Final = 64 << 20
"""What stays free on the disk of a backup or of a restored home, besides the files."""


class Pace:
    """Bounds the bytes read in a second; None does not."""

    def __init__(
        self,
        bytes_per_second: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self.chunk_bytes = (
            CHUNK_BYTES if not bytes_per_second else max(4096, min(CHUNK_BYTES, bytes_per_second // 4))
        )

    def spend(self, count: int) -> None:
        """Waits until these bytes fit the rate. A pause before them is not made up for."""
        if not self._rate:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + count / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Raises `BackupError` if the disk of `folder` has no room for so many bytes; `OSError`."""
    space = space_of(folder)
    if space.free_bytes < needed_bytes + SPARE_BYTES:
        raise BackupError(
            f"{what} needs {needed_bytes:,} bytes and {SPARE_BYTES:,} to spare: {space}. "
            "Nothing was written; "
            "free space there, or use another disk"
        )
