"""The clock by which events expire: the earlier of this broker's own and ZooKeeper's.

A clock that jumps ahead makes every event old: one broker's clock alone must not decide that, since all
replicas delete what their leader has deleted. ZooKeeper tells its time with each write (`Stat.mtime`); the
broker writes one a minute (`disk_age`), and counts on from it by a clock that nobody sets. If both clocks are
ahead, nobody can know; if either is behind, events stay longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from headrace.process.clock import elapsed_s, now_ms

logger = logging.getLogger(__name__)

APART_MAX_MS: Final = 60_000
"""More between the two clocks is worth a warning: an answer that comes late is no reason."""


def elapsed_ms() -> int:
    return int(elapsed_s() * 1000)


def _are_apart(ahead_ms: int) -> bool:
    return abs(ahead_ms) > APART_MAX_MS


class ExpiryClock:
    """`wall_ms`: this broker's clock; `elapsed_ms`: one that is never set. Any thread may call."""

    def __init__(
        self, wall_ms: Callable[[], int] = now_ms, elapsed_ms: Callable[[], int] = elapsed_ms
    ) -> None:
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._began_ms: int | None = None  # ZooKeeper's time when `elapsed_ms` was 0
        self._is_apart = False

    def now_ms(self) -> int | None:
        """Returns the earlier of the two times; `None` until ZooKeeper has told its: nothing expires yet."""
        if self._began_ms is None:
            return None
        return min(self._wall_ms(), self._began_ms + self._elapsed_ms())

    def bounds_ms(self) -> tuple[int, int]:
        """Returns the earlier and the later of the two times, as far as ZooKeeper has told its."""
        own_ms, ahead_ms = self._wall_ms(), self.ahead_ms or 0
        return min(own_ms, own_ms - ahead_ms), max(own_ms, own_ms - ahead_ms)

    @property
    def ahead_ms(self) -> int | None:
        """How far this broker's clock is ahead of ZooKeeper's; `None` until that is known."""
        began_ms = self._began_ms
        return None if began_ms is None else self._wall_ms() - began_ms - self._elapsed_ms()

    def status(self) -> dict[str, Any]:
        """Returns figures for the status page."""
        ahead_ms = self.ahead_ms
        return {"ahead_ms": ahead_ms, "is_apart": _are_apart(ahead_ms or 0)}

    def heard(self, zookeeper_ms: int) -> None:
        """Takes what ZooKeeper's clock showed when it did a write that was answered just now."""
        self._began_ms = zookeeper_ms - self._elapsed_ms()
        ahead_ms = self._wall_ms() - zookeeper_ms
        was_apart, self._is_apart = self._is_apart, _are_apart(ahead_ms)
        if self._is_apart and not was_apart:
            logger.warning(
                "the clock of this host is %d s %s ZooKeeper's. Until both show the same, events expire by "
                "the one that is behind. Set the clock that is wrong (is NTP running on both hosts?)",
                abs(ahead_ms) // 1000,
                "ahead of" if ahead_ms > 0 else "behind",
            )
        elif was_apart and not self._is_apart:
            logger.info("the clock of this host agrees with ZooKeeper's again")
