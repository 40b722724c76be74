"""Simulated sockets: what the product's own clients use of the operating system's.

A stream stays whole and in its order, as TCP keeps it: what is sent into a cut link arrives once that is
healed, if neither end has given up before. Other simulated clients lose such a request (`sim_network`).
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from headrace.client.resolving import Target
from headrace.client.sockets import SILENCE_MAX_S
from simulation.sim_clock import Life
from simulation.sim_network import Host, Network, ServerEnd

AGAIN_MS: Final = (200.0, 800.0)
"""How long a kernel waits before it sends again what nobody acknowledged."""
CONNECTED: Final = 0


class SimSelector(selectors.BaseSelector):
    """Which sockets are ready now. It never waits: `wait_s` tells how long the caller wanted to."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.wait_s = 0.0
        self.had_events = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.wait_s = timeout or 0.0
        events = [
            (key, mask)
            for key in self._keys.values()
            if isinstance(key.fileobj, SimSocket) and (mask := key.fileobj.readiness & key.events)
        ]
        self.had_events = bool(events)
        return events


class _Way:
    """One direction of a stream: bytes that were sent, in order, until they have arrived."""

    def __init__(
        self, network: Network, ends: tuple[str, str], life: Life, arrive: Callable[[bytes], None]
    ) -> None:
        self._network = network
        self._ends = ends
        self._life = life
        self._arrive = arrive
        self._unsent: deque[bytes] = deque()
        self._arrives_ms = 0.0
        self.silent_since_ms: float | None = None
        """Since when nothing was acknowledged."""

    def send(self, data: bytes) -> None:
        self._unsent.append(data)
        if len(self._unsent) == 1:
            self._pump()

    def _pump(self) -> None:
        clock = self._network.clock
        if self._network.is_cut(*self._ends):
            self.silent_since_ms = clock.now_ms if self.silent_since_ms is None else self.silent_since_ms
            if clock.now_ms - self.silent_since_ms < SILENCE_MAX_S * 1000:
                clock.after(clock.between(*AGAIN_MS), self._life, self._pump)
            return
        self.silent_since_ms = None
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._arrives_ms = max(self._arrives_ms, clock.now_ms + self._network.delay_ms())
        clock.after(self._arrives_ms - clock.now_ms, self._life, partial(self._arrive, data))


class SimSocket:
    """A client's TCP socket to a simulated broker."""

    def __init__(self, sockets: SimSockets, network: Network, name: str, life: Life, broker: int) -> None:
        self._sockets = sockets
        self._network = network
        self._name = name
        self._life = life
        self._broker = broker
        self._error: int | None = None
        """None while it connects; then `CONNECTED`, or what went wrong."""
        self._received = bytearray()
        self._is_closed = False
        self._server: ServerEnd | None = None
        self._to_server: _Way | None = None
        self.number = 0

    # --- what the product calls ---

    def connect(self, _: Any) -> None:
        self._later(self._network.delay_ms(), self._connect)
        raise BlockingIOError(errno.EINPROGRESS, "connecting")

    def getsockopt(self, level: int, name: int) -> int:
        assert (level, name) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self._error or CONNECTED

    def sendmsg(self, pieces: Iterable[memoryview]) -> int:
        self._check()
        assert self._to_server is not None
        data = b"".join(pieces)
        self._sockets.sends(data)
        self._to_server.send(data)
        return len(data)

    def recv(self, size_bytes: int) -> bytes:
        self._check()
        if not self._received:
            raise BlockingIOError(errno.EAGAIN, "nothing was received")
        data = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        self._sockets.heard = self._broker
        return data

    def recv_into(self, target: memoryview) -> int:
        data = self.recv(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close_later(self._network.delay_ms())

    # --- what happens to it ---

    @property
    def readiness(self) -> int:
        """The selector's events."""
        if self._error is None:
            return 0
        readable = self._error or self._received
        return selectors.EVENT_WRITE | (selectors.EVENT_READ if readable else 0)

    def reset(self) -> None:
        """The other end says that there is no such connection."""
        if not self._network.is_cut(str(self._broker), self._name):
            self._later(self._network.delay_ms(), partial(self._fail, errno.ECONNRESET))

    def _check(self) -> None:
        """Raises `OSError`."""
        if self._error:
            raise OSError(self._error, "")

    def _later(self, delay_ms: float, call: Callable[[], None]) -> None:
        def due() -> None:
            if not self._is_closed:
                call()

        self._network.clock.after(delay_ms, self._life, due)

    def _connect(self) -> None:
        ways = (self._name, str(self._broker)), (str(self._broker), self._name)
        if any(self._network.is_cut(*way) for way in ways):
            self._later(self._network.clock.between(*AGAIN_MS), self._connect)
            return
        host = self._network.hosts.get(self._broker)
        if host is None or host.life.is_dead:
            self._fail(errno.ECONNREFUSED)
            return
        self._error = CONNECTED
        self.number = self._network.connected(self, host)
        to_client = _Way(self._network, ways[1], self._life, self._arrived)
        self._server = ServerEnd(
            host, self._network.clock, self._name, to_client.send, lambda _: self._server_closes()
        )
        self._to_server = _Way(self._network, ways[0], self._life, partial(self._at_server, host))
        self._sockets.changed()

    def _server_closes(self) -> None:
        assert self._server is not None
        self._server.close_later(0.0)
        self.reset()

    def _at_server(self, host: Host, data: bytes) -> None:
        if host.life.is_dead:
            if self._broker in self._network.hosts:
                self.reset()  # the host is back, and knows nothing of this connection
            return
        assert self._server is not None
        arrive = partial(host.wake, partial(self._server.arrive, data))
        self._network.clock.after(0.0, host.life, arrive)

    def _arrived(self, data: bytes) -> None:
        if not self._is_closed:
            self._received += data
            self._sockets.changed()

    def _fail(self, number: int) -> None:
        self._error = number
        self._sockets.changed()


class SimSockets:
    """Opens a client's sockets. `changed` is called when one is ready for something. `heard`: whose bytes the
    client received last. `sends` is called with what is sent, just before that.
    """

    def __init__(self, network: Network, name: str, life: Life, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.heard = 0
        self.sends: Callable[[bytes], None] = lambda _: None
        self._network = network
        self._name = name
        self._life = life

    def open(self, target: Target) -> SimSocket:
        """`client.connection.open_socket` of this client: brokers have the addresses 10.0.0.1 and so on."""
        broker = int(target[-1][0].rpartition(".")[2])
        return SimSocket(self, self._network, self._name, self._life, broker)
