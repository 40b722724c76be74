"""Where the folding auditor's store is: opens it, and sets a file aside that cannot be used.

Owns the names of set-aside files. Only the process that folds uses it: readers of the store change nothing.
The audit topics hold all that a store was made from, so a new one is rebuilt from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.audit.store.store import (
    AuditStore,
    StoreError,
    UnusableStoreError,
    parsed_url,
    shown_url,
    sqlite_file,
)
from headrace.process.clock import now_ms

logger = logging.getLogger(__name__)

SET_ASIDE_MAX: Final = 10
"""Files beside the store. A disk that damages more of them must not be filled with them."""
MARK: Final = ".set-aside-"
# SQLite's files beside the database. They go first: what they hold must never be read into a new store.
_COMPANIONS: Final = ("-wal", "-shm")


class StorePlace:
    """The URL of a store. `url` is without its password. Raises `StoreError` if it is no URL of a store."""

    def __init__(self, url: str, clock_ms: Callable[[], int] = now_ms) -> None:
        self.url = shown_url(parsed_url(url))
        self.set_aside_as = ""
        """The file that was set aside last."""
        self._url = url
        self._path = sqlite_file(url)
        self._clock_ms = clock_ms

    def open(self) -> AuditStore:
        """Opens the store, in place of one that cannot be used. Raises `StoreError`."""
        try:
            return AuditStore(self._url)
        except UnusableStoreError as error:
            self.set_aside(str(error))
        return AuditStore(self._url)

    def set_aside(self, problem: str) -> None:
        """Renames the store's file, which nothing must have open. Raises `StoreError`."""
        if self._path is None:
            raise StoreError(f"{problem}; only the file of a SQLite store can be set aside by itself")
        try:
            target = self._free_name(self._path, problem)
            for suffix in (*_COMPANIONS, ""):
                source = Path(f"{self._path}{suffix}")
                if source.exists():
                    source.rename(f"{target}{suffix}")
        except OSError as error:
            raise StoreError(f"{problem}; it cannot be set aside: {error}") from error
        self.set_aside_as = str(target)
        logger.warning(
            "%s. The file is kept as %s; the new store %s is rebuilt from what the audit topics still hold",
            problem,
            target,
            self._path,
        )

    def _free_name(self, path: Path, problem: str) -> Path:
        beside = [each.name for each in path.parent.iterdir()]
        taken = {
            name
            for name in beside
            if name.startswith(f"{path.name}{MARK}") and not name.endswith(_COMPANIONS)
        }
        if len(taken) >= SET_ASIDE_MAX:
            raise StoreError(
                f"{problem}; {len(taken)} such files lie beside it already ({path}{MARK}*): is the disk "
                "failing? Remove them, and the store is set aside and rebuilt"
            )
        time = f"{datetime.fromtimestamp(self._clock_ms() / 1000, UTC):%Y%m%dT%H%M%SZ}"
        names = [f"{path.name}{MARK}{time}{more}" for more in ("", *(f"-{n}" for n in range(SET_ASIDE_MAX)))]
        return path.with_name(next(name for name in names if name not in taken))
