"""Sends the same Produce requests again and again, so many at once, and waits for all their answers between.

Not for users: `clients.python` knows its command line. Other clients send sometimes more requests at once and
sometimes fewer, and what a request costs the broker depends on that by some per cent. Here all rounds are the
same work, so smaller differences can be seen. It prints `begin` after its warm-up, and its outcome as one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headrace.client.errors import BrokerError
from headrace.wire.errors import MalformedMessageError, WireError
from headrace.wire.primitives import INT32, NO_UUID
from headrace.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_response,
    encode_request,
)
from headrace.wire.records import Record, encode_batch

VERSION: Final = 7
"""The last version before flexible ones: any broker knows it."""
ACKS_ALL: Final = -1
WAIT_MAX_S: Final = 30.0
DISTINCT: Final = 16
"""So many different requests there are in a window."""
RECEIVE_BYTES: Final = 1 << 20
RESPONSE_MAX_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 4


def window_of(topic: str, count: int, batch: int, value_bytes: int) -> bytes:
    """Returns `count` framed requests, each with one batch of `batch` records for partition 0."""
    now_ms = int(time.time() * 1000)
    frames = []
    for number in range(min(DISTINCT, count)):
        value = bytes((number + place) % 251 for place in range(value_bytes))
        records = encode_batch([Record(each, now_ms, None, value) for each in range(batch)])
        topics = [ProduceTopic(topic, NO_UUID, [ProducePartition(0, memoryview(records))])]
        request = ProduceRequest(None, ACKS_ALL, int(WAIT_MAX_S * 1000), topics)
        frames.append(encode_request(request, version=VERSION, correlation_id=number, client_id="windows"))
    return b"".join(frames[number % len(frames)] for number in range(count))


def _responses(connection: socket.socket) -> Iterator[memoryview]:
    received = bytearray()
    while True:
        at = 0
        while len(received) - at >= LENGTH_BYTES:
            size_bytes = INT32.unpack_from(received, at)[0]
            if not 0 <= size_bytes <= RESPONSE_MAX_BYTES:
                raise MalformedMessageError(f"a response of {size_bytes} bytes")
            end = at + LENGTH_BYTES + size_bytes
            if end > len(received):
                break
            yield memoryview(bytes(received[at + LENGTH_BYTES : end]))
            at = end
        del received[:at]
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        received += data


class Windows:
    """One connection. `send` sends a window, and returns once all of it is acknowledged."""

    def __init__(
        self, connection: socket.socket, sender: ThreadPoolExecutor, window: bytes, count: int
    ) -> None:
        self._connection = connection
        self._sender = sender
        self._window = window
        self._count = count
        self._responses = _responses(connection)

    def send(self) -> None:
        """Raises `BrokerError` if a batch is not stored, `WireError`, `OSError`."""
        # By a thread, else both sides could wait for each other to read.
        sending = self._sender.submit(self._connection.sendall, self._window)
        for _ in range(self._count):
            _, response = decode_response(next(self._responses), version=VERSION)
            topic = response.topics[0]
            result = topic.partitions[0]
            if result.error_code:
                raise BrokerError(result.error_code, topic.name, result.error_message)
        sending.result()

    def send_for(self, seconds: float) -> int:
        """Returns how many requests were acknowledged."""
        until_s, requests = time.monotonic() + seconds, 0
        while time.monotonic() < until_s:
            self.send()
            requests += self._count
        return requests


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="of the leader")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--requests", required=True, type=int, help="in a window")
    parser.add_argument("--batch", required=True, type=int, help="records in a request")
    parser.add_argument("--value-bytes", required=True, type=int)
    parser.add_argument("--seconds", required=True, type=float)
    parser.add_argument("--warmup", required=True, type=float, metavar="SECONDS")
    options = parser.parse_args()
    host, _, port = options.bootstrap.rpartition(":")
    try:
        with (
            ThreadPoolExecutor(1) as sender,
            socket.create_connection((host, int(port)), timeout=WAIT_MAX_S) as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            window = window_of(options.topic, options.requests, options.batch, options.value_bytes)
            windows = Windows(connection, sender, window, options.requests)
            windows.send_for(options.warmup)
            print("begin", flush=True)
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            records = windows.send_for(options.seconds) * options.batch
            seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    except (OSError, WireError, BrokerError) as error:
        print(f"request_windows: {options.bootstrap}: {error}", file=sys.stderr)
        return 1
    outcome = {
        "records": records,
        "size_bytes": records * options.value_bytes,
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu_s, 3),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
