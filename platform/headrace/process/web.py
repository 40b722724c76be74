"""HTTP servers that half requests cannot hold up: bounds for uvicorn on connections and on a request's time.

Owns `bounded_http` and `bounded_https`, for `uvicorn.Config(http=…)`. uvicorn itself waits for ever for the
rest of a request, and its `limit_concurrency` counts such connections: a few would lock everybody out. With
uvicorn's own TLS a connection would be unknown here until its handshake is complete, for which asyncio waits
a minute.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 200
REQUEST_WAIT_MAX_S: Final = 15.0
"""From a request's first byte, or from the connection's start, to the end of its body."""
TLS_HANDSHAKE_MAX_S: Final = 10.0
"""From the connection's start to the end of its TLS handshake."""
RESPONSE_WAIT_MAX_S: Final = 660.0
"""From then until the client has taken the response: longer than any request waits."""
KEEP_ALIVE_S: Final = 60
"""A connection without a request is closed after that time. uvicorn's own 5 s is also the time for which
clients such as httpx keep one: a request that crosses with the end of its connection gets no answer."""
LOG_PAUSE_S: Final = 10.0

Headers = Iterable[tuple[bytes, bytes]]
IsKnown = Callable[[Headers], bool]

logger = logging.getLogger(__name__)


class Bounded(Protocol):
    """What `ConnectionTable` has to know of a connection."""

    @property
    def awaits_request(self) -> bool:
        """Whether a part of a request, or of the handshake before it, is still to come."""

    @property
    def is_strangers(self) -> bool:
        """Whether nobody knows who sends the present request, or has sent the last one."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The other end."""

    def cut_off(self) -> None:
        """Ends the connection without an answer."""


class ConnectionTable:
    """The open connections of a server, oldest first. Beyond `connections_max` one has to go: the oldest that
    waits for the rest of its handshake or request, a stranger's before one that a known client keeps for its
    next request; else the oldest of a stranger, else the new one."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._open: dict[Bounded, None] = {}
        self._logged_s = -LOG_PAUSE_S

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Bounded) -> None:
        self._open[connection] = None
        if len(self._open) > self._connections_max:
            victim = self._to_cut_off(connection)
            if time.monotonic() - self._logged_s >= LOG_PAUSE_S:
                self._logged_s = time.monotonic()
                logger.warning(
                    "%d connections, the maximum: %s is cut off", self._connections_max, victim.client
                )
            victim.cut_off()

    def _to_cut_off(self, newest: Bounded) -> Bounded:
        others = [each for each in self._open if each is not newest]
        waiting = [each for each in others if each.awaits_request]
        strangers = (each for each in others if each.is_strangers)
        strangers_waiting = (each for each in waiting if each.is_strangers)
        return next(strangers_waiting, None) or next(iter(waiting), None) or next(strangers, newest)

    def remove(self, connection: Bounded) -> None:
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
        """Whether its present or last request comes from somebody whom the server does not know."""
        return not self.headers or not type(self).knows(self.headers)  # none before the first request

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


class TlsHandshake(asyncio.Protocol):
    """One connection until its TLS handshake is complete; `http` takes it over then."""

    is_strangers = True
    awaits_request = True

    def __init__(self, http: BoundedHttp, context: ssl.SSLContext, wait_max_s: float) -> None:
        self.client: tuple[str, int] | None = None
        self._http = http
        self._context = context
        self._wait_max_s = wait_max_s
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None
        self._received = (
            bytearray()
        )  # what came with the end of the handshake: at most one buffer of asyncio's
        self._is_lost = self._is_handed_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.pause_reading()  # what comes first is for TLS alone
        name = transport.get_extra_info("peername")
        self.client = (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
        self._transport = transport
        self._shaking = asyncio.get_running_loop().create_task(self._shake(transport))
        self._http.table.add(self)

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._wait_max_s
        try:
            secured = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=wait_s
            )
        except OSError:
            self.cut_off()  # it does not speak TLS, was too slow, or has gone
            return
        self._http.table.remove(self)
        if self._is_lost or secured is None:
            return
        self._is_handed_over = True
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        if self._received:
            self._http.data_received(bytes(self._received))

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._is_handed_over:
            self._http.connection_lost(exc)  # it was on its way when `http` took over

    def cut_off(self) -> None:
        """Ends the connection without an answer."""
        self._http.table.remove(self)
        if self._shaking is not None and self._transport is not None:
            self._shaking.cancel()
            self._transport.abort()


def bounded_https(
    http: type[BoundedHttp],
    context: Callable[[], ssl.SSLContext],
    handshake_max_s: float = TLS_HANDSHAKE_MAX_S,
) -> type[asyncio.Protocol]:
    """Returns the protocol class of a server that speaks TLS itself, so `uvicorn.Config` has none. `http`: of
    `bounded_http`; half handshakes count among its connections. `context` is asked for each connection's.
    """

    class BoundedHttps(TlsHandshake):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(http(*arguments, **options), context(), handshake_max_s)

    return BoundedHttps
