"""A connection of an attacker: it sends frames by hand, and survives being cut off."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Final, Self

CALL_WAIT_MAX_S: Final = 120.0
CONNECT_WAIT_MAX_S: Final = 10.0
READ_BYTES: Final = 1 << 20
BACKOFF_S: Final = 0.02
"""After a refused connection: an attacker who is cut off comes back, and does not spin on its own core."""


class Attacker:
    """One connection. Its methods raise `OSError` when the broker cuts it off."""

    def __init__(self, address: str, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(CONNECT_WAIT_MAX_S)
        self.socket.connect((host, int(port)))
        self.socket.settimeout(CALL_WAIT_MAX_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, body: bytes) -> None:
        """Sends a frame."""
        self.socket.sendall(framed(body))

    def receive(self) -> int:
        """Reads one answer; returns its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        left = int(size)
        while left:
            data = self.socket.recv(min(READ_BYTES, left))
            if not data:
                raise ConnectionError("the broker closed the connection")
            left -= len(data)
        return int(size)

    def answer(self) -> bytes:
        """Reads one short answer, without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def call(self, body: bytes) -> int:
        self.send(body)
        return self.receive()

    def _exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            more = self.socket.recv(size_bytes - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    """A request's header, without a client id."""
    return struct.pack(">hhih", api_key, version, 7, -1) + (b"\x00" if flexible else b"")


def calls(address: str, body: bytes, deadline_s: float) -> int:
    """Calls with the same frame until the deadline, on new connections when cut off; returns how often."""
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), Attacker(address) as attacker:
            while time.monotonic() < deadline_s:
                attacker.call(body)
                number += 1
    return number


@contextlib.contextmanager
def cut_off() -> Iterator[None]:
    """Goes on behind the block when the broker ends the connection."""
    try:
        yield
    except OSError:
        time.sleep(BACKOFF_S)
