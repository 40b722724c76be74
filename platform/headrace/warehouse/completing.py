"""Reading while a change is being completed: waits a moment, and finds files that have not moved yet."""

import time
from collections.abc import Mapping
from typing import Final

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.manifest import DataFile

COMPLETION_WAIT_S: Final = 5.0


def wait_until_complete(log: CommitLog) -> dict[str, str]:
    """Waits briefly until committed changes are complete; returns the files of those that are not, each with
    where it was staged."""
    deadline = time.monotonic() + COMPLETION_WAIT_S
    while True:
        staged = {file.path: file.staged for manifest in log.to_complete() for file in manifest.files}
        if not staged or time.monotonic() >= deadline:
            return staged
        time.sleep(0.2)


def path_now(hdfs: HdfsClient, file: DataFile, staged: Mapping[str, str]) -> str:
    """The final path of a file, or its staged one if its change was interrupted before the move."""
    if file.path in staged and hdfs.status(file.path) is None:
        return staged[file.path]
    return file.path
