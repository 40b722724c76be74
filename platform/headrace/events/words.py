"""Numbers of 8 bytes in a memory-mapped file, each written by a single store, which no SIGKILL divides.

`Struct.pack_into` is none: it fills its place with zeros first, and a process that is killed in between
leaves a 0 there.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from crc32c import crc32c

WORD: Final = struct.Struct("@q")
NUMBER_MAX: Final = 2**31 - 1  # of a checked word
_CHECKED: Final = struct.Struct("@iI")  # a number, and a checksum
_LOW: Final = 2**32 - 1
_ALONE: Final = b"alone"  # what a number stands for that stands for nothing else


def store(mapped: mmap.mmap, at: int, number: int) -> None:
    """Writes a number at a multiple of 8. The C library copies 8 bytes by one instruction."""
    mapped[at : at + WORD.size] = WORD.pack(number)


def checked(number: int, covered: bytes = _ALONE) -> bytes:
    """Returns a word: a number within `NUMBER_MAX`, and a CRC-32C of it and of what it stands for."""
    return _CHECKED.pack(number, crc32c(covered, number & _LOW))


def number_at(data: bytes, at: int) -> int:
    """Returns the number of a checked word, unchecked. Raises `struct.error`."""
    number: int = _CHECKED.unpack_from(data, at)[0]
    return number


def checked_at(data: bytes, at: int, covered: bytes = _ALONE) -> int:
    """Returns the number of a checked word. Raises `ValueError` if it or the covered bytes have changed, and
    `struct.error`.
    """
    number, checksum = _CHECKED.unpack_from(data, at)
    if crc32c(covered, number & _LOW) != checksum:
        raise ValueError(f"{number} at {at} has another checksum")
    return int(number)
