"""How old the log directory of each broker is: `/headrace/disks/<id>`, persistent.

A broker counts its directory's age up on the disk, and then here. So a directory that is younger than what
stands here is an older copy: a backup, or a disk's snapshot.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession

logger = logging.getLogger(__name__)


class DiskAge(NamedTuple):
    """`directory_id`: of the log directory (KIP-858). `age`: how often it was counted up."""

    directory_id: str
    age: int


class DiskAges:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def of(self, broker_id: int) -> DiskAge | None:
        """Returns what was noted last; None if nothing was, or nothing that can be read."""
        path = znodes.disk(broker_id)
        node = self._session.get_or_none(path)
        if node is None or not node.data:
            return None
        try:
            fields = documents.decode(path, node.data)
            directory_id, age = fields["directory_id"], fields["age"]
        except (CorruptNodeError, KeyError) as error:
            logger.error("%s: not the age of a disk: %s", path, error)
            return None
        if type(age) is not int or not isinstance(directory_id, str):  # a bool is an int, too
            logger.error("%s: not the age of a disk: %s", path, node.data[:80])
            return None
        return DiskAge(directory_id, age)

    def newest(self, broker_id: int) -> DiskAge | None:
        """Returns as `of` does, and not what a server shows that lags behind the others."""
        self._session.sync(znodes.disk(broker_id))
        return self.of(broker_id)

    def touch(self, broker_id: int) -> int:
        """Writes what stands there once more, and returns what ZooKeeper's clock showed then, in ms. Raises
        `CoordinationError`.
        """
        path = znodes.disk(broker_id)
        self._session.ensure_path(path)
        node = self._session.get(path)
        return self._session.set(path, node.data, version=node.stat.version).modified_ms

    def note(self, broker_id: int, noted: DiskAge) -> int:
        """Returns what ZooKeeper's clock showed then, in ms. Raises `CoordinationError`."""
        path = znodes.disk(broker_id)
        self._session.ensure_path(path)
        return self._session.set(path, documents.encode(noted._asdict())).modified_ms
