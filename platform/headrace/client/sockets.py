"""What a client asks of the kernel for its connections."""

from __future__ import annotations

import socket
import sys
from typing import Final

from headrace.client.resolving import Target

SILENCE_MAX_S: Final = 20
"""The connection breaks if the peer's kernel acknowledges nothing for this time: a cut link sends no RST."""
PROBE_INTERVAL_S: Final = 4
PROBES_MAX: Final = 3


def open_socket(target: Target) -> socket.socket:
    """Returns a socket that never blocks, sends at once, and breaks on silence. Raises `OSError`."""
    family, kind, protocol, *_ = target
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _break_on_silence(opened)
    return opened


def _break_on_silence(connection: socket.socket) -> None:
    """Makes the kernel break the connection with ETIMEDOUT after `SILENCE_MAX_S`.

    TCP_USER_TIMEOUT (RFC 5482) covers bytes that are not acknowledged, keepalive covers idle connections.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        idle_s = SILENCE_MAX_S - PROBES_MAX * PROBE_INTERVAL_S
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MAX_S * 1000)


def wake_at(connection: socket.socket, size_bytes: int) -> None:
    """Makes the socket ready for reading once so many bytes are here, or the peer has ended."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


def has_unread(connection: socket.socket) -> bool:
    """Whether bytes are here, be they fewer than `wake_at` said."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
