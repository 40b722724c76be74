"""Sockets: accepts clients, moves their bytes to the sans-IO core and its responses back.

Owns listening, connection bounds, idle connections. Knows nothing of requests.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from typing import Final

from headrace.broker.core import ClientConnection, Service
from headrace.broker.frame_buffers import FrameBuffers
from headrace.broker.loop import READABLE, WRITABLE, EventLoop
from headrace.broker.sending import send_some
from headrace.wire.errors import WireError

logger = logging.getLogger(__name__)

SCRATCH_BYTES: Final = 64 * 1024
BACKLOG: Final = 1024
READ_BYTES_PER_WAKEUP: Final = 4 * 1024 * 1024  # of one connection, so that others are served too
SEND_BYTES_PER_WAKEUP: Final = 8 * 1024 * 1024
ACCEPT_PAUSE_MS: Final = 100
RECENT_S: Final = 1.0  # a connection silent for longer has nothing in flight when the broker stops

# The client or its network ended the connection: nothing to log.
_ENDED_BY_CLIENT: Final = frozenset(
    {
        errno.ECONNRESET,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNABORTED,
    }
)


class Server:
    """All connections of a broker, and what they share: bounds and receive buffers."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        connections_max: int,
        frame_limit_bytes: int,
        receiving_bytes_max: int,
        idle_ms: int,
    ) -> None:
        self.loop = loop
        self.connections_max = connections_max
        self.frame_limit_bytes = frame_limit_bytes
        self.receiving_bytes_max = receiving_bytes_max
        self.receiving_bytes = 0
        self.connections: dict[int, Transport] = {}
        self.with_output: dict[Transport, None] = {}
        self.starved: dict[Transport, None] = {}  # not read until others' large requests end
        self.buffers = FrameBuffers()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.serves = True  # False: what arrives is discarded
        self._idle_s = idle_ms / 1000
        self._listeners: list[Listener] = []
        loop.at_wakeup_end(self.send_all)
        loop.every(min(10_000, idle_ms), self._close_idle)

    def bind(self, host: str, port: int, service: Service) -> Listener:
        """Binds an address; its clients are served once the listener is started. Raises `OSError`."""
        listener = Listener(self, host, port, service)
        self._listeners.append(listener)
        return listener

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def send_all(self) -> None:
        """Sends the responses of all connections that have some."""
        if not self.with_output:
            return
        ready, self.with_output = self.with_output, {}
        for transport in ready:
            transport.send()

    def feed_starved(self) -> None:
        """Lets starved connections read again if they may."""
        starved, self.starved = self.starved, {}
        for transport in starved:
            transport.update_interest()

    def stop_serving(self) -> None:
        """Discards what arrives from now on; requests taken before are still answered."""
        self.serves = False
        for transport in list(self.connections.values()):
            transport.update_interest()

    def end_connections(self) -> None:
        """Shuts every connection down after its last response; it closes when its client has closed.

        If it closed at once with requests unread, the kernel would send a reset, which may overtake the last
        responses. The loop must run until `connections` is empty, or the caller's wait is over.
        """
        recent_s = time.monotonic() - RECENT_S
        for transport in list(self.connections.values()):
            if transport.active_s < recent_s and not transport.core.slots:
                transport.close("")
            else:
                transport.end()

    def _close_idle(self) -> None:
        self.buffers.release_idle()
        before_s = time.monotonic() - self._idle_s
        for transport in list(self.connections.values()):
            if transport.active_s < before_s and not transport.core.slots:
                transport.close("idle")

    def close(self) -> None:
        self.stop_accepting()
        for transport in list(self.connections.values()):
            transport.close("the broker stops")


class Listener:
    """One listening socket."""

    def __init__(self, server: Server, host: str, port: int, service: Service) -> None:
        self._server = server
        self._service = service
        try:
            self._socket = socket.create_server((host, port), backlog=BACKLOG, reuse_port=False)
        except OSError as error:
            problem = f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
            raise OSError(error.errno, f"{problem}; is another process there?") from None
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._started = False

    def start(self) -> None:
        """Serves clients from now on; those that came earlier wait in the backlog."""
        self._started = True
        self._server.loop.register(self._socket.fileno(), self)

    def on_ready(self, events: int) -> None:
        while True:
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory. The socket stays readable, so accept again a little later.
                logger.error("accepting a connection failed: %s", error)
                self._server.loop.modify(self._socket.fileno(), 0)
                self._server.loop.call_later(ACCEPT_PAUSE_MS, self._resume)
                return
            peer = f"{address[0]}:{address[1]}"
            if len(self._server.connections) >= self._server.connections_max:
                logger.warning("%s: refused, max.connections=%d are open", peer, self._server.connections_max)
                client.close()
                continue
            Transport(self._server, client, peer, self._service)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._server.loop.modify(self._socket.fileno(), READABLE)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            if self._started:
                self._server.loop.unregister(self._socket.fileno())
            self._socket.close()


