"""Connections from this broker to others, on the event loop: a request goes out, its response comes back.

Owns sockets, order and deadlines; knows nothing of what is in a request. One connection a peer, opened when
it is first needed; when it breaks, all that is in flight on it fails at once; the next request opens another.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker.loop import READABLE, WRITABLE, EventLoop
from headrace.wire.errors import WireError
from headrace.wire.frames import FrameReader

logger = logging.getLogger(__name__)

ANSWER_WAIT_MS: Final = 30_000
IN_FLIGHT_MAX_BYTES: Final = (
    128 * 1024 * 1024
)  # of one peer; beyond it requests are refused, to be tried again
RECEIVE_BYTES: Final = 64 * 1024
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
GATHER_MAX: Final = 64

Address = tuple[str, int]


class Lost(NamedTuple):
    """No answer will come. `was_sent`: the peer may have got the request all the same."""

    reason: str
    was_sent: bool


Done = Callable[[memoryview | Lost], None]


class _InFlight(NamedTuple):
    size_bytes: int
    deadline_ms: int
    done: Done


class Peers:
    """One link an address. `clock_ms` decides deadlines."""

    def __init__(self, loop: EventLoop, clock_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._clock_ms = clock_ms
        self._links: dict[Address, _Link] = {}

    def ask(self, address: Address, frame: bytes, done: Done | None) -> bool:
        """Send a framed request; `done(answer)` or `done(lost)` follows, unless `done` is None.

        False if too much is in flight to that peer already: nothing was sent.
        """
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(self, address)
        return link.send(frame, done)

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way to or from any peer."""
        return not any(link.is_busy for link in self._links.values())

    def drop(self, address: Address) -> None:
        self._links.pop(address, None)

    def close(self) -> None:
        for link in list(self._links.values()):
            link.fail("the broker stops")


class _Link:
    def __init__(self, peers: Peers, address: Address) -> None:
        self._peers = peers
        self._loop = peers._loop
        self._address = address
        self._reader = FrameReader(limit_bytes=ANSWER_MAX_BYTES)
        self._outgoing: deque[memoryview] = deque()
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._events = READABLE | WRITABLE
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fd = self._socket.fileno()
        self._loop.register(self._fd, self, self._events)
        refused = self._socket.connect_ex(address)
        self._connected = refused == 0
        if refused not in (0, errno.EINPROGRESS):
            self._loop.call_later(0, lambda: self.fail(errno.errorcode.get(refused, str(refused))))

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight or self._outgoing)

    def send(self, frame: bytes, done: Done | None) -> bool:
        if self._in_flight_bytes + len(frame) > IN_FLIGHT_MAX_BYTES and self._in_flight:
            return False
        self._outgoing.append(memoryview(frame))
        if done is not None:
            deadline_ms = self._peers._clock_ms() + ANSWER_WAIT_MS
            if not self._in_flight:
                self._loop.call_later(ANSWER_WAIT_MS, self._check_deadline)
            self._in_flight.append(_InFlight(len(frame), deadline_ms, done))
            self._in_flight_bytes += len(frame)
        if self._connected:
            self._want_to_write()
        return True

    def on_ready(self, events: int) -> None:
        try:
            if not self._connected:
                refused = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if refused:
                    raise OSError(refused, errno.errorcode.get(refused, str(refused)))
                self._connected = True
            if events & (READABLE | select.EPOLLHUP | select.EPOLLERR):
                self._receive()
            if self._connected:
                self._flush()
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self.fail(str(error))

    def _receive(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._reader.feed(data)
        for frame in self._reader:
            if not self._in_flight:
                raise ConnectionResetError("it answered what nobody asked")
            answered = self._in_flight.popleft()
            self._in_flight_bytes -= answered.size_bytes
            answered.done(frame)

    def _flush(self) -> None:
        while self._outgoing:
            parts = [self._outgoing[at] for at in range(min(GATHER_MAX, len(self._outgoing)))]
            sent = self._socket.sendmsg(parts)
            while sent:
                first = self._outgoing[0]
                if sent < len(first):
                    self._outgoing[0] = first[sent:]
                    break
                sent -= len(first)
                self._outgoing.popleft()
        if self._events & WRITABLE:
            self._events = READABLE
            self._loop.modify(self._fd, READABLE)

    def _want_to_write(self) -> None:
        if not self._events & WRITABLE:
            self._events = READABLE | WRITABLE
            self._loop.modify(self._fd, self._events)

    def _check_deadline(self) -> None:
        if not self._in_flight or self._fd < 0:
            return
        left_ms = self._in_flight[0].deadline_ms - self._peers._clock_ms()
        if left_ms <= 0:
            self.fail(f"no answer within {ANSWER_WAIT_MS} ms")
        else:
            self._loop.call_later(left_ms, self._check_deadline)

    def fail(self, reason: str) -> None:
        """End the link; whoever waits is told."""
        if self._fd < 0:
            return
        self._peers.drop(self._address)
        self._loop.unregister(self._fd)
        self._fd = -1
        self._socket.close()
        where = f"{self._address[0]}:{self._address[1]}"
        logger.warning("connection to the broker at %s lost: %s", where, reason)
        waiting, self._in_flight = self._in_flight, deque()
        lost = Lost(f"the broker at {where}: {reason}", self._connected)
        for each in waiting:
            each.done(lost)
