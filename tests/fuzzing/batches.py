"""Record batches that lie: in their header, in their records, in what they decompress to. Many have a right
checksum, so that a reader has to look further.
"""

from __future__ import annotations

import gzip
import random
import struct
from typing import Final

import cramjam
from crc32c import crc32c

from fuzzing.values import integer, mutate, varint

RECORDS: Final = (1, 1, 2, 5, 30)
TIME_MS: Final = 1_790_000_000_000
BOMB_BYTES: Final = 64 << 20
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_COMPRESS: Final = {
    1: lambda data: gzip.compress(data, 1),
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def records(rng: random.Random) -> bytes:
    """What a Produce request carries for a partition: usually one batch, at times none, two, or garbage."""
    kind = rng.random()
    if kind < 0.03:
        return rng.randbytes(rng.choice((0, 1, 60, 61, 200)))
    if kind < 0.08:
        return batch(rng) + batch(rng)
    return batch(rng)


def batch(rng: random.Random) -> bytes:
    """A batch v2."""
    number = rng.choice(RECORDS)
    plain = _bomb(rng) if rng.random() < 0.003 else b"".join(_record(rng, place) for place in range(number))
    if rng.random() < 0.2:
        plain = mutate(rng, plain)
    codec = rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 7))
    packed = _COMPRESS[codec](plain) if codec in _COMPRESS else plain
    if codec and rng.random() < 0.1:
        packed = mutate(rng, packed)
    return sealed(rng, packed, number, codec)


def sealed(rng: random.Random, packed: bytes, number: int, codec: int) -> bytes:
    """The batch of these packed records; its header lies in one place in five batches."""
    last_delta, base_ms, max_ms = number - 1, TIME_MS, TIME_MS + number - 1
    producer_id, epoch, sequence = -1, -1, -1
    attributes = codec
    lie = rng.randrange(40)
    if lie == 0:
        last_delta = integer(rng, 32)
    elif lie == 1:
        base_ms = integer(rng, 64)
    elif lie == 2:
        max_ms = integer(rng, 64)
    elif lie == 3:
        base_ms = max_ms = TIME_MS * 1000
    elif lie == 4:
        number = integer(rng, 32)
    elif lie == 5:
        number = last_delta = (1 << 31) - 1
    elif lie == 6:
        attributes |= rng.choice((0x08, 0x10, 0x20, 0x40, 0x7FC0))
    elif lie in (7, 8):
        producer_id, epoch, sequence = rng.randrange(3), rng.choice((0, 1, 32767)), rng.randrange(4)
        if lie == 8:
            producer_id, epoch, sequence = integer(rng, 64), integer(rng, 16), integer(rng, 32)
    tail = _AFTER_CRC.pack(attributes, last_delta, base_ms, max_ms, producer_id, epoch, sequence, number)
    crc = crc32c(packed, crc32c(tail))
    length = 49 + len(packed)
    if rng.random() < 0.02:
        crc ^= 1
    if rng.random() < 0.02:
        length = integer(rng, 32)
    head = struct.pack(">qiibI", 0, length, -1, 2 if rng.random() > 0.01 else rng.randrange(4), crc)
    return head + tail + packed


def honest_batch(value: bytes, time_ms: int) -> bytes:
    """A batch of one record, in which nothing lies."""
    body = b"\x00\x00\x00" + varint(-1) + varint(len(value)) + value + varint(0)
    packed = varint(len(body)) + body
    tail = _AFTER_CRC.pack(0, 0, time_ms, time_ms, -1, -1, -1, 1)
    return struct.pack(">qiibI", 0, 49 + len(packed), -1, 2, crc32c(packed, crc32c(tail))) + tail + packed


def _record(rng: random.Random, place: int) -> bytes:
    def length(value: int) -> bytes:
        return varint(value if rng.random() > 0.004 else integer(rng, rng.choice((32, 64))))

    key = None if rng.random() < 0.4 else rng.randbytes(rng.choice((0, 4)))
    value = None if rng.random() < 0.05 else rng.randbytes(rng.choice((0, 1, 50, 300)))
    body = b"\x00" + length(place) + length(place)
    body += length(-1) if key is None else length(len(key)) + key
    body += length(-1) if value is None else length(len(value)) + value
    headers = rng.choice((0, 0, 0, 1, 3))
    body += length(headers)
    for _ in range(headers):
        body += length(1) + b"h" + length(2) + b"hi"
    return length(len(body)) + body


def _bomb(rng: random.Random) -> bytes:
    """Zeros: they compress a thousandfold, and each zero byte may pass for an empty record."""
    return bytes(rng.choice((1 << 20, BOMB_BYTES)))
