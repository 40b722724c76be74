"""How many nodes ZooKeeper holds below one of ours, and how many bytes: it counts them for a quota.

A quota is a node below `/zookeeper/quota`, outside of any chroot, with a child that has ZooKeeper's own
counts. Ours has no limit: it only makes ZooKeeper count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo.protocol.serialization import Create, GetData
from kazoo.security import OPEN_ACL_UNSAFE

from headrace.coordination.errors import CorruptNodeError, NodeExistsError, NoNodeError

QUOTAS: Final = "/zookeeper/quota"
LIMITS: Final = "zookeeper_limits"
STATS: Final = "zookeeper_stats"
UNLIMITED: Final = b"count=-1,bytes=-1"
"""Of the limits, as ZooKeeper's `setquota` writes them; and of the counts before it has counted."""
_COUNTED: Final = re.compile(rb"count=(-?\d+),bytes=(-?\d+)")


class Usage(NamedTuple):
    """`nodes`: the node itself, and all below it; `data_bytes`: of their data, without their paths."""

    nodes: int
    data_bytes: int


class CountedNodes:
    """The calls of a session that concern quotas. `_call` is its own: it repeats a call whose connection was
    lost, and raises the errors of this package.
    """

    _client: Any

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def count_below(self, path: str) -> None:
        """Makes ZooKeeper count from now on what there is at and below `path`, which exists. Raises
        `CoordinationError`.
        """
        quota = QUOTAS
        for name in self._absolute(path).split("/")[1:]:
            quota = f"{quota}/{name}"
            self._create(quota, b"")
        # ZooKeeper begins to count when it sees the second one of these.
        self._create(f"{quota}/{LIMITS}", UNLIMITED)
        self._create(f"{quota}/{STATS}", UNLIMITED)

    def usage_below(self, path: str) -> Usage | None:
        """Returns what ZooKeeper counts at and below `path`; None if it does not count there. Raises
        `CoordinationError`.
        """
        stats = f"{QUOTAS}{self._absolute(path)}/{STATS}"
        try:
            data, _ = self._call(self._done, GetData(stats, None))
        except NoNodeError:
            return None
        found = _COUNTED.match(data)
        if found is None:
            raise CorruptNodeError(f"{stats}: ZooKeeper's counts were expected, found {data[:80]!r}")
        return Usage(*map(int, found.groups()))

    def _absolute(self, path: str) -> str:
        chroot: str = self._client.chroot
        return f"{chroot}{path}"

    def _create(self, path: str, data: bytes) -> None:
        with suppress(NodeExistsError):
            self._call(self._done, Create(path, data, OPEN_ACL_UNSAFE, 0))

    def _done(self, request: Any) -> Any:
        """Sends a request as it is: the library would put the chroot before its path."""
        pending = self._client.handler.async_result()
        self._client._call(request, pending)
        return pending.get()
