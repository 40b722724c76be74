"""Keeps a reserve free on the disk of the logs: below it, the broker refuses appends.

A disk that is full to its last byte stops more than producers: checkpoints, indexes, and every other program
on the disk. Owns when appends are refused and what the log says of it: once each time. Reads, and deletions
that free space, go on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.broker.workers import Jobs
from headrace.process.disk import WARN_SHARE, DiskSpace, space_of

logger = logging.getLogger(__name__)

SETTING: Final = "headrace.disk.free.min.bytes"
CHECK_INTERVAL_MS: Final = 1_000
# Appends are accepted again only with somewhat more free space, so that the two do not alternate.
RESUME_FACTOR: Final = 1.1
CALM_SHARE: Final = WARN_SHARE - 0.02


class DiskGuard:
    """Called on the loop's thread. `refuse` gets the reason why appends are refused, None once they are not.

    `reserve_bytes` 0: nothing is refused. The measuring runs on a thread, because a sick disk may hang.
    """

    def __init__(
        self,
        directory: Path,
        reserve_bytes: int,
        workers: Jobs,
        refuse: Callable[[str | None], None],
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._workers = workers
        self._refuse = refuse
        self._statvfs = statvfs
        self._measures = False
        self._has_failed = False
        self._has_warned = False
        self._refuses = False
        self._space: DiskSpace | None = None

    def check(self) -> None:
        """Measures the disk, unless the last measuring has not ended."""
        if self._measures:
            return
        self._measures = True
        self._workers.submit(lambda: space_of(self._directory, self._statvfs), self._measured)

    def status(self) -> dict[str, Any]:
        """Figures for the status page. Any thread."""
        space = self._space
        return {
            "directory": str(self._directory),
            "free_bytes": None if space is None else space.free_bytes,
            "size_bytes": None if space is None else space.size_bytes,
            "reserve_bytes": self._reserve_bytes,
            "refuses_appends": self._refuses,
        }

    def _measured(self, space: DiskSpace | None, error: Exception | None) -> None:
        self._measures = False
        if space is None:
            if not self._has_failed:
                logger.warning("the free space of %s is not known: %s", self._directory, error)
            self._has_failed = True
            return
        self._has_failed = False
        self._space = space
        self._warn(space)
        if not self._refuses and space.free_bytes < self._reserve_bytes:
            self._refuses = True
            reason = (
                f"the disk of {self._directory} has {space.free_bytes:,} bytes free, less than "
                f"{SETTING}={self._reserve_bytes}: free space, or delete topics"
            )
            logger.error("appends are refused: %s", reason)
            self._refuse(reason)
        elif self._refuses and space.free_bytes >= self._reserve_bytes * RESUME_FACTOR:
            self._refuses = False
            logger.info("appends are accepted again: %s", space)
            self._refuse(None)

    def _warn(self, space: DiskSpace) -> None:
        if not self._has_warned and space.is_nearly_full:
            self._has_warned = True
            logger.warning(
                "%s; below %s bytes free appends are refused (%s)",
                space,
                f"{self._reserve_bytes:,}",
                SETTING,
            )
        elif self._has_warned and space.used_share < CALM_SHARE:
            self._has_warned = False
