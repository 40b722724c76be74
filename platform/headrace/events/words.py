"""Numbers of 8 bytes in a memory-mapped file, each written by a single store, which no SIGKILL divides.

`Struct.pack_into` is none: it fills its place with zeros first, and a process that is killed in between
leaves a 0 there.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

WORD: Final = struct.Struct("@q")


def store(mapped: mmap.mmap, at: int, number: int) -> None:
    """Writes a number at a multiple of 8. The C library copies 8 bytes by one instruction."""
    mapped[at : at + WORD.size] = WORD.pack(number)
