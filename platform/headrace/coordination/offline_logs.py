"""The brokers' logs that are offline, so that these partitions cannot be served: an ephemeral node for each.

All of it is in the nodes' names, so one watch of the children sees every change.
"""

import contextlib
from collections.abc import Callable

from headrace.coordination import documents, znodes
from headrace.coordination.errors import NoNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch

OfflineNames = frozenset[tuple[int, str, int]]
"""Broker, topic, partition."""


class OfflineLogRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def announce(self, broker_id: int, topic: str, partition: int) -> HeldNode:
        """Says that a partition is offline until the node is released; survives session losses. Raises
        `NodeHeldError` while the node of a killed predecessor is left.
        """
        return self._session.hold_ephemeral(znodes.offline(broker_id, topic, partition), b"", wait_s=0.0)

    def forget(self, broker_id: int) -> None:
        """Removes what a dead predecessor of this broker left: its session may not have expired yet."""
        for name in self._session.children_or_empty(znodes.OFFLINE):
            if name.partition("-")[0] == str(broker_id):
                with contextlib.suppress(NoNodeError):
                    self._session.delete(f"{znodes.OFFLINE}/{name}")

    def names(self) -> OfflineNames:
        """Returns all of them."""
        return parse(self._session.children_or_empty(znodes.OFFLINE))

    def watch(self, callback: Callable[[OfflineNames], None]) -> Watch:
        """Calls `callback` with all of them, now and after every change; runs in the session's callback
        thread."""
        return self._session.watch_children(znodes.OFFLINE, lambda names: callback(parse(names)))


def parse(names: list[str]) -> OfflineNames:
    """Returns what the nodes' names say; leaves out those that say nothing."""
    found = set()
    for name in names:
        broker_id, _, partition = name.partition("-")
        topic, _, index = partition.rpartition("-")
        if topic and len(numbers := [*documents.numbers([broker_id]), *documents.numbers([index])]) == 2:
            found.add((numbers[0], topic, numbers[1]))
    return frozenset(found)
