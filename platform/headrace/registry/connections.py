"""Bounds what clients can hold of the registry: connections, and time for half a request.

uvicorn by itself waits for ever for the rest of a request, and for a client to read its response.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1_000
CONNECTIONS_OF_ADDRESS_MAX: Final = 500
REQUEST_MAX_S: Final = 10.0
"""From a connection's start, or a request's first byte, until the whole request is here."""
RESPONSE_MAX_S: Final = 60.0
"""From then until the client has taken the response: longer than any request waits."""
LOG_PAUSE_S: Final = 10.0

_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/vnd.schemaregistry.v1+json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)


class Connections:
    """Counts the open connections of all protocols that it makes."""

    def __init__(
        self, *, request_max_s: float = REQUEST_MAX_S, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self.request_max_s = request_max_s
        self.connections_max = connections_max
        self.by_address: Counter[str] = Counter()
        self._logged = -LOG_PAUSE_S

    def admits(self, address: str) -> str | None:
        """Counts one more connection; returns why it is refused, None if it is not."""
        if self.by_address.total() >= self.connections_max:
            problem = f"the registry has {self.connections_max} connections, its maximum"
        elif self.by_address[address] >= CONNECTIONS_OF_ADDRESS_MAX:
            problem = f"{address} has {CONNECTIONS_OF_ADDRESS_MAX} connections, the maximum of one address"
        else:
            self.by_address[address] += 1
            return None
        if time.monotonic() - self._logged >= LOG_PAUSE_S:
            self._logged = time.monotonic()
            logger.warning("a connection was refused: %s", problem)
        return problem

    def left(self, address: str) -> None:
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]

    def protocol(self, *args: Any, **kwargs: Any) -> "BoundedProtocol":
        """For `uvicorn.Config(http=…)`."""
        protocol = BoundedProtocol(*args, **kwargs)
        protocol.shared = self
        return protocol


class BoundedProtocol(H11Protocol):
    """One connection, with a deadline at every moment but between two requests (uvicorn's keep-alive)."""

    shared: Connections
    _deadline: asyncio.TimerHandle | None = None
    _address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        problem = self.shared.admits(address)
        if problem is not None:
            body = b'{"error_code": 503, "message": "%s; retry later"}' % problem.encode("ascii", "replace")
            transport.write(_REFUSAL % (len(body), body))
            transport.close()
            return
        self._address = address
        self._end_after(self.shared.request_max_s)

    def data_received(self, data: bytes) -> None:
        if self._address is None:
            return  # refused; what it still sends is of no interest
        was_idle = self._deadline is None
        super().data_received(data)
        if was_idle and not self.transport.is_closing() and self._deadline is None:
            self._end_after(self.shared.request_max_s)
        self._once_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_after(None)
        if self._address is not None:
            self.shared.left(self._address)
            self._address = None

    def on_response_complete(self) -> None:
        self._end_after(None)
        super().on_response_complete()
        if self.conn.their_state is not None and self.cycle is not None and not self.cycle.response_complete:
            # A pipelined request was complete already.
            self._end_after(RESPONSE_MAX_S)

    def _once_complete(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._end_after(RESPONSE_MAX_S)

    def _end_after(self, wait_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if wait_s is not None:
            self._deadline = self.loop.call_later(wait_s, self._end)

    def _end(self) -> None:
        self._deadline = None
        self.transport.abort()
