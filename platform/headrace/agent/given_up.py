"""Units that supervisord has given up, after `START_RETRIES` attempts in a row: when each is started again.

What a unit waits for may come later than supervisord's patience lasts: a ZooKeeper whose host is being
repaired, room on a disk. Without this such a unit stayed down until somebody restarted it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from headrace.agent.unit import UnitState

AGAIN_AFTER_S: Final = 60.0
AGAIN_AFTER_MAX_S: Final = 900.0
"""What goes on failing is started at longer and longer intervals."""


class _Known(NamedTuple):
    """A unit that was given up. `since_s`: when that was seen; None once it was started again."""

    since_s: float | None
    pause_s: float


class GivenUp:
    """For one thread, which shows it the states of all units every few seconds. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def due(self, states: Iterable[UnitState]) -> list[str]:
        """Returns the units to start now. One that runs again is forgotten."""
        now_s = self._clock()
        seen: dict[str, _Known] = {}
        found = []
        for each in states:
            known = self._known.get(each.name)
            if each.state == "FATAL":
                pause_s = AGAIN_AFTER_S if known is None else known.pause_s
                since_s = now_s if known is None or known.since_s is None else known.since_s
                known = _Known(since_s, pause_s)
                if now_s - since_s >= pause_s:
                    found.append(each.name)
                    known = _Known(None, min(2 * pause_s, AGAIN_AFTER_MAX_S))
            if known is not None and each.state != "RUNNING":
                seen[each.name] = known
        self._known = seen
        return found
