"""Varints of records: zigzag, of one byte for most numbers. A table of the short ones, and the odd bytes.

Owns how a number is written in a record. `wire.primitives` owns the unsigned varints of messages.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.errors import CorruptBatchError

VARINT_TABLE_SIZE: Final = 1 << 14


def zigzag(value: int) -> bytes:
    """Encodes `value` (any int64) as the shortest zigzag varint."""
    unsigned = (value << 1) ^ (value >> 63)
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)


VARINT_TABLE: Final = tuple(zigzag(value) for value in range(VARINT_TABLE_SIZE))
NULL: Final = zigzag(-1)
NO_HEADERS: Final = b"\x00"
ATTRIBUTES: Final = b"\x00"
"""No attribute of a record is defined."""


def varint(value: int) -> bytes:
    return VARINT_TABLE[value] if 0 <= value < VARINT_TABLE_SIZE else zigzag(value)


def read_more(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Reads a varint of several bytes after its first one; returns its unsigned value and where it ends."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise CorruptBatchError("varint of more than 10 bytes")


def read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number; returns it and where it ends. Raises `IndexError` at the end of `data`."""
    raw = data[at]
    at += 1
    if raw > 0x7F:
        raw, at = read_more(data, at, raw)
    return (raw >> 1) ^ -(raw & 1), at
