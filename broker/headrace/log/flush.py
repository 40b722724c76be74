"""The fsync of a log, as a job that may run on another thread. Touches files only, no state of the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from headrace.log.checkpoint import FILE_NAME, Checkpoint, encode
from headrace.log.files import OpenFile, replace_file, sync_directory


class FlushJob(NamedTuple):
    """Makes everything below `upto_address` durable, then saves `checkpoint` if there is one.

    `run` raises `OSError`: then nothing may be assumed.
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
            replace_file(self.directory / FILE_NAME, encode(self.checkpoint))
