"""The fsync of a log, as a job that may run on another thread. Touches files only, no state of the log."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from headrace.log.checkpoint import FILE_NAME, Checkpoint, encode
from headrace.log.files import DISK_FULL, OpenFile, replace_file, sync_directory

logger = logging.getLogger(__name__)


class FlushJob(NamedTuple):
    """Makes everything below `upto_address` durable, then saves `checkpoint` if there is one.

    `run` raises `OSError`: then nothing may be assumed, and nothing of it may be tried again. Only a
    checkpoint that finds no room is no failure: the one before holds, and the next start scans more.
    """

    directory: Path
    files: tuple[OpenFile, ...]
    directory_too: bool
    upto_address: int
    checkpoint: Checkpoint | None = None

    def run(self) -> None:
        for file in self.files:
            os.fdatasync(file.fd)
        if self.directory_too:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        if self.checkpoint is not None:
            self._save(self.checkpoint)

    def _save(self, checkpoint: Checkpoint) -> None:
        try:
            replace_file(self.directory / FILE_NAME, encode(checkpoint))
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            logger.warning(
                "%s: no room for a checkpoint: %s; free the disk. Until then a start scans the log from the "
                "last checkpoint on",
                self.directory,
                error.strerror,
            )
