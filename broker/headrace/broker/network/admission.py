"""Which new connections are served: how many at once, from one address, and a second. Knows no sockets.

Also owns how many log lines connections may cause, since every stranger who can connect causes some.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from headrace.broker.network.connection_limits import ConnectionLimits

logger = logging.getLogger(__name__)

LINES_MAX: Final = 50  # of one kind, in each period
LINES_PERIOD_S: Final = 10.0


class LineLimiter:
    """Writes log lines, at most `LINES_MAX` of a kind in each period; the next one says how many were left
    out. Kinds are few and fixed.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._period_s = -LINES_PERIOD_S
        self._written: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def log(self, kind: str, level: int, message: str, *arguments: object) -> None:
        now_s = self._clock_s()
        if now_s - self._period_s >= LINES_PERIOD_S:
            self._period_s = now_s
            self._written.clear()
        if self._written[kind] >= LINES_MAX:
            self._left_out[kind] += 1
            return
        self._written[kind] += 1
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            logger.log(level, "%d further lines about %s connections were left out", left_out, kind)
        logger.log(level, message, *arguments)


class Admission:
    """Counts connections. `wait_s` says when the next may be accepted, `admit` whether it is served."""

    def __init__(self, limits: ConnectionLimits, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock_s = clock_s
        self.open_count = 0
        self.accepted_count = 0
        self.refused: Counter[str] = Counter()  # by the setting that refused
        self._by_ip: dict[str, int] = {}
        self._tokens = float(limits.connections_per_second_max)  # connections that may be accepted now
        self._refilled_s = clock_s()

    def wait_s(self) -> float:
        """Returns how long accepting must pause for `max.connection.creation.rate`; 0.0: accept now."""
        rate = self._limits.connections_per_second_max
        now_s = self._clock_s()
        self._tokens = min(float(rate), self._tokens + (now_s - self._refilled_s) * rate)
        self._refilled_s = now_s
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / rate

    def count_of(self, ip: str) -> int:
        """Returns how many connections an address has."""
        return self._by_ip.get(ip, 0)

    def admit(self, ip: str, make_room: Callable[[str], bool] = lambda _: False) -> str:
        """Counts a new connection; returns "" or, if it must be refused, why. Call `leave` when it closes.

        `make_room` is called if as many as possible are open; it may end one, and then returns True.
        """
        self._tokens -= 1
        limits = self._limits
        of_ip = self._by_ip.get(ip, 0)
        ip_max = limits.connections_per_ip_overrides.get(ip, limits.connections_per_ip_max)
        if of_ip >= ip_max:
            self.refused["max.connections.per.ip"] += 1
            return f"max.connections.per.ip={ip_max} are open from {ip}"
        if self.open_count >= limits.connections_max and not make_room(ip):
            self.refused["max.connections"] += 1
            return f"max.connections={limits.connections_max} are open"
        self.open_count += 1
        self.accepted_count += 1
        self._by_ip[ip] = of_ip + 1
        return ""

    def leave(self, ip: str) -> None:
        """Records that an admitted connection has closed."""
        self.open_count -= 1
        left = self._by_ip.pop(ip) - 1
        if left:
            self._by_ip[ip] = left
