"""The IP addresses of brokers' fronts. A broker that listens on all addresses of its machine is reached at
the name that it advertises, and a running HAProxy takes no names.

Owns the lookups: one at a time for each name, each on a thread of its own, which holds nothing else up. What
a name meant last is used while a lookup fails: that of a container may be gone before its connections are.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.balancer.backends import Backend
from headrace.process.background import in_background

logger = logging.getLogger(__name__)

LOOK_UP_INTERVAL_S: Final = 5.0
"""A broker that comes back in another container has another address."""
LOOK_UP_WAIT_MAX_S: Final = 2.0
"""For a name that is not known yet; a round of the balancer waits."""

LookUp = Callable[[str], list[str]]


def look_up(host: str) -> list[str]:
    """Returns the host's addresses, those of IPv4 first. Raises `OSError`."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"no host has this name: {error}") from None
    return [str(each[4][0]) for each in sorted(found, key=lambda each: each[0] != socket.AF_INET)]


class _Name:
    """One host: `ip` is None while its name means nothing, for the reason that `problem` has."""

    def __init__(self, host: str, find: LookUp) -> None:
        self.host = host
        self.ip: str | None = host if _is_ip(host) else None
        self.problem = ""
        self._find = find
        self._is_name = self.ip is None
        self._pending: Future[list[str]] | None = None
        self._next_s = 0.0

    async def look(self) -> None:
        """Looks the name up if it is time. Waits for the answer only if there was none before."""
        if not self._is_name:
            return
        if self._pending is None and time.monotonic() >= self._next_s:
            self._pending = in_background(partial(self._find, self.host), f"lookup-{self.host}")
        if self._pending is None:
            return
        if self.ip is None:
            await asyncio.wait([asyncio.wrap_future(self._pending)], timeout=LOOK_UP_WAIT_MAX_S)
        if self._pending.done():
            self._take(self._pending)
            self._pending = None
            self._next_s = time.monotonic() + (0.0 if self.ip is None else LOOK_UP_INTERVAL_S)
        elif self.ip is None:
            self._note(f"no name server has answered for {LOOK_UP_WAIT_MAX_S:g} s")

    def _take(self, answer: Future[list[str]]) -> None:
        try:
            found = answer.result()
        except OSError as error:
            self._note(error.strerror or str(error))
            return
        self.problem = ""
        # Several addresses come in any order, and one that serves is not left for another one.
        if found and self.ip not in found:
            self.ip = found[0]

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            last = "" if self.ip is None else f"; its last address, {self.ip}, is used"
            logger.warning("%s cannot be looked up: %s%s", self.host, problem, last)
        self.problem = problem


class FrontNames:
    """Turns the hosts of backends into addresses. Called on one loop, one call at a time."""

    def __init__(self, find: LookUp = look_up) -> None:
        self._find = find
        self._names: dict[str, _Name] = {}

    async def resolved(self, backends: Iterable[Backend]) -> tuple[Backend, ...]:
        """Returns the backends with IP addresses, without those whose names mean nothing (`problem_of`)."""
        backends = tuple(backends)
        hosts = dict.fromkeys(backend.address[0] for backend in backends)
        self._names = {host: self._names.get(host) or _Name(host, self._find) for host in hosts}
        await asyncio.gather(*(name.look() for name in self._names.values()))
        found = ((backend, self._names[backend.address[0]].ip) for backend in backends)
        return tuple(
            replace(backend, address=(ip, backend.address[1])) for backend, ip in found if ip is not None
        )

    def problem_of(self, host: str) -> str:
        """Why the name meant nothing when it was looked up last; "" if it meant something."""
        name = self._names.get(host)
        return "" if name is None or not name.problem else f"{host}: {name.problem}"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
