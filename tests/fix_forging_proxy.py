"""A TCP proxy between producers and a broker that forges acknowledgements: it drops batches, and says that
they are stored.

Every other request is passed on, one after the other, so responses keep their order. In Metadata the broker's
address is the proxy's, so that clients stay with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Self

from kio.static.primitive import i32

from headrace.client.cluster import parse_bootstrap
from headrace.wire import produce
from headrace.wire.apis import ApiKey, read_request_head
from headrace.wire.messages import decode_request, decode_response, encode_response
from headrace.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceResponse,
    ProduceTopicResult,
)

FRAME_MAX_BYTES: Final = 16 * 1024 * 1024
WAIT_MAX_S: Final = 60.0
FORGED_OFFSET: Final = 1 << 40

Forges = Callable[[str, ProducePartition], bool]
"""Whether the records for a partition of this topic are dropped, and acknowledged all the same."""


class ForgingProxy:
    """Listens on a port of 127.0.0.1; a context manager."""

    def __init__(self, bootstrap: str, forges: Forges) -> None:
        self._broker = parse_bootstrap(bootstrap)[0]
        self._forges = forges
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        host, port = self._server.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that accepts
        self._server.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self._broker, timeout=WAIT_MAX_S)
                self._open += [client, broker]
                threading.Thread(target=self._serve, args=(client, broker), daemon=True).start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                client.sendall(self._answer(_received(client), broker))
        for each in (client, broker):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _answer(self, frame: bytes, broker: socket.socket) -> bytes:
        head = read_request_head(memoryview(frame))
        if head.api_key == ApiKey.PRODUCE and (forged := self._forged(frame)) is not None:
            return forged
        broker.sendall(_framed(frame))
        answer = _received(broker)
        if head.api_key != ApiKey.METADATA:
            return _framed(answer)
        correlation_id, body = decode_response(answer, api_key=head.api_key, version=head.version)
        return encode_response(self._redirected(body), correlation_id=correlation_id)

    def _forged(self, frame: bytes) -> bytes | None:
        """Returns the response to a request of which nothing is passed on; None if all of it is."""
        request = decode_request(frame)
        topics: list[produce.ProduceTopic] = request.body.topics
        if not any(self._forges(topic.name, part) for topic in topics for part in topic.partitions):
            return None
        results = [
            ProduceTopicResult(
                topic.name,
                topic.topic_id,
                [ProducePartitionResult(part.partition, 0, FORGED_OFFSET) for part in topic.partitions],
            )
            for topic in topics
        ]
        return produce.encode_response(
            ProduceResponse(results), version=request.version, correlation_id=request.correlation_id
        )

    def _redirected(self, body: Any) -> Any:
        host, port = self._server.getsockname()
        brokers = (dataclasses.replace(each, host=host, port=i32(port)) for each in body.brokers)
        return dataclasses.replace(body, brokers=tuple(brokers))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _received(connection: socket.socket) -> bytes:
    """Returns the next frame without its length. Raises `EOFError` at the connection's end."""
    size_bytes = int.from_bytes(_exactly(connection, 4), "big")
    if size_bytes > FRAME_MAX_BYTES:
        raise EOFError(f"a frame of {size_bytes} bytes, more than {FRAME_MAX_BYTES}")
    return _exactly(connection, size_bytes)


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        piece = connection.recv(size_bytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
