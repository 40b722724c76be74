"""Closes the logs that this broker has no replica of any more, or deletes them.

A log is closed on a thread, since that waits for the disk, and one whose disk fails holds up no other.
"""

from __future__ import annotations

import logging
import os
from typing import Final
from uuid import UUID

from headrace.broker.replicas.folders import Folders
from headrace.broker.replicas.removals import Removals
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.log.directory import LogDirectory, PartitionName
from headrace.log.errors import LogError
from headrace.log.files import FileReference
from headrace.log.partition import PartitionLog

logger = logging.getLogger(__name__)

# A client that is reading a deleted log gets so long to take its last response; then its bytes are freed.
DELETED_READ_MAX_MS: Final = 5_000


class Closing:
    """Called on the loop's thread, with logs that nobody else works on."""

    def __init__(
        self, state: BrokerState, directory: LogDirectory, workers: Jobs, folders: Folders, removals: Removals
    ) -> None:
        self._state = state
        self._directory = directory
        self._workers = workers
        self._folders = folders
        self._removals = removals

    def close(self, name: PartitionName, log: PartitionLog) -> None:
        """Flushes and closes a log; its folder is in use until then."""

        def closed(_: None, error: Exception | None) -> None:
            if error is None:
                logger.info("%s: closed", name)
            else:
                log.abandon()
                logger.error("%s: closing failed: %s", name, error)
            self._directory.release(name)
            self._folders.leave(name)

        self._folders.use(name)
        self._workers.submit(log.close, closed)

    def delete(self, name: PartitionName, topic_id: UUID, log: PartitionLog) -> None:
        """Closes a log, and deletes its folder unless this broker has a replica again."""
        in_use = log.abandon()
        self._directory.release(name)
        if self.delete_folder_if_gone(name, topic_id) and in_use:
            self._state.loop.call_later(DELETED_READ_MAX_MS, lambda: self._free(name, in_use))
        logger.info("%s: deleted", name)

    def delete_folder_if_gone(self, name: PartitionName, topic_id: UUID) -> bool:
        """Returns whether the folder is being deleted."""
        view = self._state.view
        state = view.partition(view.names_by_id.get(topic_id, ""), name.partition)
        if state is not None and self._state.broker_id in (state.leader, *state.replicas):
            return False
        try:
            left = self._directory.delete(name, topic_id)
        except (LogError, OSError) as error:
            logger.error("%s: its files are not deleted: %s", name, error)
            return False
        if left is None:
            return False
        self._removals.add(left, name)
        return True

    def _free(self, name: PartitionName, files: list[FileReference]) -> None:
        """Frees the bytes of deleted files that slow clients keep open; their connections end."""

        def cut() -> int:
            still_open = [file for reference in files if (file := reference()) is not None]
            for file in still_open:
                os.ftruncate(file.fd, 0)
            return len(still_open)

        def freed(count: int | None, error: Exception | None) -> None:
            if error is not None:
                logger.error("%s: its deleted files could not be emptied: %s", name, error)
            elif count:
                logger.info("%s: %d deleted files were still being read, and are empty now", name, count)

        self._workers.submit(cut, freed)
