"""Simulated disks: real files in memory, of which a crash leaves only what an fsync has covered.

While a world runs, `os.fsync` and `os.fdatasync` write nothing: they note how long the file is now. A crash
cuts a broker's segments back to that, or to somewhere in what was not covered, so that a batch is torn. A
full disk takes no byte more, or only some of them.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakValueDictionary

from headrace.broker.replicas import offline
from headrace.log.files import OpenFile
from headrace.wire.batch import hop
from headrace.wire.primitives import Buffer

SEGMENTS: Final = "*/*.log"
EPOCH_FIELD: Final = range(12, 16)
"""Of a batch: its leader's epoch. No checksum covers it, so nobody can tell that it has rotted."""
BLOCKS: Final = 1 << 30
CALLS: Final = ("fsync", "fdatasync", "ftruncate", "pwritev", "pwrite", "write")


class Disks:
    """All disks of a world. Members are the beginnings of paths: each fsync of a `failing` one fails, a
    `full` one takes nothing, a `nearly_full` one has little room.
    """

    def __init__(self, draw: random.Random) -> None:
        self.durable: dict[str, int] = {}
        self.failing: set[str] = set()
        self.full: set[str] = set()
        self.wall_ms: dict[str, Callable[[], int]] = {}
        """By folder, the clock of its host, which says when a file was changed; for others nobody asks."""
        self.nearly_full: set[str] = set()
        self._draw = draw
        self._by_fd: WeakValueDictionary[int, OpenFile] = WeakValueDictionary()
        self._real = SimpleNamespace(**{name: getattr(os, name) for name in CALLS})

    # --- what stands in the place of the real calls ---

    def _path(self, fd: int) -> str:
        file = self._by_fd.get(fd)
        if file is not None and file.fd == fd:
            return str(file.path)
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  a `Path` would take longer than the rest

    def fsync(self, fd: int) -> None:
        if not self.failing and fd not in self._by_fd:
            return  # of other files than segments a crash leaves everything
        path = self._path(fd)
        for folder in self.failing:
            if path.startswith(folder):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        stat = os.fstat(fd)
        if S_ISREG(stat.st_mode):
            self.durable[path] = stat.st_size

    fdatasync = fsync

    def _stamp(self, path: str) -> None:
        for folder, clock_ms in self.wall_ms.items():
            if path.startswith(folder):
                at_ns = clock_ms() * 1_000_000
                os.utime(path, ns=(at_ns, at_ns))

    def ftruncate(self, fd: int, size: int) -> None:
        self._real.ftruncate(fd, size)
        path = self._path(fd)
        self._stamp(path)
        self.durable[path] = min(size, self.durable.get(path, 0))

    def _is_full(self, fd: int) -> bool:
        if not self.full:
            return False
        path = self._path(fd)
        return any(path.startswith(folder) for folder in self.full)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._is_full(fd):
            written = int(self._real.pwritev(fd, buffers, offset))
            if self.wall_ms:
                self._stamp(self._path(fd))
            return written
        data = b"".join(buffers)
        return self._some(data, lambda part: self._real.pwrite(fd, part, offset))

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        return self.pwritev(fd, (data,), offset)

    def write(self, fd: int, data: Buffer) -> int:
        if not self._is_full(fd):
            return int(self._real.write(fd, data))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _some(self, data: bytes, write: Callable[[bytes], int]) -> int:
        """The last bytes of room take a part, now and then."""
        if len(data) > 1 and self._draw.random() < 0.5:
            return write(data[: self._draw.randrange(1, len(data))])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def statvfs(self, path: Path) -> Any:
        free = 1 if any(str(path).startswith(folder) for folder in self.full | self.nearly_full) else BLOCKS
        return SimpleNamespace(f_blocks=2 * BLOCKS, f_bfree=free, f_bavail=free, f_frsize=4096)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Takes the place of the real calls; nothing else may run in this process meanwhile."""
        begin = OpenFile.__init__

        def opened(file: OpenFile, *arguments: Any) -> None:
            is_new = bool(self.wall_ms) and not Path(arguments[0]).exists()
            begin(file, *arguments)
            if is_new:
                self._stamp(str(file.path))
            self._by_fd[file.fd] = file

        for name in CALLS:
            setattr(os, name, getattr(self, name))
        # It asks the kernel for leases, which depend on when Python frees a file.
        check = offline._check_that_nobody_writes
        offline._check_that_nobody_writes = lambda folder: None
        OpenFile.__init__ = opened  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            for name in CALLS:
                setattr(os, name, getattr(self._real, name))
            offline._check_that_nobody_writes = check
            OpenFile.__init__ = begin  # type: ignore[method-assign]

    # --- what happens to them ---

    def crash(self, folder: Path) -> int:
        """Cuts what was not durable from the segments below a folder; returns how many bytes."""
        for file in list(self._by_fd.values()):
            if file.path.is_relative_to(folder):
                file.close()  # as the kernel does
        lost_bytes = 0
        for path in sorted(folder.glob(SEGMENTS)):
            size = path.stat().st_size
            durable = min(size, self.durable.get(str(path), 0))
            is_kept = durable == size or self._draw.random() < 0.5
            kept = durable if is_kept else self._draw.randrange(durable, size)
            lost_bytes += size - kept
            _cut(path, kept)
            self.durable[str(path)] = min(kept, durable)
        return lost_bytes

    def rot(self, folder: Path, others: Sequence[Path]) -> str | None:
        """Flips a bit of a batch that is durable there and in all others; returns where, None if there is
        none. Of the only copy of a batch that nobody acknowledged no replica could be mended.
        """
        held = {path: self._shared_bytes(path, folder, others) for path in sorted(folder.glob(SEGMENTS))}
        paths = [path for path in held if held[path]]
        if not paths:
            return None
        path = self._draw.choice(paths)
        data = bytearray(path.read_bytes())
        batches = list(hop(memoryview(data)[: held[path]]))
        if not batches:
            return None
        start, header = self._draw.choice(batches)
        within = self._draw.choice([at for at in range(header.size_bytes) if at not in EPOCH_FIELD])
        with path.open("r+b") as file:
            file.seek(start + within)
            file.write(bytes([data[start + within] ^ 1 << self._draw.randrange(8)]))
        return f"{path.name}, byte {within} of the batch at {start}"

    def _shared_bytes(self, path: Path, folder: Path, others: Sequence[Path]) -> int:
        """Returns how many bytes of a file are durable in this folder and in all others."""
        places = (path, *(other / path.relative_to(folder) for other in others))
        return min(self.durable.get(str(place), 0) for place in places)

    def copy(self, folder: Path, target: Path) -> None:
        """Copies what is durable of a disk."""
        shutil.copytree(folder, target)
        for path in target.glob(SEGMENTS):
            durable = self.durable.get(str(folder / path.relative_to(target)), 0)
            _cut(path, min(durable, path.stat().st_size))

    def put_back(self, folder: Path, copied: Path) -> None:
        """Puts a copy in the place of a broker's disk, while the broker is dead."""
        shutil.rmtree(folder)
        self.forget(folder)
        copied.rename(folder)
        for path in folder.glob(SEGMENTS):
            self.durable[str(path)] = path.stat().st_size

    def forget(self, folder: Path) -> None:
        """A new disk takes this one's place."""
        for those in (self.failing, self.full, self.nearly_full):
            those.discard(str(folder))
        self.durable = {
            path: size for path, size in self.durable.items() if not path.startswith(f"{folder}/")
        }


def _cut(path: Path, size: int) -> None:
    """Cuts a file; when it was changed stays as it was."""
    stat = path.stat()
    if size < stat.st_size:
        os.truncate(path, size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
