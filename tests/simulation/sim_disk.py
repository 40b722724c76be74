"""Simulated disks: real files in memory, of which a crash leaves only what an fsync has covered.

While a world runs, `os.fsync` and `os.fdatasync` write nothing: they note how long the file is now. A crash
cuts a broker's segments back to that, or to somewhere in what was not covered, so that a batch is torn.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final
from weakref import WeakSet

from headrace.broker import offline
from headrace.log.files import OpenFile

SEGMENTS: Final = "*/*.log"


class Disks:
    """All disks of a world. Each fsync of a path that begins with a member of `failing` fails."""

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self.failing: set[str] = set()
        self._open: WeakSet[OpenFile] = WeakSet()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Takes the place of the real calls; nothing else may run in this process meanwhile."""
        real = os.fsync, os.fdatasync, os.ftruncate
        ftruncate = os.ftruncate

        def sync(fd: int) -> None:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            if any(path.startswith(folder) for folder in self.failing):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            stat = os.fstat(fd)
            if S_ISREG(stat.st_mode):
                self.durable[path] = stat.st_size

        def cut(fd: int, size: int) -> None:
            ftruncate(fd, size)
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            self.durable[path] = min(size, self.durable.get(path, 0))

        begin = OpenFile.__init__

        def opened(file: OpenFile, *arguments: Any) -> None:
            begin(file, *arguments)
            self._open.add(file)

        os.fsync, os.fdatasync, os.ftruncate = sync, sync, cut  # type: ignore[assignment]
        # It asks the kernel for leases, which depend on when Python frees a file.
        check = offline._check_that_nobody_writes
        offline._check_that_nobody_writes = lambda folder: None
        OpenFile.__init__ = opened  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            os.fsync, os.fdatasync, os.ftruncate = real
            offline._check_that_nobody_writes = check
            OpenFile.__init__ = begin  # type: ignore[method-assign]

    def crash(self, folder: Path, draw: random.Random) -> int:
        """Cuts what was not durable from the segments below a folder; returns how many bytes."""
        for file in list(self._open):
            if file.path.is_relative_to(folder):
                file.close()  # as the kernel does
        lost_bytes = 0
        for path in sorted(folder.glob(SEGMENTS)):
            size = path.stat().st_size
            durable = min(size, self.durable.get(str(path), 0))
            kept = durable if durable == size or draw.random() < 0.5 else draw.randrange(durable, size)
            lost_bytes += size - kept
            os.truncate(path, kept)
            self.durable[str(path)] = min(kept, durable)
        return lost_bytes
