"""The protocol's primitive types, packed by hand for headers, Produce and Fetch, where `kio` is too slow.

Source: https://kafka.apache.org/protocol#protocol_types and KIP-482 (flexible versions). `flexible` selects
compact strings and arrays. Readers take `(buffer, at)` and return `(value, position after it)`. On invalid
bytes they raise `MalformedMessageError` or one of `BROKEN`, a tuple for `except`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.errors import MalformedMessageError

Buffer = bytes | bytearray | memoryview

BROKEN: Final = (IndexError, ValueError, struct.error)
# Of one structure. The protocol defines at most five; more are read, because newer clients may send them.
TAGGED_FIELDS_MAX: Final = 32
# Of all arrays of one request together, nested ones included. What a request costs grows with its items, not
# with its bytes: a frame of 4 MB can hold two million empty names.
REQUEST_ITEMS_MAX: Final = 10_000
NO_TAGS: Final = b"\x00"
NO_UUID: Final = UUID(int=0)
UUIDS_KEPT_MAX: Final = 4_096

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


class LeaderAndEpoch(NamedTuple):
    """The present leader of a partition, sent with errors such as NOT_LEADER_OR_FOLLOWER (KIP-951)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Host and port of a leader named in a `LeaderAndEpoch` (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def uvarint(value: int) -> bytes:
    """Encodes `value` (not negative) as an unsigned varint."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 5 bytes."""
    value = buffer[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedMessageError("varint of more than 5 bytes")


class ItemBound:
    """How many array items a message may still have. Arrays are counted before their items are read."""

    __slots__ = ("items_max", "left")

    def __init__(self, items_max: int = REQUEST_ITEMS_MAX) -> None:
        self.items_max = self.left = items_max

    def take(self, number: int, bytes_left: int, item_min_bytes: int = 1) -> None:
        """Counts an array of `number` items. Raises `MalformedMessageError` if so many do not fit into the
        bytes that are left, or are more than a message may have.
        """
        if number * item_min_bytes > bytes_left:
            raise MalformedMessageError(f"array of {number} items in {bytes_left} bytes")
        self.left -= number
        if self.left < 0:
            raise MalformedMessageError(
                f"array of {number} items: a request may have at most {self.items_max} in all its arrays; "
                "send several requests"
            )


def count(value: int, flexible: bool) -> bytes:
    """Encodes an array's length."""
    return uvarint(value + 1) if flexible else INT32.pack(value)


def read_nullable_count(buffer: Buffer, at: int, flexible: bool) -> tuple[int, int]:
    """Reads an array's length; -1 for a null array."""
    if flexible:
        value, at = read_uvarint(buffer, at)
        return value - 1, at
    return INT32.unpack_from(buffer, at)[0], at + 4


def read_count(buffer: Buffer, at: int, flexible: bool) -> tuple[int, int]:
    """Reads an array's length; 0 for a null array."""
    value, at = read_nullable_count(buffer, at, flexible)
    return max(0, value), at


def string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else INT16.pack(len(encoded))) + encoded


def read_string(buffer: Buffer, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length = INT16.unpack_from(buffer, at)[0]
        at += 2
    if length < 0:
        return None, at
    end = at + length
    if end > len(buffer):
        raise MalformedMessageError(f"string of {length} bytes, {len(buffer) - at} left")
    return str(buffer[at:end], "utf-8"), end


def read_name(buffer: Buffer, at: int, flexible: bool) -> tuple[str, int]:
    """Reads a string that must not be null."""
    value, at = read_string(buffer, at, flexible)
    if value is None:
        raise MalformedMessageError("a name is null")
    return value, at


def bytes_length(length: int | None, flexible: bool) -> bytes:
    """Encodes the length of nullable bytes; None means null."""
    if length is None:
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    return uvarint(length + 1) if flexible else INT32.pack(length)


def read_bytes(buffer: memoryview, at: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Reads nullable bytes, as a view of `buffer`."""
    if flexible:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length = INT32.unpack_from(buffer, at)[0]
        at += 4
    if length < 0:
        return None, at
    end = at + length
    if end > len(buffer):
        raise MalformedMessageError(f"field of {length} bytes, {len(buffer) - at} left")
    return buffer[at:end], end


def read_uuid(buffer: Buffer, at: int) -> tuple[UUID, int]:
    return _uuid(bytes(buffer[at : at + 16])), at + 16


@lru_cache(UUIDS_KEPT_MAX)
def _uuid(data: bytes) -> UUID:
    """The same few topics are named again and again, and a UUID is slow to make."""
    return UUID(bytes=data)


def tags(fields: dict[int, bytes]) -> bytes:
    """Encodes the tagged fields of a flexible structure, sorted by tag."""
    if not fields:
        return NO_TAGS
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(parts)


def read_tags(buffer: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    """Reads the tagged fields, as views by tag."""
    number, at = read_uvarint(buffer, at)
    if number > TAGGED_FIELDS_MAX:
        raise MalformedMessageError(f"{number} tagged fields in one structure, at most {TAGGED_FIELDS_MAX}")
    fields: dict[int, memoryview] = {}
    for _ in range(number):
        tag, at = read_uvarint(buffer, at)
        size_bytes, at = read_uvarint(buffer, at)
        if at + size_bytes > len(buffer):
            raise MalformedMessageError(f"tagged field {tag} of {size_bytes} bytes, {len(buffer) - at} left")
        fields[tag] = buffer[at : at + size_bytes]
        at += size_bytes
    return fields, at


def skip_tags(buffer: memoryview, at: int) -> int:
    """Returns the position after the tagged fields."""
    if buffer[at] == 0:
        return at + 1
    return read_tags(buffer, at)[1]


def node_endpoints(endpoints: tuple[NodeEndpoint, ...]) -> bytes:
    """Encodes the tagged field of endpoints in Produce (v10) and Fetch (v16) responses."""
    parts = [count(len(endpoints), True)]
    for node in endpoints:
        parts += (
            INT32.pack(node.node_id),
            string(node.host, True),
            INT32.pack(node.port),
            string(node.rack, True),
            NO_TAGS,
        )
    return b"".join(parts)


def read_node_endpoints(buffer: memoryview) -> tuple[NodeEndpoint, ...]:
    number, at = read_count(buffer, 0, True)
    endpoints = []
    for _ in range(number):
        node_id = INT32.unpack_from(buffer, at)[0]
        host, at = read_name(buffer, at + 4, True)
        port = INT32.unpack_from(buffer, at)[0]
        rack, at = read_string(buffer, at + 4, True)
        at = skip_tags(buffer, at)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return tuple(endpoints)
