"""A blocking connection to one broker, and the fetch request.

Owns its socket. Imports nothing heavy, because executors need little else; see `metadata` for the rest.
"""

import socket
import struct
from typing import Final

from headrace.wire import fetch
from headrace.wire.errors import FrameTooLargeError, ProtocolError
from headrace.wire.primitives import NO_UUID

CLIENT_ID: Final = "headrace-source"
FETCH_VERSION: Final = 12
FETCH_WAIT_MS: Final = 0
"""The broker has the data already: the range ends at or before the log's end."""
RESPONSE_SIZE_MAX_BYTES: Final = 1 << 30
RECEIVE_BUFFER_BYTES: Final = 4 << 20
CONNECT_TIMEOUT_S: Final = 10.0
_LENGTH: Final = struct.Struct(">i")

Address = tuple[str, int]


class SourceConnection:
    """A TCP connection. After a failure, an `OSError` or a `WireError`, close it and open another."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._socket = socket.create_connection(address, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)

    def wait_at_most(self, timeout_s: float) -> None:
        """Sets how long `send` and `receive` wait for the broker's next bytes."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """Returns the next frame, which is valid until the next call reuses its buffer."""
        self._receive_into(memoryview(self._buffer)[:4])
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= RESPONSE_SIZE_MAX_BYTES:
            raise FrameTooLargeError(
                f"a response of {length} bytes is over the limit of {RESPONSE_SIZE_MAX_BYTES}"
            )
        if length > len(self._buffer):
            self._buffer = bytearray(length)
        view = memoryview(self._buffer)[:length]
        self._receive_into(view)
        return view

    def _receive_into(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                raise ConnectionResetError(
                    f"the broker at {self.address[0]}:{self.address[1]} closed the connection"
                )
            view = view[got:]


def fetch_frame(topic: str, partition: int, offset: int, size_bytes: int) -> bytes:
    """Returns the framed request for one partition's next bytes."""
    request = fetch.FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=size_bytes,
        topics=[fetch.FetchTopic(topic, NO_UUID, [fetch.FetchPartition(partition, offset, size_bytes)])],
        wants_addresses=True,
    )
    return fetch.encode_request(request, version=FETCH_VERSION, correlation_id=0, client_id=CLIENT_ID)


def fetched_partition(frame: memoryview) -> tuple[fetch.FetchPartitionResult, bool]:
    """Returns the partition in a response to `fetch_frame`, and whether the broker throttles this client.

    A response to a throttled client may be empty. Raises `ProtocolError` if the whole request failed.
    """
    _, response = fetch.decode_response(frame, version=FETCH_VERSION)
    if response.error_code:
        raise ProtocolError(response.error_code, "fetch")
    return response.topics[0].partitions[0], response.throttle_time_ms > 0
