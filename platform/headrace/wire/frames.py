"""Cuts a byte stream into length-prefixed frames, without I/O. Does not read their content.

A frame is a big-endian int32 length and that many bytes (https://kafka.apache.org/protocol#protocol_common).
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headrace.wire.errors import FrameTooLargeError
from headrace.wire.frame_buffers import KEEP_FROM_BYTES, FrameBuffers
from headrace.wire.primitives import Buffer

PAGE_BYTES: Final = mmap.PAGESIZE
LENGTH_SIZE_BYTES: Final = 4
FRAME_LIMIT_BYTES: Final = 100 * 1024 * 1024  # Kafka's own default, socket.request.max.bytes
KEEP_UPTO_BYTES: Final = 12 * 1024 * 1024  # frames up to this size get a buffer that is used again
KEPT_MAX_BYTES: Final = 2 * KEEP_UPTO_BYTES  # one is read while the one before is still in use
SMALL_FRAMES_MAX: Final = 256  # without a large one: then buffers that are kept are freed

_LENGTH = struct.Struct(">i")


class FrameReader:
    """Takes bytes by `feed`; iterating yields the payloads of the frames that are complete.

    Once a frame has begun, the rest of it may be written where `wanted` says instead, which copies nothing:
    call `filled` then. Payloads are memoryviews. One that arrived whole is a view of the fed data: feed
    `bytes`, or do not reuse the buffer while payloads are in use. The memory of another one is used again
    once no view of it exists. `limit_bytes` bounds a frame and so the bytes held between feeds; a length
    alone takes no memory. `place` says, from a large frame's first bytes, how far behind a page's begin it
    begins in memory. After a `FrameTooLargeError` close the connection: no later frame can be found.
    """

    def __init__(
        self, *, limit_bytes: int = FRAME_LIMIT_BYTES, place: Callable[[memoryview], int] | None = None
    ) -> None:
        self.limit_bytes = limit_bytes
        self._frames: deque[memoryview] = deque()
        self._head = b""  # the first 1 to 3 bytes of a frame's length
        self._partial: memoryview | None = None  # the frame that has begun
        self._filled_bytes = 0
        self._is_kept = True  # the memory of that frame
        self._place = place
        self._small_frames = 0
        self._buffers = FrameBuffers(
            keep_upto_bytes=KEEP_UPTO_BYTES, kept_max_bytes=KEPT_MAX_BYTES, reuses_early=True
        )

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an incomplete frame."""
        return len(self._head) if self._partial is None else LENGTH_SIZE_BYTES + self._filled_bytes

    def wanted(self) -> memoryview | None:
        """Returns where the next bytes of the frame that has begun belong; None between frames."""
        return None if self._partial is None else self._partial[self._filled_bytes :]

    def filled(self, size_bytes: int) -> None:
        """Takes the bytes that were written to what `wanted` returned."""
        self._filled_bytes += size_bytes
        partial = self._partial
        if partial is not None and self._filled_bytes == len(partial):
            self._frames.append(partial.toreadonly())
            self._partial = None
            if not self._is_kept:
                self._buffers.arrived(len(partial))

    def feed(self, data: Buffer) -> None:
        """Takes `data`. Raises `FrameTooLargeError` if a frame's length is over the limit or negative."""
        view = memoryview(data)
        end = len(view)
        at = self._complete_held(view)
        while at + LENGTH_SIZE_BYTES <= end:
            begin = at + LENGTH_SIZE_BYTES
            after = begin + self._length(view, at)
            if after > end:
                self._begin_frame(after - begin, view[begin:])
                return
            self._frames.append(view[begin:after])
            self._note_small()
            at = after
        if at < end:
            self._head += bytes(view[at:])

    def __iter__(self) -> Iterator[memoryview]:
        while self._frames:
            yield self._frames.popleft()

    def _complete_held(self, view: memoryview) -> int:
        """Takes what belongs to the length prefix or the frame that has begun; returns how much that is."""
        at = 0
        if self._head:
            at = min(LENGTH_SIZE_BYTES - len(self._head), len(view))
            self._head += bytes(view[:at])
            if len(self._head) < LENGTH_SIZE_BYTES:
                return at
            head, self._head = self._head, b""
            self._begin_frame(self._length(memoryview(head), 0), view[:0])
        while (target := self.wanted()) is not None and at < len(view):
            size_bytes = min(len(target), len(view) - at)
            target[:size_bytes] = view[at : at + size_bytes]
            self.filled(size_bytes)
            at += size_bytes
        return at

    def _begin_frame(self, length_bytes: int, beginning: memoryview) -> None:
        into_page = 0
        if length_bytes < KEEP_FROM_BYTES:
            self._note_small()
        elif self._place is not None:
            into_page = self._place(beginning) % PAGE_BYTES
        self._partial, self._is_kept = self._buffers.begin(length_bytes, len(beginning), into_page)
        self._partial[: len(beginning)] = beginning
        self._filled_bytes = 0
        self.filled(len(beginning))

    def _note_small(self) -> None:
        self._small_frames += 1
        if self._small_frames > SMALL_FRAMES_MAX:
            self._small_frames = 0
            self._buffers.release_idle()

    def _length(self, buffer: memoryview, at: int) -> int:
        length: int = _LENGTH.unpack_from(buffer, at)[0]
        if not 0 <= length <= self.limit_bytes:
            raise FrameTooLargeError(
                f"frame of {length} bytes, at most {self.limit_bytes} are allowed (is the peer Kafka?)"
            )
        return length
