"""Compression of record batches: the four codecs, by `cramjam`. Knows nothing about batches.

Writes what the Java client reads: gzip; snappy in the framing of snappy-java; LZ4 frames of independent
blocks (Java refuses linked ones) without checksum, since the batch has its CRC; zstd. Reads what any client
writes.

Decompression is bounded twice: it never allocates more than the caller's `limit_bytes`, and beyond
`FREE_OUTPUT_BYTES` not more than `RATIO_MAX` bytes for each byte it was given. The output buffer grows up to
the lower of the two.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import cramjam

from headrace.wire.errors import CorruptBatchError, DecompressionLimitError
from headrace.wire.primitives import Buffer

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES: Final = 32 * 1024
XERIAL_BLOCKS_MAX: Final = 4096  # 128 MiB of the usual ones: the work is bounded even if blocks are tiny
FIRST_OUTPUT_BYTES: Final = 64 * 1024
FREE_OUTPUT_BYTES: Final = 64 * 1024 * 1024
"""Every batch may unpack to this much: a producer fills batches by their unpacked size, some MB at most."""
RATIO_MAX: Final = 1024
"""Beyond that, a higher ratio is a decompression bomb: real records compress by a factor of 3 to 100."""

_INT32 = struct.Struct(">i")
_OUTPUT_FULL = "failed to write whole buffer"


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Codec:
        """Returns the codec called `name`, in any case. Raises `ValueError` with the valid names."""
        try:
            return cls[name.upper()]
        except KeyError:
            names = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(f"no compression called {name!r}; choose one of {names}") from None


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compresses `data`; `NONE` returns a copy."""
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return bytes(data)


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int) -> bytes:
    """Decompresses `data`. Raises `DecompressionLimitError` if the output exceeds `output_max_bytes`,
    `CorruptBatchError` if `data` is not valid for the codec.
    """
    return bytes(decompress_view(codec, data, limit_bytes=limit_bytes))


def decompress_view(codec: Codec, data: Buffer, *, limit_bytes: int) -> memoryview:
    """Like `decompress`, without a copy of the output: a view that is writable, except for `NONE`."""
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise _limit_error(limit_bytes)
        return memoryview(data)
    limit_bytes = output_max_bytes(len(data), limit_bytes)
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        return _decompress_growing(codec, data, limit_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"{codec.name.lower()} data cannot be decompressed: {error}") from None


def output_max_bytes(compressed_bytes: int, limit_bytes: int) -> int:
    """Returns how much so many compressed bytes may unpack to, where the caller allows `limit_bytes`."""
    return min(limit_bytes, max(FREE_OUTPUT_BYTES, RATIO_MAX * compressed_bytes))


def _decompress_growing(codec: Codec, data: Buffer, limit_bytes: int) -> memoryview:
    decompress_into = {
        Codec.GZIP: cramjam.gzip.decompress_into,
        Codec.LZ4: cramjam.lz4.decompress_into,
        Codec.ZSTD: cramjam.zstd.decompress_into,
    }[codec]
    size_bytes = min(limit_bytes, max(FIRST_OUTPUT_BYTES, 8 * len(data)))
    while True:
        output = bytearray(size_bytes)
        try:
            used_bytes = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            del output  # an error that is kept would keep it, too
            if _OUTPUT_FULL not in str(error):
                raise
            if size_bytes >= limit_bytes:
                raise _limit_error(limit_bytes) from None
            size_bytes = min(limit_bytes, 4 * size_bytes)
        else:
            return memoryview(output)[:used_bytes]


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for at in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> memoryview:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _decompress_raw_snappy(view, limit_bytes)
    output = bytearray()
    at = len(XERIAL_HEADER)
    blocks = 0
    while at < len(view):
        blocks += 1
        if blocks > XERIAL_BLOCKS_MAX:
            raise DecompressionLimitError(f"more than {XERIAL_BLOCKS_MAX} blocks of snappy")
        if at + 4 > len(view):
            raise CorruptBatchError("snappy block ends inside its length")
        (size_bytes,) = _INT32.unpack_from(view, at)
        at += 4
        if not 0 < size_bytes <= len(view) - at:
            raise CorruptBatchError(f"snappy block of {size_bytes} bytes, {len(view) - at} left")
        output += _decompress_raw_snappy(view[at : at + size_bytes], limit_bytes - len(output))
        at += size_bytes
    return memoryview(output)


def _decompress_raw_snappy(view: memoryview, limit_bytes: int) -> memoryview:
    if not view:
        raise CorruptBatchError("snappy data is empty")
    size_bytes = cramjam.snappy.decompress_raw_len(view)
    if size_bytes > limit_bytes:
        raise _limit_error(limit_bytes)
    output = bytearray(size_bytes)
    used_bytes = cramjam.snappy.decompress_raw_into(view, output)
    return memoryview(output)[:used_bytes]


def _limit_error(limit_bytes: int) -> DecompressionLimitError:
    return DecompressionLimitError(f"data unpacks to more than {limit_bytes} bytes")
