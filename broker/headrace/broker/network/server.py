"""The broker's listeners and connections together: binding, idle connections, and how all end."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.core import Service
from headrace.broker.loop import EventLoop
from headrace.broker.network.connection_limits import ConnectionLimits
from headrace.broker.network.connections import Connections
from headrace.broker.network.listening import Listener

IDLE_CHECK_MAX_MS: Final = 10_000
RECENT_S: Final = 1.0  # a connection silent for longer has nothing in flight when the broker stops


class Server:
    """Called on the loop's thread, except `status`."""

    def __init__(self, loop: EventLoop, limits: ConnectionLimits) -> None:
        self.connections = Connections(loop, limits)
        self._listeners: list[Listener] = []
        loop.every(min(IDLE_CHECK_MAX_MS, limits.idle_max_s * 1000), self.connections.close_idle)

    def bind(self, host: str, port: int, service: Service) -> Listener:
        """Binds an address; its clients are served once the listener is started. Raises `OSError`."""
        listener = Listener(self.connections, host, port, service)
        self._listeners.append(listener)
        return listener

    @property
    def is_empty(self) -> bool:
        return not self.connections.by_fd

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def send_all(self) -> None:
        """Sends the responses of all connections that have some."""
        self.connections.send_all()

    def stop_serving(self) -> None:
        """Discards what arrives from now on; requests taken before are still answered."""
        self.connections.serves = False
        for transport in list(self.connections.by_fd.values()):
            transport.update_interest()

    def end_connections(self) -> None:
        """Shuts every connection down after its last response; it closes when its client has closed.

        If it closed at once with requests unread, the kernel would send a reset, which may overtake the last
        responses. The loop must run until `is_empty`, or the caller's wait is over.
        """
        recent_s = self.connections.clock_s() - RECENT_S
        for transport in list(self.connections.by_fd.values()):
            if transport.active_s < recent_s and not transport.is_busy:
                transport.close("")
            else:
                transport.end()

    def close(self) -> None:
        self.stop_accepting()
        for transport in list(self.connections.by_fd.values()):
            transport.close("the broker stops")

    def status(self) -> dict[str, Any]:
        """Returns figures for the status page. Any thread."""
        connections = self.connections
        admission = connections.admission
        limits = connections.limits
        return {
            "open": admission.open_count,
            "max": limits.connections_max,
            "accepted": admission.accepted_count,
            "refused": dict(admission.refused.copy()),
            "accept_failures": connections.accept_failure_count,
            "creation_rate_pauses": connections.rate_pause_count,
            "closed_by_broker": dict(connections.closed.copy()),
            "receiving_bytes": connections.bound.reserved_bytes,
            "passed_on_bytes": connections.bound.passed_on_bytes,
            "receiving_max_bytes": limits.receiving_max_bytes,
            "partial_requests": len(connections.bound.partials),
            "waiting_for_room": len(connections.bound.starved),
            "unsent_bytes": connections.unsent_bytes,
            "unsent_max_bytes": limits.unsent_max_bytes,
        }
