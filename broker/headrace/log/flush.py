"""The fsync of a log, as a job for any thread, and when a flush waits a moment for the batches that follow.

The job reads the end of the active segment and uses files; it changes no state of the log.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log.checkpoint import Checkpoint, save
from headrace.log.files import DISK_FULL, OpenFile, sync_directory
from headrace.process.disk import explained

logger = logging.getLogger(__name__)

NOT_SAVED: Final = DISK_FULL | {errno.EMFILE, errno.ENFILE}
"""A checkpoint needs new files. None of these errors says anything of the bytes that were flushed."""
GATHER_MAX_S: Final = 0.0005
GATHER_PAUSE_MAX: Final = 64  # flushes without another attempt, after waits that brought nothing


class Flushed(NamedTuple):
    """What a flush job did. `gathered`: batches arrived while it waited. `sync_s`: what the fsync took.
    `checkpointed_address`: where the checkpoint was taken that it saved, or had no room to save; -1 for none.
    """

    upto_address: int
    gathered: bool = False
    sync_s: float = 0.0
    checkpointed_address: int = -1


class FlushJob(NamedTuple):
    """Makes everything below `upto_address` durable, then saves `checkpoint` if there is one.

    With `written_end` it covers what was written before its fsync began, too: the function returns the end of
    the last of `files`, from any thread. It waits `gather_s` first.

    If `run` raises `OSError`, the bytes may or may not be durable and the job must not be repeated. If only
    the checkpoint finds no room, or no descriptor, logs a warning: the next start scans more.
    """

    directory: Path
    files: tuple[OpenFile, ...]
    directory_too: bool
    upto_address: int
    checkpoint: Checkpoint | None = None
    written_end: Callable[[], int] | None = None
    gather_s: float = 0.0

    def run(self) -> Flushed:
        upto_address = self.upto_address
        if self.gather_s > 0:
            time.sleep(self.gather_s)
        if self.written_end is not None:
            upto_address = max(upto_address, self.written_end())
        start_s = time.monotonic()
        for file in self.files:
            os.fdatasync(file.fd)
        sync_s = time.monotonic() - start_s
        if self.directory_too:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        checkpointed_address = -1
        if self.checkpoint is not None:
            self._save(self.checkpoint)
            checkpointed_address = self.checkpoint.recovery_point
        has_gathered = self.gather_s > 0 and upto_address > self.upto_address
        return Flushed(upto_address, has_gathered, sync_s, checkpointed_address)

    def _save(self, checkpoint: Checkpoint) -> None:
        try:
            save(self.directory, checkpoint)
        except OSError as error:
            if error.errno not in NOT_SAVED:
                raise
            logger.warning(
                "no checkpoint was saved: %s. Until the next one a start scans the log from the last one",
                explained(error, self.directory),
            )


class Gathering:
    """How long a flush waits so that one fsync covers more batches.

    The first to wait is a flush that follows another one immediately: producers kept sending while that one
    ran, so more is likely to come. While waits bring batches, every flush waits; a single synchronous
    producer never gets there. A wait is at most as long as the last fsync took. After a wait that brought
    nothing the next flushes that follow another do not wait: 1, 2, 4 … of them.
    """

    __slots__ = ("_pause", "_pays", "_skip", "_sync_s")

    def __init__(self) -> None:
        self._sync_s = 0.0
        self._pays = False  # the last wait brought something
        self._pause = 0
        self._skip = 0

    def wait_s(self, *, follows: bool) -> float:
        """Returns how long the flush that begins now waits; `follows`: the last one has just ended."""
        if not self._pays and not follows:
            return 0.0
        if self._skip:
            self._skip -= 1
            return 0.0
        return min(GATHER_MAX_S, self._sync_s)

    def note(self, waited_s: float, flushed: Flushed) -> None:
        """Learns from a flush that succeeded."""
        self._sync_s = flushed.sync_s
        if waited_s <= 0:
            return
        self._pays = flushed.gathered
        self._pause = 0 if flushed.gathered else min(GATHER_PAUSE_MAX, max(1, 2 * self._pause))
        self._skip = self._pause
