"""A blocking connection to one broker, and the one request that reads data.

Owns its socket. Executors need no more than this, which imports nothing heavy; what a cluster is asked
before is in `cluster`.
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
"""What is read is there already."""
RESPONSE_SIZE_MAX_BYTES: Final = 1 << 30
RECEIVE_BUFFER_BYTES: Final = 4 << 20
CONNECT_TIMEOUT_S: Final = 10.0
_LENGTH: Final = struct.Struct(">i")

Address = tuple[str, int]


class SourceConnection:
    """One TCP connection. Any failure is an `OSError` or a `WireError`; then close it and open another."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._socket = socket.create_connection(address, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next frame. The bytes are good until the next call: the buffer is used again."""
        self._receive_into(memoryview(self._buffer)[:4])
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= RESPONSE_SIZE_MAX_BYTES:
            raise FrameTooLargeError(
                f"a response of {length} bytes; at most {RESPONSE_SIZE_MAX_BYTES} are read"
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
    """The framed request for one partition's next bytes."""
    request = fetch.FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=size_bytes,
        topics=[fetch.FetchTopic(topic, NO_UUID, [fetch.FetchPartition(partition, offset, size_bytes)])],
    )
    return fetch.encode_request(request, version=FETCH_VERSION, correlation_id=0, client_id=CLIENT_ID)


def fetched_partition(frame: memoryview) -> tuple[fetch.FetchPartitionResult, bool]:
    """The one partition of a response to `fetch_frame`, and whether the broker throttles us (it may then
    give nothing).

    Raises `ProtocolError` for the request's own errors.
    """
    _, response = fetch.decode_response(frame, version=FETCH_VERSION)
    if response.error_code:
        raise ProtocolError(response.error_code, "fetch")
    return response.topics[0].partitions[0], response.throttle_time_ms > 0
