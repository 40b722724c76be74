"""Buffers for frames. Whole ones are used again as soon as nothing refers to them any more.

A fresh buffer of a megabyte costs the kernel a page fault per 4 KiB, and as much again when it is freed: an
eighth of the broker's CPU time when producers send 1 MB batches, and most of what a follower pays to receive.
But a peer that only announces a frame must not cost the frame's size: unless enough of it has arrived, and
much of the receive bound is free, the buffer is a mapping, to which the kernel gives memory page by page as
bytes arrive.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final, Protocol

KEEP_FROM_BYTES: Final = 64 * 1024  # smaller frames come from memory that the allocator keeps anyway
KEEP_UPTO_BYTES: Final = 2 * 1024 * 1024  # batches are at most max.message.bytes, 1 MB by default
STEP_BYTES: Final = 128 * 1024  # frames of similar sizes share a buffer
PAGES_MORE_BYTES: Final = (
    2 * mmap.PAGESIZE
)  # of each kept buffer, so that a frame begins anywhere in a page; not counted
KEPT_MAX_BYTES: Final = 8 * 1024 * 1024  # of all buffers that are kept, in use or not
WHOLE_UPTO_BYTES: Final = 4 * 1024  # of a frame of which hardly anything has arrived
WHOLE_PER_ARRIVED: Final = 64  # bytes of memory that one byte that has arrived may cost

_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class HasRoom(Protocol):
    """A bound of memory: whether much of it is free."""

    def has_room(self, size_bytes: int) -> bool: ...


class FrameBuffers:
    """Hands out buffers. Nobody gives one back: it is free once no memoryview of it exists.

    `bound`: of all that is received. Frames of at most `keep_upto_bytes` get buffers that are kept, at most
    `kept_max_bytes` of them. `reuses_early`: a frame of which little has arrived gets a kept buffer, too, if
    one is free: for the answers of one peer, who can delay only itself.
    """

    __slots__ = (
        "_bound",
        "_is_used",
        "_keep_upto_bytes",
        "_kept",
        "_kept_bytes",
        "_kept_max_bytes",
        "_mapped_last_bytes",
        "_reuses_early",
    )

    def __init__(
        self,
        bound: HasRoom | None = None,
        *,
        keep_upto_bytes: int = KEEP_UPTO_BYTES,
        kept_max_bytes: int = KEPT_MAX_BYTES,
        reuses_early: bool = False,
    ) -> None:
        self._bound = bound
        self._keep_upto_bytes = keep_upto_bytes
        self._kept_max_bytes = kept_max_bytes
        self._reuses_early = reuses_early
        self._mapped_last_bytes = 0  # of the last frame that came whole, and whose buffer was a mapping
        self._kept: list[bytearray] = []
        self._kept_bytes = 0
        self._is_used = False  # since the last `release_idle`

    def begin(self, size_bytes: int, arrived_bytes: int, into_page: int = 0) -> tuple[memoryview, bool]:
        """Returns a buffer for a frame of which so many bytes are here, and whether all of its memory is
        taken now; otherwise it is taken as bytes arrive. `into_page`: how far behind the begin of a page the
        buffer begins, if it is a kept one or a mapping.
        """
        if size_bytes <= max(WHOLE_UPTO_BYTES, arrived_bytes * WHOLE_PER_ARRIVED) and (
            size_bytes <= self._keep_upto_bytes and (self._bound is None or self._bound.has_room(size_bytes))
        ):
            if size_bytes < KEEP_FROM_BYTES:
                return memoryview(bytearray(size_bytes)), True
            kept = self.take(size_bytes, into_page)
            if kept is not None:
                return kept, True
        if self._reuses_early and (free := self._free(size_bytes, into_page)) is not None:
            return free, True
        return _mapped(into_page + size_bytes)[into_page:], False

    def arrived(self, size_bytes: int) -> None:
        """Notes that a frame came whole into a mapping. After the second one of its size there is a buffer
        for the next ones.
        """
        if KEEP_FROM_BYTES <= size_bytes <= min(self._keep_upto_bytes, 2 * self._mapped_last_bytes):
            self.take(size_bytes)
        self._mapped_last_bytes = size_bytes

    def take(self, size_bytes: int, into_page: int = 0) -> memoryview | None:
        """Returns a writable buffer of exactly this size, with any content, that is kept. None if as many as
        may be kept are in use: a further one would cost all its pages now, and be used once.
        """
        free = self._free(size_bytes, into_page)
        if free is not None:
            return free
        self._is_used = True
        new_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        if not self._make_room(new_bytes):
            return None
        buffer = bytearray(new_bytes + PAGES_MORE_BYTES)
        self._kept.append(buffer)
        self._kept_bytes += new_bytes
        return _view(buffer, size_bytes, into_page)

    def _free(self, size_bytes: int, into_page: int) -> memoryview | None:
        for buffer in self._kept:
            if _size_bytes(buffer) >= size_bytes and _is_free(buffer):
                self._is_used = True
                return _view(buffer, size_bytes, into_page)
        return None

    def release_idle(self) -> None:
        """Forgets all buffers unless one was taken since the last call."""
        if not self._is_used:
            self._kept.clear()
            self._kept_bytes = 0
        self._is_used = False

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def _make_room(self, size_bytes: int) -> bool:
        """Forgets the oldest buffers that nobody uses, if that makes room for a new one."""
        excess_bytes = self._kept_bytes + size_bytes - self._kept_max_bytes
        forgotten: list[bytearray] = []
        for buffer in self._kept:
            if excess_bytes <= 0:
                break
            if _is_free(buffer):
                forgotten.append(buffer)
                excess_bytes -= _size_bytes(buffer)
        if excess_bytes > 0:
            return False
        self._kept = [buffer for buffer in self._kept if not any(buffer is other for other in forgotten)]
        self._kept_bytes -= sum(map(_size_bytes, forgotten))
        return True


def _size_bytes(buffer: bytearray) -> int:
    """Returns the size of the largest frame that a kept buffer takes."""
    return len(buffer) - PAGES_MORE_BYTES


def _view(buffer: bytearray, size_bytes: int, into_page: int) -> memoryview:
    """Returns so much of a kept buffer, from its first page's begin on and so many bytes behind that."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    begin = -address % mmap.PAGESIZE + into_page
    return memoryview(buffer)[begin : begin + size_bytes]


def _mapped(size_bytes: int) -> memoryview:
    """Returns zeroed memory that costs nothing until it is written. Raises `OSError`."""
    mapping = mmap.mmap(-1, max(1, size_bytes), flags=_PRIVATE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # Else the kernel may give 2 MiB for the first byte.
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(mapping)[:size_bytes]


def _is_free(buffer: bytearray) -> bool:
    """Python refuses to resize a bytearray while a memoryview of it exists."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
