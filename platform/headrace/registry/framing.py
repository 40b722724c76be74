"""Confluent's framing of a value: byte 0, the schema id (4 bytes, big-endian), Avro binary. Pure."""

import struct
from typing import Final

MAGIC: Final = 0
PREFIX_SIZE_BYTES: Final = 5
_PREFIX: Final = struct.Struct(">bI")


class FramingError(ValueError):
    """The bytes are not a framed value: their producer did not use a schema registry's serializer."""


def prefix(schema_id: int) -> bytes:
    """Returns the five bytes before the payload."""
    return _PREFIX.pack(MAGIC, schema_id)


def split(value: bytes) -> tuple[int, bytes]:
    """Returns (schema id, payload). Raises `FramingError`."""
    if len(value) < PREFIX_SIZE_BYTES:
        raise FramingError(f"a framed value has at least {PREFIX_SIZE_BYTES} bytes, this one {len(value)}")
    magic, schema_id = _PREFIX.unpack_from(value)
    if magic != MAGIC:
        raise FramingError(f"a framed value begins with byte 0, this one with {magic & 0xFF}")
    return schema_id, value[PREFIX_SIZE_BYTES:]
