"""Addresses of host names, found off the event loop: a name server that does not respond holds nobody up.

Owns a short cache and the threads that ask. IP addresses are returned at once.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Final

from headrace.broker.loop import EventLoop
from headrace.broker.workers import Workers

logger = logging.getLogger(__name__)

THREADS: Final = 2  # one name that nobody answers for does not hold all others up
CACHE_S: Final = 30.0
NAMES_MAX: Final = 1000  # brokers are fewer

Resolve = Callable[[str], str]
Found = Callable[[str | None, str], None]
"""Called with the address and "", or with None and the problem."""


def look_up(host: str) -> str:
    """Returns an address of a host name. Blocks; raises `OSError`."""
    address: str = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[assignment]
    return address


class Names:
    """Called on the loop's thread; `resolve` runs on others."""

    def __init__(self, loop: EventLoop, clock_s: Callable[[], float], resolve: Resolve = look_up) -> None:
        self._loop = loop
        self._clock_s = clock_s
        self._resolve = resolve
        self._workers: Workers | None = None
        self._known: dict[str, tuple[float, str]] = {}  # with the time until which it holds
        self._asked: dict[str, list[Found]] = {}

    def known(self, host: str) -> str | None:
        """Returns the address if `host` is one, or if it was found lately."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            until_s, address = self._known.get(host, (0.0, ""))
            return address if address and self._clock_s() < until_s else None

    def find(self, host: str, found: Found) -> None:
        """Calls `found` later. Several callers for one name share one question."""
        waiting = self._asked.get(host)
        if waiting is not None:
            waiting.append(found)
            return
        self._asked[host] = [found]
        if self._workers is None:
            self._workers = Workers("names", self._loop.post, THREADS)
        self._workers.submit(
            lambda: self._resolve(host), lambda address, error: self._answer(host, address, error)
        )

    def _answer(self, host: str, address: str | None, error: Exception | None) -> None:
        if address is not None:
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            self._known[host] = (self._clock_s() + CACHE_S, address)
        problem = "" if error is None else f"{host} cannot be resolved: {error}"
        for found in self._asked.pop(host):
            try:
                found(address, problem)
            except Exception:
                logger.exception("connecting to %s failed", host)
