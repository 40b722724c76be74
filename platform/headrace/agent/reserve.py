"""Room that the agent keeps for its own state, so that a full disk does not lock the operator out.

Owns `<home>/agent/reserve`, a file of `RESERVE_BYTES`. When a write of state finds the disk full, the file is
removed and the write repeated; the agent makes it again once there is room. An agent has one home, so there
is one reserve for the process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from headrace.agent.errors import DiskFullError
from headrace.process.disk import DiskSpace, explained, is_full, space_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESERVE_BYTES: Final = 4 << 20
# The reserve must not be what fills the disk.
REFILL_FACTOR: Final = 4


class StateReserve:
    """The reserve of one home; `space` measures its disk."""

    def __init__(
        self,
        path: Path,
        size_bytes: int = RESERVE_BYTES,
        *,
        space: Callable[[Path], DiskSpace] = space_of,
    ) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._space = space

    @property
    def is_full(self) -> bool:
        try:
            return self.path.stat().st_size >= self._size_bytes
        except OSError:
            return False

    def fill(self) -> bool:
        """Makes the file if it is missing and the disk has room for it; returns whether it is there."""
        if self.is_full:
            return True
        try:
            if self._space(self.path).free_bytes < REFILL_FACTOR * self._size_bytes:
                return False
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.debug("no reserve: %s", explained(error, self.path))
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Frees the reserved space; returns whether there was any."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


_of_this_process: StateReserve | None = None


def keep(reserve: StateReserve | None) -> None:
    """Makes all writes of state of this process use this reserve."""
    global _of_this_process
    _of_this_process = reserve
    if reserve is not None:
        reserve.fill()


def refill() -> None:
    """Makes the reserve again if it was used and there is room. Cheap while it is there."""
    if _of_this_process is not None:
        _of_this_process.fill()


def write_with_reserve(path: Path, write: Callable[[], T]) -> T:
    """Calls `write`; on a full disk once more, after the reserve was released.

    `write` must be repeatable, and leave nothing behind if it fails. Raises `DiskFullError`, which names
    `path` and the free space, and `OSError` for other problems.
    """
    try:
        return write()
    except OSError as error:
        if not is_full(error):
            raise
        if _of_this_process is None or not _of_this_process.release():
            raise DiskFullError(explained(error, path)) from error
        logger.warning("%s; the reserve of %d bytes is used for it", explained(error, path), RESERVE_BYTES)
    try:
        return write()
    except OSError as error:
        if is_full(error):
            raise DiskFullError(explained(error, path)) from error
        raise
