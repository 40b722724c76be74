"""Looks up the names of brokers' hosts, so that a name server that does not answer holds up no other broker.

Owns one thread for each name that is being looked up; an IP address needs none. Knows no connections.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from headrace.client.cluster import BrokerAddress
from headrace.process.background import in_background

Target = tuple[int, int, int, str, Any]
"""What `socket.getaddrinfo` returns of one IP address: family, type, protocol, name, socket address."""
LookUp = Callable[[BrokerAddress], list[Target]]


def look_up(address: BrokerAddress) -> list[Target]:
    """Asks the system's resolver, which may wait for name servers. Raises `OSError`."""
    try:
        return list(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError(f"no host has this name: {error}") from None


class Resolver:
    """`wake` is called, in another thread, whenever a lookup has ended. All else is for one thread."""

    def __init__(self, wake: Callable[[], None], find: LookUp | None = None) -> None:
        self._wake = wake
        self._find = find or look_up
        self._lock = threading.Lock()
        self._found: dict[BrokerAddress, list[Target] | OSError] = {}
        self._pending: set[BrokerAddress] = set()

    def targets(self, address: BrokerAddress) -> list[Target] | None:
        """Returns where a broker's connections may go; None while its name is looked up: call again.

        A result is returned once. The next call looks the name up again, as it may have moved. Raises
        `OSError` for a name that means nothing.
        """
        with self._lock:
            if address in self._pending:
                return None
            known = self._found.pop(address, None)
        if isinstance(known, OSError):
            raise known
        if known is not None:
            return known
        if (numeric := _of_ip_address(address)) is not None:
            return numeric
        self._pending.add(address)
        in_background(lambda: self._look_up(address), name=f"lookup-{address.host}")
        return None

    def is_looking_up(self, address: BrokerAddress) -> bool:
        return address in self._pending

    def _look_up(self, address: BrokerAddress) -> None:
        found: list[Target] | OSError
        try:
            found = self._find(address)
        except OSError as error:
            found = error
        with self._lock:
            self._found[address] = found
            self._pending.discard(address)
        self._wake()


def _of_ip_address(address: BrokerAddress) -> list[Target] | None:
    """Returns the target of an IP address; None for a name. Asks nobody."""
    try:
        return list(socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return None
