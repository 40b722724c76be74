"""Length-prefixed frames, sans-IO. Owns cutting a byte stream into frames; knows nothing of what is in them.

A frame is a big-endian int32 length and that many bytes (https://kafka.apache.org/protocol#protocol_common).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from headrace.wire.errors import FrameTooLargeError
from headrace.wire.primitives import Buffer

LENGTH_SIZE_BYTES: Final = 4
FRAME_LIMIT_BYTES: Final = 100 * 1024 * 1024  # Kafka's own default, socket.request.max.bytes

_LENGTH = struct.Struct(">i")


def frame(payload: Buffer) -> bytes:
    """`payload` with its length before it."""
    return b"".join((_LENGTH.pack(len(payload)), payload))


class FrameReader:
    """Cuts what is fed into frames: `feed` bytes as they come, then iterate whatever is complete.

    Frames are memoryviews. One that arrived whole is a view of the fed data, so feed `bytes`, or do not
    reuse the buffer while frames are held. `limit_bytes` bounds a frame, and with it what is kept between
    feeds. After a `FrameTooLargeError` the stream has no meaning any more: close the connection.
    """

    def __init__(self, *, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._frames: deque[memoryview] = deque()
        self._parts: list[Buffer] = []
        self._held_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has begun and is not complete."""
        return self._held_bytes

    @property
    def wanted_bytes(self) -> int:
        """How many bytes would complete the frame that has begun; at least the length prefix. A hint for
        `recv`.
        """
        return self._wanted_bytes() if self._held_bytes else LENGTH_SIZE_BYTES

    def feed(self, data: Buffer) -> None:
        """Take `data`. Raises `FrameTooLargeError` once a frame's length is over the limit or negative."""
        if self._held_bytes:
            data = self._complete_held(data)
        end = len(data)
        if not end:
            return
        view = memoryview(data)
        at = 0
        while at + LENGTH_SIZE_BYTES <= end:
            after = at + LENGTH_SIZE_BYTES + self._length(view, at)
            if after > end:
                break
            self._frames.append(view[at + LENGTH_SIZE_BYTES : after])
            at = after
        if at < end:
            self._parts = [bytes(view[at:])]
            self._held_bytes = end - at

    def __iter__(self) -> Iterator[memoryview]:
        while self._frames:
            yield self._frames.popleft()

    def _complete_held(self, data: Buffer) -> Buffer:
        """Move from `data` what the begun frame needs; return the rest (empty while the frame is still not
        complete).
        """
        view = memoryview(data)
        while self._held_bytes and len(view):
            take = view[: self._wanted_bytes()]
            view = view[len(take) :]
            self._parts.append(bytes(take))
            self._held_bytes += len(take)
            if self._held_bytes >= LENGTH_SIZE_BYTES and not self._wanted_bytes():
                self._frames.append(memoryview(b"".join(self._parts))[LENGTH_SIZE_BYTES:])
                self._parts = []
                self._held_bytes = 0
        return view

    def _wanted_bytes(self) -> int:
        if self._held_bytes < LENGTH_SIZE_BYTES:
            return LENGTH_SIZE_BYTES - self._held_bytes
        if len(self._parts[0]) < LENGTH_SIZE_BYTES:
            self._parts = [b"".join(self._parts)]
        return LENGTH_SIZE_BYTES + self._length(self._parts[0], 0) - self._held_bytes

    def _length(self, buffer: Buffer, at: int) -> int:
        length: int = _LENGTH.unpack_from(buffer, at)[0]
        if not 0 <= length <= self.limit_bytes:
            raise FrameTooLargeError(
                f"frame of {length} bytes, at most {self.limit_bytes} are allowed (is the peer Kafka?)"
            )
        return length
