"""Topics of a broker under measurement. headrace's Admin client serves for Apache Kafka as well."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from peers.waiting import wait_until
from side_by_side.process import PinnedProcess

from headrace.client import Admin
from headrace.client.errors import ClientError

CALL_WAIT_MAX_MS: Final = 30_000
LOG_END_WAIT_MAX_MS: Final = 500
RECOVERY_WAIT_MAX_S: Final = 300.0
DELETION_WAIT_MAX_S: Final = 90.0


class Topics:
    """The topics that the bench has made on one cluster. `data_dirs` hold the folders of their partitions.

    Each topic has `replicas` replicas and the settings of `config`.
    """

    def __init__(
        self,
        bootstrap: str,
        data_dirs: list[Path],
        *,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._data_dirs = data_dirs
        self._replicas = replicas
        self._config = dict(config or {})
        self._names: list[str] = []

    def create(self, topic: str, partitions: int, replicas: int | None = None) -> None:
        """Creates a topic, with another number of replicas if one is given; returns once all of its
        partitions have leaders.
        """
        with self._admin() as admin:
            admin.create_topic(topic, partitions, replicas or self._replicas, self._config)
        self._names.append(topic)

    def delete(self, topic: str) -> None:
        """Deletes a topic; returns once its files are gone."""
        folders = partition_folders(self._data_dirs, topic)
        with self._admin() as admin:
            admin.delete_topic(topic)
        self._names.remove(topic)
        wait_until(
            lambda: not folders & partition_folders(self._data_dirs),
            f"the files of topic {topic} are deleted",
            wait_max_s=DELETION_WAIT_MAX_S,
        )

    def log_ends(self, wait_max_ms: float = CALL_WAIT_MAX_MS) -> dict[str, dict[int, int]]:
        """Returns the log end of each partition of each topic. Raises `ClientError`."""
        with self._admin(wait_max_ms) as admin:
            return {
                topic: {number: end.offset for number, end in admin.list_offsets(topic).items()}
                for topic in self._names
            }

    def wait_for_log_ends(self, before: dict[str, dict[int, int]], process: PinnedProcess) -> None:
        """Returns once a broker that was started again serves at least the log ends of `before`."""

        def are_served() -> bool:
            with contextlib.suppress(ClientError, OSError):
                now = self.log_ends(LOG_END_WAIT_MAX_MS)
                return all(
                    now[topic][number] >= end
                    for topic, ends in before.items()
                    for number, end in ends.items()
                )
            return False

        wait_until(are_served, "the topics' log ends are served again", process, RECOVERY_WAIT_MAX_S)

    def _admin(self, wait_max_ms: float = CALL_WAIT_MAX_MS) -> Admin:
        return Admin(self._bootstrap, client_id="bench-admin", timeout_ms=wait_max_ms)


def partition_folders(data_dirs: list[Path], topic: str | None = None) -> set[tuple[int, int]]:
    """Returns the folders of a topic's partitions, or all folders, by device and inode.

    These stay the same when a broker renames a folder that it is about to delete. A name proves nothing: a
    client that still runs makes Apache Kafka create the topic again.
    """
    found = set()
    for path in (path for data_dir in data_dirs for path in data_dir.glob("*")):
        if topic is None or re.fullmatch(re.escape(topic) + "-[0-9]+", path.name):
            with contextlib.suppress(FileNotFoundError):
                found.add((path.stat().st_dev, path.stat().st_ino))
    return found