class Transport:
    """One client's socket around its sans-IO core."""

    __slots__ = ("_ending", "_events", "_fd", "_reserved_bytes", "_server", "_socket", "active_s", "core")

    def __init__(self, server: Server, client: socket.socket, peer: str, service: Service) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = server
        self._socket = client
        self._fd = client.fileno()
        self._events = READABLE
        self._reserved_bytes = 0
        self._ending = False
        self.active_s = time.monotonic()
        self.core = ClientConnection(
            service,
            peer=peer,
            frame_limit_bytes=server.frame_limit_bytes,
            on_output=self._on_output,
            on_abort=self.close,
            buffers=server.buffers,
        )
        server.connections[self._fd] = self
        server.loop.register(self._fd, self)

    def _on_output(self, _: ClientConnection) -> None:
        self._server.with_output[self] = None

    def on_ready(self, events: int) -> None:
        if events & (select.EPOLLERR | select.EPOLLHUP) and not events & READABLE:
            self.close("")
            return
        if events & WRITABLE:
            self._server.with_output[self] = None
        if events & READABLE and self._server.serves:
            self._read()
        elif events & READABLE:
            self._discard()

    def _discard(self) -> None:
        """Reads and drops requests, since the broker stops: clients send them to another broker."""
        self.active_s = time.monotonic()
        budget = READ_BYTES_PER_WAKEUP
        try:
            while budget > 0:
                count = self._socket.recv_into(self._server.scratch)
                if not count:
                    self.close("")
                    return
                budget -= count
        except BlockingIOError:
            return
        except OSError as error:
            self.close(_problem(error))

    def _read(self) -> None:
        core = self.core
        client = self._socket
        scratch = self._server.scratch
        budget = READ_BYTES_PER_WAKEUP
        self.active_s = time.monotonic()
        try:
            while budget > 0 and not core.closed:
                target = core.wanted()
                buffer = scratch if target is None else target
                count = client.recv_into(buffer)
                if not count:
                    self.close("")
                    return
                budget -= count
                if target is None:
                    core.receive(buffer[:count])
                else:
                    core.filled(count)
                self._account()
                if core.must_pause or self._starves:
                    break
                if count < len(buffer):
                    return
        except BlockingIOError:
            return
        except WireError as error:
            self.close(f"{type(error).__name__}: {error}")
            return
        except OSError as error:
            self.close(_problem(error))
            return
        except Exception:
            logger.exception("%s: serving a request failed", core.peer)
            self.close("internal error")
            return
        self.update_interest()

    def _account(self) -> None:
        """Counts the frame being received against the bound that all connections share."""
        server = self._server
        now = self.core.partial_bytes
        if now == self._reserved_bytes:
            return
        before = server.receiving_bytes
        server.receiving_bytes += now - self._reserved_bytes
        self._reserved_bytes = now
        if server.starved and server.receiving_bytes < before:
            server.feed_starved()

    @property
    def _starves(self) -> bool:
        """Whether too much is being received already, and not only by this connection."""
        server = self._server
        return (
            self._reserved_bytes > SCRATCH_BYTES
            and server.receiving_bytes > server.receiving_bytes_max
            and server.receiving_bytes > self._reserved_bytes
        )

    def send(self) -> None:
        """Sends as much as the socket accepts, then waits until it accepts more."""
        core = self.core
        if core.closed:
            return
        core.release_responses()
        budget = SEND_BYTES_PER_WAKEUP
        try:
            while core.outgoing and budget > 0:
                sent = send_some(self._socket, core.outgoing)
                core.outgoing_bytes -= sent
                budget -= sent
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(_problem(error))
            return
        if not core.closed:
            self.active_s = time.monotonic()
            self.update_interest()
            if self._ending and not core.outgoing:
                self._shut_down()

    def end(self) -> None:
        """Shuts the connection down once the responses known now are sent."""
        self._ending = True
        self.send()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.close(_problem(error))

    def update_interest(self) -> None:
        """Watches for reading unless the connection must pause, for writing if responses wait."""
        core = self.core
        if core.closed:
            return
        events = 0
        if not self._server.serves:
            events |= READABLE
        elif self._starves:
            self._server.starved[self] = None
        elif not core.must_pause:
            events |= READABLE
        if core.outgoing:
            events |= WRITABLE
        if events != self._events:
            self._events = events
            self._server.loop.modify(self._fd, events)

    def close(self, problem: str) -> None:
        """Ends the connection; a problem is logged."""
        core = self.core
        if core.closed:
            return
        if problem:
            logger.info("%s: connection closed: %s", core.peer, problem)
        core.close()
        server = self._server
        server.loop.unregister(self._fd)
        del server.connections[self._fd]
        server.with_output.pop(self, None)
        server.starved.pop(self, None)
        self._account()
        self._socket.close()


def _problem(error: OSError) -> str:
    return "" if error.errno in _ENDED_BY_CLIENT else str(error)
