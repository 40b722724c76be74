"""A broker's transport without a broker: real sockets on an event loop that a test turns, with its own clock.

Fixture: `transport_server`, a factory: `server = transport_server(receiving_max_bytes=65536)`. Its service
answers each request with the request's first bytes, at once or, with `answers_at_once=False`, on demand;
`service`, a function of the loop, makes another one.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from headrace.broker.core import ClientConnection, Service, Slot
from headrace.broker.loop import EventLoop
from headrace.broker.network.connection_limits import ConnectionLimits
from headrace.broker.network.connections import Connections
from headrace.broker.network.listening import Listener
from headrace.broker.settings.config import BrokerConfig

WAIT_MAX_S: Final = 60.0


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Echo:
    """Answers each frame with its first 8 bytes; `is_slow` requests take the connection's turn."""

    def __init__(self, *, at_once: bool, is_slow: bool) -> None:
        self.at_once = at_once
        self.is_slow = is_slow
        self.slots: list[tuple[Slot, bytes]] = []
        self.count = 0
        self.fails_on = b"\xff never"

    def check_size(self, api_key: int, size_bytes: int) -> None:
        """Any size is right."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        self.count += 1
        if self.is_slow:
            connection.turn_left -= 1
        head = bytes(frame[:8])
        if head == self.fails_on:
            raise KeyError("a defect that this client meets")
        slot = connection.open_slot()
        self.slots.append((slot, head))
        if self.at_once:
            self.answer_all()

    def answer_all(self) -> None:
        slots, self.slots = self.slots, []
        for slot, head in slots:
            slot.fill((head,))


class TransportServer:
    """Everything that a broker's connections share, on one listener."""

    def __init__(
        self,
        *,
        answers_at_once: bool = True,
        is_slow: bool = False,
        service: Callable[[EventLoop], Service] | None = None,
        **limits: Any,
    ) -> None:
        self.now_s = 1_000.0
        self.loop = EventLoop(lambda: self.now_s)
        self.limits = replace(ConnectionLimits.of(BrokerConfig().__getitem__), **limits)
        self.connections = Connections(self.loop, self.limits, lambda: self.now_s)
        self.service = Echo(at_once=answers_at_once, is_slow=is_slow)
        served: Service = self.service if service is None else service(self.loop)
        self.listener = Listener(self.connections, "127.0.0.1", 0, served)
        self.listener.start()
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A client that the server has accepted, or refused. It does not block."""
        client = socket.create_connection(self.listener.address)
        client.setblocking(False)
        self.clients.append(client)
        self.turn()
        return client

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.turn(0)

    def turn_until(self, condition: Callable[[], object], what: str = "") -> None:
        deadline_s = time.monotonic() + WAIT_MAX_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited too long: {what}"
            self.loop.turn(0.001)

    def settle(self) -> None:
        """Turns the loop until nothing has happened for some rounds. The kernel may still be on its way with
        what a client did: each round waits a moment for it.
        """
        for _ in range(10):
            self.loop.turn(0.001)

    def pass_time(self, seconds: float) -> None:
        """Lets the test's clock run, in steps, as the broker's timers expect."""
        for _ in range(int(seconds / 0.25) + 1):
            self.now_s += 0.25
            self.turn(2)

    def send(self, client: socket.socket, data: bytes) -> None:
        """Sends all of it while the server reads; fails if the server stops reading for good."""
        view = memoryview(data)
        deadline_s = time.monotonic() + WAIT_MAX_S
        while view:
            assert time.monotonic() < deadline_s, f"{len(view)} bytes were not read"
            try:
                view = view[client.send(view) :]
            except BlockingIOError:
                self.turn()

    def send_what_fits(self, client: socket.socket, data: bytes) -> int:
        """Sends what the two sockets' buffers take while the server turns; returns how much it was."""
        sent = quiet = 0
        while sent < len(data) and quiet < 20:
            try:
                sent += client.send(data[sent : sent + (1 << 20)])
                quiet = 0
            except BlockingIOError:
                quiet += 1
            self.turn()
        return sent

    def read(self, client: socket.socket, size: int) -> bytes:
        """So many bytes of responses, or fewer if the connection ends."""
        data = b""
        deadline_s = time.monotonic() + WAIT_MAX_S
        while len(data) < size:
            assert time.monotonic() < deadline_s, f"{len(data)} of {size} bytes came"
            try:
                piece = client.recv(size - len(data))
            except BlockingIOError:
                self.loop.turn(0.001)
                continue
            except ConnectionResetError:
                break
            if not piece:
                break
            data += piece
        return data

    def is_cut_off(self, client: socket.socket) -> bool:
        """Whether the server has closed the connection."""
        try:
            return client.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.listener.close()
        for transport in list(self.connections.by_fd.values()):
            transport.close("")
        for client in self.clients:
            client.close()
        self.loop.close()


def reset(client: socket.socket) -> None:
    """Closes with a reset instead of a FIN."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


StartTransport = Callable[..., TransportServer]


@pytest.fixture
def transport_server() -> Iterator[StartTransport]:
    started: list[TransportServer] = []

    def start(**options: Any) -> TransportServer:
        started.append(TransportServer(**options))
        return started[-1]

    yield start
    for server in started:
        server.close()
