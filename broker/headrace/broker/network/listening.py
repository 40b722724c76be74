"""Listening sockets: accept clients as the bounds allow, and refuse the others with a line in the log."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Final

from headrace.broker.core import Service
from headrace.broker.loop import READABLE
from headrace.broker.network.connections import Connections
from headrace.broker.network.socket_errors import GONE_BEFORE_ACCEPTED
from headrace.broker.network.transport import Transport

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_PER_WAKEUP_MAX: Final = 32  # so that open connections are served while many come
ACCEPT_PAUSE_MS: Final = 100  # without descriptors or memory
# A client whose network is cut sends nothing: the kernel then ends its connection after at most
# KEEPALIVE_IDLE_S + KEEPALIVE_PROBES_MAX * KEEPALIVE_INTERVAL_S.
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES_MAX: Final = 3


class Listener:
    """One listening socket. Raises `OSError` if the address cannot be bound."""

    def __init__(self, connections: Connections, host: str, port: int, service: Service) -> None:
        self._connections = connections
        self._service = service
        try:
            self._socket = socket.create_server((host, port), backlog=BACKLOG, reuse_port=False)
        except OSError as error:
            number = error.errno or 0
            problem = f"cannot listen on {host}:{port}: {os.strerror(number)}; is another process there?"
            if number < 0:  # of getaddrinfo(3)
                problem = (
                    f"cannot listen on {host}:{port}: this machine has no such address, or no name server "
                    "knows the name"
                )
            raise OSError(number, problem) from None
        self._socket.setblocking(False)
        _set_options(self._socket, connections.limits.send_stall_max_s)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._started = False

    def __str__(self) -> str:
        return f"listener {self.address[0]}:{self.address[1]}"

    def start(self) -> None:
        """Serves clients from now on; those that came earlier wait in the backlog."""
        self._started = True
        self._connections.loop.register(self._socket.fileno(), self)

    def on_ready(self, events: int) -> None:
        connections = self._connections
        for _ in range(ACCEPTS_PER_WAKEUP_MAX):
            wait_s = connections.admission.wait_s()
            if wait_s:
                connections.rate_pause_count += 1
                self._pause(wait_s * 1000)
                return
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in GONE_BEFORE_ACCEPTED:
                    continue
                self._out_of_resources(error)
                return
            self._serve(client, address)

    def _serve(self, client: socket.socket, address: tuple[str, int]) -> None:
        connections = self._connections
        ip = address[0]
        peer = f"{ip}:{address[1]}"
        refusal = connections.admission.admit(ip, connections.crowding.make_room)
        if refusal:
            connections.lines.log("refused", logging.WARNING, "%s: refused, %s", peer, refusal)
            client.close()
            return
        try:
            Transport(connections, client, ip, peer, self._service)
        except Exception as error:
            # One client's: it went already, or there is no memory for it.
            connections.admission.leave(ip)
            client.close()
            connections.lines.log("refused", logging.WARNING, "%s: not served: %s", peer, error)

    def _out_of_resources(self, error: OSError) -> None:
        """Accepts again a little later: the socket stays readable, and waiting for it would never wait."""
        self._connections.accept_failure_count += 1
        self._connections.lines.log("refused", logging.ERROR, "%s: accepting failed: %s", self, error)
        self._pause(ACCEPT_PAUSE_MS)

    def on_failure(self) -> None:
        self._pause(ACCEPT_PAUSE_MS)

    def _pause(self, pause_ms: float) -> None:
        self._connections.loop.modify(self._socket.fileno(), 0)
        self._connections.loop.call_later(pause_ms, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._connections.loop.modify(self._socket.fileno(), READABLE)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            if self._started:
                self._connections.loop.unregister(self._socket.fileno())
            self._socket.close()


def _set_options(listening: socket.socket, send_stall_max_s: float) -> None:
    """Sets what accepted sockets inherit on Linux: no delay, keepalive, an end to unacknowledged bytes."""
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES_MAX)
        timeout_ms = min(int(send_stall_max_s * 1000), 2**31 - 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
