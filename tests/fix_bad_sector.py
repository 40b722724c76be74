"""A disk that can no longer read a part of a file, or nothing at all: `BadSector`, `dead_disk`."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class BadSector:
    """Addresses [start, end) of one file that no longer can be read; nor can all of it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, start: int, end: int) -> None:
        self._file, self._start, self._end = path.stat().st_ino, start, end
        self._pread, self._copyfile = os.pread, shutil.copyfile
        monkeypatch.setattr(os, "pread", self._fake_pread)
        monkeypatch.setattr(shutil, "copyfile", self._fake_copyfile)

    def _fake_pread(self, fd: int, size_bytes: int, at: int) -> bytes:
        if os.fstat(fd).st_ino == self._file and at < self._end and self._start < at + size_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._pread(fd, size_bytes, at)

    def _fake_copyfile(self, source: Path, target: Path) -> Path:
        if source.stat().st_ino == self._file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._copyfile(source, target)


def dead_disk(monkeypatch: pytest.MonkeyPatch, mount: Path) -> None:
    """Nothing below `mount` can be looked at any more, as on a file system that has shut down."""

    def failing(name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(os, name)

        def fail(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and Path(os.fsdecode(path)).is_relative_to(mount):
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
            return call(path, *arguments, **options)

        return fail

    for name in ("stat", "lstat", "listdir", "scandir", "open"):
        monkeypatch.setattr(os, name, failing(name))
