"""Requests of all APIs and versions, on a few connections at once; some end in the middle of a frame."""

from __future__ import annotations

import random
import selectors
import socket
import time
from typing import Final

from fuzzing.world import World

CONNECTIONS: Final = 6
FRAMES_PER_CONNECTION: Final = 40
ANSWERS_WAIT_MAX_S: Final = 5.0
SEND_WAIT_MAX_S: Final = 5.0
READ_BYTES: Final = 1 << 16
LOG_KEEPS: Final = 5
"""The last frames that a finding shows."""


def run(world: World, rng: random.Random) -> list[str]:
    """Sends a round of frames; returns the last of them in hex, for a finding."""
    sent: list[str] = []
    host, _, port = world.address.rpartition(":")
    connections = [
        socket.create_connection((host, int(port)), timeout=SEND_WAIT_MAX_S) for _ in range(CONNECTIONS)
    ]
    for _ in range(FRAMES_PER_CONNECTION):
        for place, connection in enumerate(connections):
            frame = world.maker.frame(rng)
            if rng.random() < 0.01:
                frame = frame[: rng.randrange(len(frame))]
            sent.append(frame[:4096].hex())
            if not send(connection, frame):
                connection.close()
                connections[place] = socket.create_connection((host, int(port)), timeout=SEND_WAIT_MAX_S)
    read_answers(connections)
    for connection in connections:
        if rng.random() < 0.3:  # the connection ends by a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.close()
    return sent[-LOG_KEEPS:]


def send(connection: socket.socket, frame: bytes) -> bool:
    """Whether the broker took all of it; one that refused a frame before has closed the connection."""
    try:
        connection.settimeout(0)
        while connection.recv(READ_BYTES):
            pass
        return False
    except BlockingIOError:
        pass
    except OSError:
        return False
    try:
        connection.settimeout(SEND_WAIT_MAX_S)
        connection.sendall(frame)
    except OSError:
        return False
    return True


def read_answers(connections: list[socket.socket]) -> None:
    """Reads what comes until nothing has come for a while."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + ANSWERS_WAIT_MAX_S
        while time.monotonic() < deadline and selector.get_map():
            ready = selector.select(0.5)
            if not ready:
                return
            for key, _ in ready:
                answering = key.fileobj
                assert isinstance(answering, socket.socket)
                try:
                    if not answering.recv(READ_BYTES):
                        selector.unregister(answering)
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(answering)
