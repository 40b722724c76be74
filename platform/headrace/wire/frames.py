"""Cuts a byte stream into length-prefixed frames, without I/O. Does not read their content.

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


class FrameReader:
    """Takes bytes by `feed`; iterating yields the payloads of the frames that are complete.

    Payloads are memoryviews. One that arrived whole is a view of the fed data: feed `bytes`, or do not reuse
    the buffer while payloads are in use. `limit_bytes` bounds a frame and so the bytes held between feeds.
    After a `FrameTooLargeError` close the connection: no later frame can be found.
    """

    def __init__(self, *, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._frames: deque[memoryview] = deque()
        self._parts: list[Buffer] = []
        self._held_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an incomplete frame."""
        return self._held_bytes

    def feed(self, data: Buffer) -> None:
        """Takes `data`. Raises `FrameTooLargeError` if a frame's length is over the limit or negative."""
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
        """Moves the missing bytes of the incomplete frame out of `data`; returns the rest of `data`."""
        view = memoryview(data)
        while self._held_bytes and len(view):
            take = view[: self._missing_bytes()]
            view = view[len(take) :]
            # Most often all of `data` is needed: `bytes` cannot change, and are kept as they are.
            self._parts.append(data if type(data) is bytes and len(take) == len(data) else bytes(take))
            self._held_bytes += len(take)
            if self._held_bytes >= LENGTH_SIZE_BYTES and not self._missing_bytes():
                self._frames.append(memoryview(b"".join(self._parts))[LENGTH_SIZE_BYTES:])
                self._parts = []
                self._held_bytes = 0
        return view

    def _missing_bytes(self) -> int:
        """How many bytes complete the length prefix, or then the frame."""
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
