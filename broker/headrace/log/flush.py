"""The fsync of a log, as a job for any thread. Uses only files, no state of the log."""

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

    If `run` raises `OSError`, the bytes may or may not be durable and the job must not be repeated. If only
    the checkpoint does not fit on the disk, logs a warning: the next start scans more.
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
                "%s: no room for a checkpoint: %s; free disk space. Until then a start scans the log from "
                "the last checkpoint",
                self.directory,
                error.strerror,
            )
