"""Keeps connections to a Kafka broker open that send one ApiVersions request each, and then nothing.

Not for users: `clients.rdkafka.hold_connections` starts it. It prints `begin` once the broker has answered on
all connections, and works until SIGTERM. Then it ends with 0 if all are still open, and with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import socket
import struct
import sys
from typing import Final

WAIT_MAX_S: Final = 60.0
OTHER_FILES_MAX: Final = 64
API_VERSIONS: Final = 18
CLIENT_ID: Final = b"idle"
# Key, version 0, correlation id, client id; the request has no body.
REQUEST: Final = struct.pack(f">hhih{len(CLIENT_ID)}s", API_VERSIONS, 0, 1, len(CLIENT_ID), CLIENT_ID)


def allow_open_files(count: int) -> None:
    """Raises the limit of open files. Raises `OSError` if the system does not allow so many."""
    needed = count + OTHER_FILES_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(f"{count} connections need {needed} open files, and the limit (ulimit -Hn) is {hard}")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connect(host: str, port: int) -> socket.socket:
    """Returns a connection on which the broker has answered. Raises `OSError`."""
    connection = socket.create_connection((host, port), timeout=WAIT_MAX_S)
    connection.sendall(struct.pack(">i", len(REQUEST)) + REQUEST)
    with connection.makefile("rb") as stream:
        size_bytes = int.from_bytes(stream.read(4), "big")
        if not size_bytes or len(stream.read(size_bytes)) != size_bytes:
            raise OSError(f"{host}:{port} closed a connection instead of answering ApiVersions")
    return connection


def is_open(connection: socket.socket) -> bool:
    """Says whether the broker has left the connection open."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT,…", help="one broker, or several")
    parser.add_argument("--count", required=True, type=int, help="connections in all, spread evenly")
    options = parser.parse_args()
    addresses = [address.rpartition(":") for address in options.bootstrap.split(",")]
    # Blocked, not handled: sigwait takes it when all connections are open.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with contextlib.ExitStack() as stack:
        try:
            allow_open_files(options.count)
            connections = []
            for number in range(options.count):
                host, _, port = addresses[number % len(addresses)]
                connections.append(stack.enter_context(connect(host, int(port))))
        except OSError as error:
            print(f"idle_connections: {error}", file=sys.stderr)
            return 1
        print("begin", flush=True)
        signal.sigwait({signal.SIGTERM})
        closed = sum(not is_open(connection) for connection in connections)
    if closed:
        print(f"idle_connections: the broker closed {closed} of {options.count}", file=sys.stderr)
    return 1 if closed else 0


if __name__ == "__main__":
    sys.exit(main())
