"""A large response wakes its reader once much of it is here, and whatever follows at once."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from headrace.client.sockets import has_unread, wake_at

CHUNK_BYTES = 100_000
SOON_S = 10.0
NOT_YET_S = 0.2


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender and a receiver."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = socket.create_connection(listener.getsockname())
        sender, _ = listener.accept()
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


def is_ready(receiver: socket.socket, wait_s: float) -> bool:
    poll = select.epoll()
    poll.register(receiver, select.EPOLLIN)
    try:
        return bool(poll.poll(wait_s))
    finally:
        poll.close()


def test_it_wakes_once_so_many_bytes_are_here(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    wake_at(receiver, CHUNK_BYTES)
    sender.sendall(bytes(CHUNK_BYTES - 1))
    assert not is_ready(receiver, NOT_YET_S)
    assert has_unread(receiver)
    sender.sendall(b"x")
    assert is_ready(receiver, SOON_S)


def test_what_is_here_wakes_as_soon_as_less_is_asked_for(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    wake_at(receiver, CHUNK_BYTES)
    sender.sendall(b"x")
    assert not is_ready(receiver, NOT_YET_S)
    wake_at(receiver, 1)
    assert is_ready(receiver, SOON_S)


@pytest.mark.parametrize("resets", [False, True])
def test_the_end_wakes_always(pair: tuple[socket.socket, socket.socket], resets: bool) -> None:
    sender, receiver = pair
    wake_at(receiver, CHUNK_BYTES)
    if resets:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
    assert is_ready(receiver, SOON_S)
    assert not has_unread(receiver)


def test_more_than_the_kernel_holds_wakes(pair: tuple[socket.socket, socket.socket]) -> None:
    """What is asked for may be more than the socket's buffer takes: then what fits is enough."""
    sender, receiver = pair
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    wake_at(receiver, 1 << 30)
    sender.setblocking(False)
    deadline_s = time.monotonic() + SOON_S
    while not is_ready(receiver, 0.01):
        assert time.monotonic() < deadline_s
        with contextlib.suppress(BlockingIOError):
            sender.send(bytes(65_536))
