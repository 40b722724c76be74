"""Whether ZooKeeper has room for more offsets: it keeps all nodes in memory, and clients name their groups.

Owns the bounds `headrace.groups.nodes.max` and `headrace.groups.bytes.max`, against what ZooKeeper counts
below `/consumers`. At a bound, offsets that are there are still replaced; new ones, and longer metadata, are
refused. Brokers look at most once a second, and add what they have written since: together they may write
beyond a bound what they write in that second. What groups store besides has bounds of its own
(`generations`, `types`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Set
from typing import Final

from headrace.broker.settings.groups import BYTES_MAX, NODES_MAX
from headrace.coordination import znodes
from headrace.coordination.errors import CoordinationError, ZooKeeperUnavailableError
from headrace.coordination.quotas import Usage
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
OFFSET_MAX_BYTES: Final = 20
"""Of an offset as text: one that is there may always grow."""
UNCOUNTED_INTERVAL_S: Final = 600.0
"""How long a broker waits where ZooKeeper refuses to count: nothing is bounded meanwhile."""


class NoRoomError(CoordinationError):
    """ZooKeeper holds as much for groups as its bounds allow. `nodes`: those that need more than they have;
    `refused`: the offsets that were not stored for that.
    """

    def __init__(self, problem: str, nodes: Set[str], refused: Set[TopicPartition] = frozenset()) -> None:
        super().__init__(problem)
        self.nodes = nodes
        self.refused = refused


class GroupRoom:
    """Any thread. Calls block."""

    def __init__(
        self,
        session: ZooKeeperSession,
        nodes_max: int,
        bytes_max: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """-1: without this bound."""
        self._session = session
        self._nodes_max = nodes_max
        self._bytes_max = bytes_max
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._looks_at_s = -1.0
        self._usage: Usage | None = None

    def take(self, group: str, nodes: Mapping[str, bytes]) -> None:
        """Takes room for these nodes of a group, which are about to be written: each exists, or not. Raises
        `NoRoomError`, `CoordinationError`.
        """
        if self._fits(len(nodes), sum(map(len, nodes.values()))):
            return
        stats = zip(nodes.items(), self._session.stat_many(nodes), strict=True)
        new = more_bytes = 0
        needy = set()
        for (path, data), stat in stats:
            new += stat is None
            grown_bytes = len(data) - (0 if stat is None else stat.data_bytes)
            if stat is None or grown_bytes > OFFSET_MAX_BYTES:
                needy.add(path)
                more_bytes += grown_bytes
        if not self._fits(new, more_bytes, looks=True):
            raise NoRoomError(self._problem(group), needy)

    def _fits(self, nodes: int, data_bytes: int, *, looks: bool = False) -> bool:
        """Whether so much more fits; if it does, it counts from now on. `looks`: asks ZooKeeper anew."""
        if self._nodes_max < 0 and self._bytes_max < 0:
            return True
        with self._lock:
            if looks or self._clock_s() >= self._looks_at_s:
                self._look()
            if self._usage is None:
                return True
            after = Usage(self._usage.nodes + nodes, self._usage.data_bytes + data_bytes)
            fits = not (
                (nodes and 0 <= self._nodes_max < after.nodes)
                or (data_bytes and 0 <= self._bytes_max < after.data_bytes)
            )
            if fits:
                self._usage = after
            return fits

    def _look(self) -> None:
        try:
            self._usage = self._session.usage_below(znodes.CONSUMERS)
            if self._usage is None:
                self._session.ensure_path(znodes.CONSUMERS)
                self._session.count_below(znodes.CONSUMERS)
                self._usage = self._session.usage_below(znodes.CONSUMERS)
            self._looks_at_s = self._clock_s() + LOOK_INTERVAL_S
        except ZooKeeperUnavailableError:
            raise
        except CoordinationError as error:
            self._usage = None
            self._looks_at_s = self._clock_s() + UNCOUNTED_INTERVAL_S
            logger.warning(
                "ZooKeeper does not count what groups store, so nothing bounds it (%s, %s): %s",
                NODES_MAX,
                BYTES_MAX,
                error,
            )

    def _problem(self, group: str) -> str:
        usage = self._usage or Usage(0, 0)
        return (
            f"group {group!r}: ZooKeeper holds {usage.nodes} nodes and {usage.data_bytes} bytes for all"
            f" groups; {NODES_MAX} is {self._nodes_max}, {BYTES_MAX} {self._bytes_max}. Delete groups that"
            " nobody uses (`headrace groups list`, `headrace groups delete`), or raise the bound and, if need"
            " be, the heap of ZooKeeper"
        )
