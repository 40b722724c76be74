"""Buffers for large request frames, used again as soon as nothing refers to them any more.

A fresh buffer of a megabyte costs the kernel a page fault per 4 KiB, and as much again when it is freed: an
eighth of the broker's CPU time when producers send 1 MB batches.
"""

from __future__ import annotations

from typing import Final

KEEP_FROM_BYTES: Final = 64 * 1024  # smaller frames come from memory that the allocator keeps anyway
KEEP_UPTO_BYTES: Final = 2 * 1024 * 1024  # batches are at most max.message.bytes, 1 MB by default
STEP_BYTES: Final = 128 * 1024  # frames of similar sizes share a buffer
KEPT_MAX_BYTES: Final = 8 * 1024 * 1024  # of all buffers that are kept, in use or not


class FrameBuffers:
    """Hands out buffers. Nobody gives one back: it is free once no memoryview of it exists."""

    __slots__ = ("_is_used", "_kept", "_kept_bytes")

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._kept_bytes = 0
        self._is_used = False  # since the last `release_idle`

    def take(self, size_bytes: int) -> memoryview:
        """Returns a writable buffer of exactly this size; its content is arbitrary."""
        if not KEEP_FROM_BYTES <= size_bytes <= KEEP_UPTO_BYTES:
            return memoryview(bytearray(size_bytes))
        self._is_used = True
        for buffer in self._kept:
            if len(buffer) >= size_bytes and _is_free(buffer):
                return memoryview(buffer)[:size_bytes]
        buffer = bytearray(-(-size_bytes // STEP_BYTES) * STEP_BYTES)
        self._keep(buffer)
        return memoryview(buffer)[:size_bytes]

    def release_idle(self) -> None:
        """Forgets all buffers unless one was taken since the last call."""
        if not self._is_used:
            self._kept.clear()
            self._kept_bytes = 0
        self._is_used = False

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def _keep(self, buffer: bytearray) -> None:
        """Keeps a new buffer instead of the oldest ones; those live on while somebody uses them."""
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > KEPT_MAX_BYTES:
            self._kept_bytes -= len(self._kept.pop(0))


def _is_free(buffer: bytearray) -> bool:
    """Python refuses to resize a bytearray while a memoryview of it exists."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
