"""A disk that is full after some more bytes: `FailingDisk`."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest


class FailingDisk:
    """Writes some bytes, then reports that the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._pwritev, self._pwrite = os.pwritev, os.pwrite
        monkeypatch.setattr(os, "pwritev", self._fake_pwritev)
        monkeypatch.setattr(os, "pwrite", self._fake_pwrite)

    def _fake_pwritev(self, fd: int, buffers: Sequence[Any], at: int) -> int:
        return self._fake_pwrite(fd, b"".join(buffers), at)

    def _fake_pwrite(self, fd: int, data: Any, at: int) -> int:
        taken = min(len(data), self.room_bytes)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room_bytes -= taken
        return self._pwrite(fd, memoryview(data)[:taken], at)
