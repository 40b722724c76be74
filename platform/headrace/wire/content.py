"""What batches hold, as one number: the sum of their digests. Pure.

A batch's digest is that of its header from the checksum on: the CRC-32C that its producer computed over all
of its bytes, attributes, times, producer, sequence number and count. None of these changes on the way to
another broker, so equal batches have equal digests everywhere. Digests are added modulo 2^128: the order of
batches does not matter, sums of adjacent ranges add up, and two equal batches do not cancel each other.

It tells accidents from what a producer sent: rot that was copied with a new checksum, a batch from another
log, a copy that was edited. An enemy who can choose bytes can keep a CRC-32C as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from headrace.wire.batch import CRC_AT, HEADER_SIZE_BYTES
from headrace.wire.primitives import Buffer

CONTENT_SIZE_BYTES: Final = 16
CONTENT_SPAN: Final = 2 ** (8 * CONTENT_SIZE_BYTES)
NO_BATCHES: Final = 0
"""The content of no batches."""


def content_of(buffer: Buffer, at: int = 0) -> int:
    """Returns the content of the batch at `at`, of which at least the header is in the buffer."""
    header = buffer[at + CRC_AT : at + HEADER_SIZE_BYTES]
    return int.from_bytes(blake2b(header, digest_size=CONTENT_SIZE_BYTES).digest())


def added(one: int | None, other: int | None) -> int | None:
    """Returns the content of both together; None if one is not known."""
    return None if one is None or other is None else (one + other) % CONTENT_SPAN


def subtracted(whole: int | None, part: int | None) -> int | None:
    """Returns the content of `whole` without `part`; None if one is not known."""
    return None if whole is None or part is None else (whole - part) % CONTENT_SPAN


def total(contents: Iterable[int | None]) -> int | None:
    """Returns the content of all together; None if one is not known."""
    found: int | None = NO_BATCHES
    for each in contents:
        found = added(found, each)
    return found


def hex_of(content: int | None) -> str | None:
    """Returns a content as documents and tables hold it: 32 hexadecimal digits."""
    return None if content is None else f"{content:032x}"


def from_hex(text: str | None) -> int | None:
    """Returns the content of hexadecimal digits. Raises `ValueError` for any other text."""
    if text is None:
        return None
    if len(text) != 2 * CONTENT_SIZE_BYTES:
        raise ValueError(f"a content of {len(text)} digits")
    return int.from_bytes(bytes.fromhex(text))


def to_bytes(content: int | None) -> bytes | None:
    """Returns a content as records hold it: 16 bytes, big-endian."""
    return None if content is None else content.to_bytes(CONTENT_SIZE_BYTES)


def from_bytes(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data)
