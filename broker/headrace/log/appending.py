"""An append and its fsync as one job for any thread: the log has the batches once both are done.

A follower waits for its fsync before it fetches more. So it loses nothing if the write waits for the disk,
too, and long writes save much (`log.direct`). The log's state does not change before the job has ended: a
crash leaves whole batches behind the end, or some of them, as after any append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.log import direct
from headrace.log.errors import LogOfflineError, LogStorageError
from headrace.log.files import DISK_FULL, OpenFile, cut_back
from headrace.log.flush import Flushed, FlushJob
from headrace.process.disk import explained
from headrace.wire.batch import BatchHeader
from headrace.wire.primitives import Buffer

DIRECT_MIN_BYTES: Final = 256 * 1024
"""A shorter append costs less through the page cache."""


class AppendJob(NamedTuple):
    """Writes `batches` at position `at` of `file`, which ends there, then runs `flush`.

    `run` raises `LogStorageError` if the file is as before, `LogOfflineError` or `OSError` if its content is
    unknown. `batches` must not change until then.
    """

    file: OpenFile
    at: int
    batches: Buffer
    headers: Sequence[BatchHeader]
    flush: FlushJob

    def run(self) -> Flushed:
        fd = self.file.fd
        try:
            direct.write(fd, self.batches, self.at)
        except OSError as error:
            size_bytes, path = len(self.batches), self.file.path
            problem = f"writing {size_bytes} bytes at {self.at} failed: {explained(error, path)}"
            if cut_back(fd, self.at) and error.errno in DISK_FULL:
                raise LogStorageError(problem) from error
            raise LogOfflineError(problem) from error
        return self.flush.run()
