"""Whose turn it is: hosts take turns, and on each host its connections.

Owns the order alone. However much a client has waiting, another host waits for one item of it at most.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits, by client ("host:port")."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, deque[T]]] = {}  # the next one first, as are a host's connections

    def put(self, client: str, item: T) -> None:
        """Puts an item behind the others of its client."""
        self._hosts.setdefault(host_of(client), {}).setdefault(client, deque()).append(item)

    def take(self) -> T | None:
        """Removes and returns the next one; None if nothing waits."""
        host = next(iter(self._hosts), None)
        if host is None:
            return None
        clients = self._hosts.pop(host)
        client = next(iter(clients))
        waiting = clients.pop(client)
        item = waiting.popleft()
        if waiting:
            clients[client] = waiting
        if clients:
            self._hosts[host] = clients
        return item


def host_of(client: str) -> str:
    """Returns the host of a client ("host:port")."""
    return client.rpartition(":")[0]
