"""From a queue of responses to a socket: many small parts by one sendmsg, slices of files by sendfile.

Owns the choice between the two. A connection owns the queue; what was sent is removed from its head.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from itertools import islice
from typing import Final

from headrace.broker.core import Part
from headrace.log.files import FileSlice
from headrace.wire.primitives import Buffer

GATHER_PARTS_MAX: Final = 256
COPY_SLICE_BELOW_BYTES: Final = 16 * 1024  # cheaper to read and send with the rest than a sendfile of its own


def send_some(client: socket.socket, outgoing: deque[Part]) -> int:
    """Sends from the head of the queue, which is not empty, by one system call; returns the bytes sent.

    Raises `OSError`: `BlockingIOError` when the socket's buffer is full, EIO when a file is too short.
    """
    head = outgoing[0]
    if isinstance(head, FileSlice):
        if head.length_bytes >= COPY_SLICE_BELOW_BYTES:
            return _send_slice(client, head, outgoing)
        _inline(outgoing)
        return 0
    if len(outgoing) == 1:
        sent = client.send(head)
    else:
        parts = _gather(outgoing)
        more = len(parts) < len(outgoing)
        sent = client.sendmsg(parts, [], socket.MSG_MORE if more else 0)
    _drop(outgoing, sent)
    return sent


def memory_bytes(outgoing: deque[Part]) -> int:
    """Returns the memory of what waits to be sent; slices of files take none."""
    return sum(len(part) for part in outgoing if not isinstance(part, FileSlice))


def _send_slice(client: socket.socket, head: FileSlice, outgoing: deque[Part]) -> int:
    sent = os.sendfile(client.fileno(), head.file.fd, head.position_bytes, head.length_bytes)
    if not sent:
        raise _too_short(head)
    if sent == head.length_bytes:
        outgoing.popleft()
    else:
        outgoing[0] = FileSlice(head.file, head.position_bytes + sent, head.length_bytes - sent)
    return sent


def _inline(outgoing: deque[Part]) -> None:
    """Replaces small slices at the head of the queue by their bytes."""
    for index, part in enumerate(outgoing):
        if index >= GATHER_PARTS_MAX or (
            isinstance(part, FileSlice) and part.length_bytes >= COPY_SLICE_BELOW_BYTES
        ):
            return
        if isinstance(part, FileSlice):
            content = part.read()
            if len(content) != part.length_bytes:
                raise _too_short(part)
            outgoing[index] = content


def _too_short(part: FileSlice) -> OSError:
    return OSError(errno.EIO, f"{part.file.path} ended before byte {part.position_bytes + part.length_bytes}")


def _gather(outgoing: deque[Part]) -> list[Buffer]:
    """Returns the parts that one sendmsg may send, up to the next large slice."""
    if any(isinstance(part, FileSlice) for part in islice(outgoing, GATHER_PARTS_MAX)):
        _inline(outgoing)
    parts: list[Buffer] = []
    for part in outgoing:
        if isinstance(part, FileSlice) or len(parts) >= GATHER_PARTS_MAX:
            break
        parts.append(part)
    return parts


def _drop(outgoing: deque[Part], sent: int) -> None:
    while sent:
        part = outgoing[0]
        assert not isinstance(part, FileSlice)
        size = len(part)
        if sent < size:
            outgoing[0] = memoryview(part)[sent:]
            return
        sent -= size
        outgoing.popleft()
