"""Who gives way when all connections are taken: an idle one of the address that has the most of them.

Otherwise strangers who open `max.connections` and say nothing would shut out every new client, and every
broker that connects again, until they are idle for `connections.max.idle.ms`. A newcomer's address never gets
more than the one that gives way keeps, so nobody gains by opening more; clients connect again after an idle
connection was closed. Knows no sockets.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

IDLE_MIN_S: Final = 1.0
FOUND_MAX: Final = 256
SEARCH_EVERY_S: Final = 1.0  # a look at all connections takes some milliseconds


class Idle(Protocol):
    """A connection, as seen from here. `active_s`: when it was last sent or received anything."""

    ip: str
    active_s: float

    @property
    def is_busy(self) -> bool: ...
    @property
    def is_open(self) -> bool: ...
    def close(self, problem: str, cause: str = "") -> None: ...


class Crowding:
    """`count_of` returns how many connections an address has. `every` returns all connections."""

    def __init__(
        self,
        every: Callable[[], Iterable[Idle]],
        count_of: Callable[[str], int],
        clock_s: Callable[[], float],
    ) -> None:
        self._every = every
        self._count_of = count_of
        self._clock_s = clock_s
        self._found: deque[Idle] = deque()
        self._searched_s = -SEARCH_EVERY_S

    def make_room(self, ip: str) -> bool:
        """Ends one connection for a new one of `ip`; returns False if none has to give way."""
        now_s = self._clock_s()
        if not self._found and now_s - self._searched_s >= SEARCH_EVERY_S:
            self._searched_s = now_s
            self._search(now_s)
        while self._found:
            idle = self._found[0]
            if self._is_idle(idle, now_s):
                if self._count_of(idle.ip) <= self._count_of(ip) + 1:
                    return False
                self._found.popleft()
                idle.close("idle, and all connections are taken: its address has the most of them", "crowded")
                return True
            self._found.popleft()
        return False

    def _search(self, now_s: float) -> None:
        idle = (each for each in self._every() if self._is_idle(each, now_s))
        self._found.extend(
            heapq.nsmallest(FOUND_MAX, idle, key=lambda each: (-self._count_of(each.ip), each.active_s))
        )

    def _is_idle(self, each: Idle, now_s: float) -> bool:
        return each.is_open and not each.is_busy and now_s - each.active_s >= IDLE_MIN_S
