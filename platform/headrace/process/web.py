"""HTTP servers that half requests cannot hold up: bounds for uvicorn on connections and on a request's time.

Owns `bounded_http`, the protocol class for `uvicorn.Config(http=…)`. uvicorn itself waits for ever for the
rest of a request, and its `limit_concurrency` counts such connections: a few would lock everybody out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 200
REQUEST_WAIT_MAX_S: Final = 15.0
"""From a request's first byte, or from the connection's start, to the end of its body."""
RESPONSE_WAIT_MAX_S: Final = 660.0
"""From then until the client has taken the response: longer than any request waits."""
LOG_PAUSE_S: Final = 10.0

Headers = Iterable[tuple[bytes, bytes]]
IsKnown = Callable[[Headers], bool]

logger = logging.getLogger(__name__)


class ConnectionTable:
    """The open connections of a server, oldest first. Beyond `connections_max` one has to go: the oldest that
    waits for the rest of its request, else the oldest of a stranger, else the new one."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._open: dict[BoundedHttp, None] = {}
        self._logged_s = -LOG_PAUSE_S

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: BoundedHttp) -> None:
        self._open[connection] = None
        if len(self._open) > self._connections_max:
            victim = self._to_cut_off(connection)
            if time.monotonic() - self._logged_s >= LOG_PAUSE_S:
                self._logged_s = time.monotonic()
                logger.warning(
                    "%d connections, the maximum: %s is cut off", self._connections_max, victim.client
                )
            victim.cut_off()

    def _to_cut_off(self, newest: BoundedHttp) -> BoundedHttp:
        waiting = (each for each in self._open if each.awaits_request and each is not newest)
        strangers = (each for each in self._open if each.is_strangers and each is not newest)
        return next(waiting, None) or next(strangers, newest)

    def remove(self, connection: BoundedHttp) -> None:
        self._open.pop(connection, None)


class BoundedHttp(H11Protocol):
    """One connection. Subclasses, which `bounded_http` makes, have the server's table and deadline."""

    table: ConnectionTable
    request_wait_max_s: float
    response_wait_max_s: float
    knows: IsKnown

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def awaits_request(self) -> bool:
        """Whether a part of a request is still to come; true also between two requests."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    @property
    def is_strangers(self) -> bool:
        """Whether its present request comes from somebody whom the server does not know."""
        return not type(self).knows(self.headers)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_after(self.request_wait_max_s)
        self.table.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._end_after(self.request_wait_max_s)
        super().data_received(data)
        if not self.awaits_request:
            self._end_after(self.response_wait_max_s)

    def on_response_complete(self) -> None:
        self._end_after(None)
        super().on_response_complete()
        if self.cycle is not None and not self.awaits_request:
            self._end_after(self.response_wait_max_s)  # the next request was here already

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_after(None)
        self.table.remove(self)
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """Ends the connection without an answer."""
        self.table.remove(self)
        self.transport.abort()

    def _end_after(self, wait_s: float | None) -> None:
        """Ends the connection after this time. None: between two requests uvicorn's keep-alive does it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if wait_s is None else self.loop.call_later(wait_s, self.cut_off)


def bounded_http(
    connections_max: int = CONNECTIONS_MAX,
    request_wait_max_s: float = REQUEST_WAIT_MAX_S,
    response_wait_max_s: float = RESPONSE_WAIT_MAX_S,
    knows: IsKnown = lambda _: True,
) -> type[BoundedHttp]:
    """Returns the protocol class of one server. `knows`: whether a request with these headers (names in lower
    case) comes from a known client, whose requests are not cut off."""
    fields = {
        "table": ConnectionTable(connections_max),
        "request_wait_max_s": request_wait_max_s,
        "response_wait_max_s": response_wait_max_s,
        "knows": staticmethod(knows),
    }
    return type("BoundedHttp", (BoundedHttp,), fields)
