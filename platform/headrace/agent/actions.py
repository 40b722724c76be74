"""The record of administrative actions: who changed what on this host, when, and what came of it.

Owns `logs/actions.log`: one JSON object a line, only ever appended to, readable by its owner only. Bodies may
hold passwords, so a line has their digest. Full files are renamed to `actions.log.1` and so on.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.agent.reserve import write_with_reserve

FILE_MAX_BYTES: Final = 10 << 20
FILES_MAX: Final = 20
REFUSALS_EVERY_S: Final = 60.0
"""Requests without a token are counted, and written at most so often: anybody can send them."""


class ActionLog:
    """Appends lines; any thread may call. `now_s`: the wall clock; `monotonic_s`: the pace of refusals."""

    def __init__(
        self,
        path: Path,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._refusals = 0
        self._refusals_written_s = -REFUSALS_EVERY_S

    def write(self, *, uses_reserve: bool = True, **fields: Any) -> None:
        """Appends a line with these fields, after the time. `uses_reserve`: on a full disk, too. What was
        refused has not: strangers could use up what the operator needs. Raises `DiskFullError`, `OSError`.
        """
        time_text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now_s()))
        line = json.dumps({"time": time_text, **fields}) + "\n"
        with self._lock:
            self._rotate(len(line))
            if uses_reserve:
                write_with_reserve(self._path, lambda: self._append(line.encode()))
            else:
                self._append(line.encode())

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size_bytes = os.fstat(file).st_size
            if os.write(file, line) < len(line):
                os.ftruncate(file, size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)

    def refused(self, address: str, method: str, path: str) -> None:
        """Counts a request without a valid token."""
        self._refusals += 1
        if self._monotonic_s() - self._refusals_written_s >= REFUSALS_EVERY_S:
            self._refusals_written_s = self._monotonic_s()
            count, last = self._refusals, f"{method} {path[:200]}"
            self.write(uses_reserve=False, outcome="unauthorized", requests=count, last=last, address=address)
            self._refusals -= count  # they are counted on while they cannot be written

    def _rotate(self, more_bytes: int) -> None:
        try:
            size_bytes = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size_bytes + more_bytes <= FILE_MAX_BYTES:
            return
        for number in range(FILES_MAX - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.rename(self._numbered(number + 1)) if number + 1 < FILES_MAX else older.unlink()
        self._path.rename(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
