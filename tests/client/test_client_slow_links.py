"""Requests over a link that is slow, or that falls silent in the middle of a response."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fix_client import FakeCluster
from headrace.client.calls import fetch_call
from headrace.client.connection import CONNECT_MAX_S
from headrace.client.errors import ClientError, NetworkError, RequestTimedOutError
from headrace.client.network import Network
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

WAIT_S = 20.0
VALUE_BYTES = 40_000
PIECE_BYTES = 4_000
PIECE_PAUSE_S = 0.1
TIMEOUT_S = 0.5  # shorter than the whole response takes, longer than the pause between two pieces


class SlowLink:
    """Forwards a broker's responses piece by piece, and nothing after `stop_after_bytes`."""

    def __init__(self, host: str, port: int, stop_after_bytes: int) -> None:
        self._broker = (host, port)
        self._left = stop_after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._broker) as broker:
            threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
            while data := broker.recv(PIECE_BYTES):
                time.sleep(PIECE_PAUSE_S if len(data) == PIECE_BYTES else 0)
                data, self._left = data[: self._left], max(0, self._left - len(data))
                try:
                    client.sendall(data)
                except OSError:
                    return

    @staticmethod
    def _requests(client: socket.socket, broker: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                broker.sendall(data)
            broker.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._thread.join(WAIT_S)
        self._listener.close()


@pytest.fixture
def ask_slowly(fake_cluster: Callable[..., FakeCluster]) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """Fetches a large batch over a `SlowLink(…, stop_after_bytes)`; returns the response or the error."""
    opened: list[Network | SlowLink] = []

    def ask(stop_after_bytes: int, *, chunk_bytes: int = 1) -> tuple[Any, ClientError | None]:
        cluster = fake_cluster()
        with cluster.lock:
            cluster.log().append(encode_batch([Record(0, 1, None, os.urandom(VALUE_BYTES))]))
        host, _, port = cluster.bootstrap.partition(":")
        link = SlowLink(host, int(port), stop_after_bytes)
        network = Network(link.address, client_id="test", request_timeout_ms=TIMEOUT_S * 1000)
        opened.extend((network, link))
        deadline = time.monotonic() + WAIT_S
        while not network.ready(-1):
            assert time.monotonic() < deadline
            network.poll(0.1)
        part = FetchPartition(0, 0, 1 << 20)
        request = FetchRequest(0, 1, 1 << 20, [FetchTopic("t", NO_UUID, [part])])
        answers: list[tuple[Any, ClientError | None]] = []
        network.send(
            -1,
            fetch_call(request, chunk_bytes=chunk_bytes),
            lambda body, error: answers.append((body, error)),
        )
        while not answers:
            assert time.monotonic() < deadline
            network.poll(0.1)
        return answers[0]

    yield ask
    for each in opened:
        each.close()


@pytest.mark.parametrize("chunk_bytes", [1, 10_000, 1 << 20])
def test_a_response_that_is_arriving_does_not_time_out(
    ask_slowly: Callable[..., tuple[Any, Any]], chunk_bytes: int
) -> None:
    """Nor does one of which less is here than is worth waking up for."""
    answer, error = ask_slowly(1 << 30, chunk_bytes=chunk_bytes)
    assert error is None
    assert len(answer.topics[0].partitions[0].records) > VALUE_BYTES


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_a_response_that_stops_arriving_times_out(
    ask_slowly: Callable[..., tuple[Any, Any]], chunk_bytes: int
) -> None:
    _, error = ask_slowly(VALUE_BYTES // 2, chunk_bytes=chunk_bytes)
    assert isinstance(error, RequestTimedOutError)


def test_connecting_to_an_unresponsive_address_times_out_soon() -> None:
    """A listener with a full backlog drops SYNs, as a cut link does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        host, port = listener.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((host, port))
        network = Network(f"{host}:{port}", client_id="test", request_timeout_ms=30_000)
        start = time.monotonic()
        while network.last_error is None:
            assert time.monotonic() < start + WAIT_S
            network.ready(-1)
            network.poll(0.5)
        assert isinstance(network.last_error, NetworkError)
        assert time.monotonic() - start < CONNECT_MAX_S + 5
        network.close()
        for filler in fillers:
            filler.close()
