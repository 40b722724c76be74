"""Removes files and folders that logs have let go, one after the other.

To free the bytes of a large file takes long: 33 ms for 128 MB on ext4. On the loop all clients would wait for
that, and on several threads the fsyncs of all producers.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from pathlib import Path
from typing import Final

from headrace.broker.workers import Jobs

logger = logging.getLogger(__name__)

RUNNING_MAX: Final = 1  # the threads fsync, too


class Removals:
    """Called on the loop's thread. What waits has names that the next start removes: nothing is lost if the
    broker ends before. There are never more than the logs had files.
    """

    def __init__(self, workers: Jobs) -> None:
        self._workers = workers
        self._waiting: deque[tuple[Path, object]] = deque()
        self._running = 0

    def add(self, path: Path, owner: object) -> None:
        """Removes a file or a folder soon. `owner`: the partition that had it, for the log."""
        self._waiting.append((path, owner))
        self._go_on()

    def _go_on(self) -> None:
        if not self._waiting or self._running >= RUNNING_MAX:
            return
        path, owner = self._waiting.popleft()
        self._running += 1

        def removed(_: None, error: Exception | None) -> None:
            self._running -= 1
            if error is not None:
                logger.error("%s: its files are not all deleted: %s; remove %s by hand", owner, error, path)
            self._go_on()

        self._workers.submit(lambda: _remove(path), removed)


def _remove(path: Path) -> None:
    """Raises `OSError`. A file whose folder was deleted meanwhile is gone already."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
