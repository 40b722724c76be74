"""Attacks on the small HTTP server of mirrors, auditors, brokers and balancers: others are answered."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Final

import pytest

from headrace.process import status
from headrace.process.status import Answer, StatusServer

WAIT_MAX_S: Final = 30.0
LARGE: Final = {"topics": ["x" * 100] * 100_000}
"""10 MB: no buffer of a socket holds it."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusServer]:
    monkeypatch.setattr(status, "CONNECTIONS_MAX", 4)
    taken: list[bytes] = []

    def take(body: bytes) -> Answer:
        taken.append(body)
        return Answer(200, {"taken": len(taken)})

    running = StatusServer("127.0.0.1:0", lambda: LARGE, posts={"/counts": take})
    yield running
    running.close()


def connect(server: StatusServer) -> socket.socket:
    host, _, port = server.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_MAX_S)


def asked(server: StatusServer, request: bytes) -> bytes:
    """What a client gets that reads until the end; b"" if it is cut off."""
    parts = []
    with connect(server) as client:
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(1 << 20):
                parts.append(part)
        except OSError:
            return b""
    return b"".join(parts)


def test_clients_that_never_read_keep_nobody_out(server: StatusServer) -> None:
    silent = [connect(server) for _ in range(status.CONNECTIONS_MAX)]
    try:
        for client in silent:
            client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        deadline = time.monotonic() + status.SILENCE_MAX_S / 2
        answer = b""
        while not answer.endswith(b"]}"):
            assert time.monotonic() < deadline, "those that read nothing keep their places"
            answer = asked(server, b"GET /status HTTP/1.0\r\n\r\n")
    finally:
        for client in silent:
            client.close()
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == LARGE


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 70_000 + b" HTTP/1.0\r\n\r\n",
        b"GET /status HTTP/1.0\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"<script>alert(1)</script> / HTTP/1.0\r\n\r\n",
        b"POST /counts HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
        b"POST /counts HTTP/1.0\r\nContent-Length: 1e9\r\n\r\n",
        b"POST /counts HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"POST /counts HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"POST /nothing HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
        b"\r\n" * 1000,
        b"\0" * 1000,
    ],
)
def test_whatever_is_sent_the_next_one_is_answered(server: StatusServer, request_: bytes) -> None:
    answer = asked(server, request_)
    assert b"<script>" not in answer.partition(b"\r\n\r\n")[2] and b"Traceback" not in answer
    good = asked(server, b"POST /counts HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    assert good.endswith(b'{"taken": 1}\n')
