"""Whom a client asks for metadata: another broker each time, if several can be reached.

A broker that is cut off from ZooKeeper answers, too, and tells for ever what was so before. Knows
connections, opens none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.client.cluster import BrokerAddress
from headrace.client.connection import BrokerConnection, ConnectionState

PATIENCE_S: Final = 1.0
"""How long only one broker is tried. The kernel of a hung broker accepts connections, but nothing answers."""

Connections = Mapping[int, BrokerConnection]


def most_idle(connections: Connections, now_s: float, unlike: BrokerAddress | None = None) -> int | None:
    """Returns the ready broker with the fewest requests in flight, at another address than `unlike`; one that
    has not answered for `PATIENCE_S` comes last. None if there is none.
    """
    ranks = [
        (connection.is_silent(now_s - PATIENCE_S), connection.in_flight_count, node_id)
        for node_id, connection in connections.items()
        if connection.state is ConnectionState.READY and connection.address != unlike
    ]
    return min(ranks)[2] if ranks else None


class Informants:
    """Remembers who was asked last."""

    def __init__(self) -> None:
        self._last: BrokerAddress | None = None

    def next(
        self,
        connections: Connections,
        addresses: Mapping[int, BrokerAddress],
        now_s: float,
        *,
        connect: Callable[[int], object] | None,
    ) -> int | None:
        """Returns a ready broker. If only the one that was asked last is, calls `connect` with another; None:
        its answer was no worse than others would be.
        """
        other = most_idle(connections, now_s, self._last)
        if other is None or connections[other].is_silent(now_s - PATIENCE_S):
            other = most_idle(connections, now_s)
            if self._last is not None and connect is not None:
                known = {connection.address for connection in connections.values()}
                for node_id in [each for each, address in addresses.items() if address not in known]:
                    connect(node_id)
                    if node_id in connections:
                        break  # unless it has to wait: it was tried a moment ago
        if other is not None:
            self._last = connections[other].address
        return other
