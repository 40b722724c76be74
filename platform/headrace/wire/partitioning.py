"""Kafka's default partitioner: a key gets the partition that any other client would choose. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_REMEMBERED_KEY_MAX_BYTES: Final = 64


def murmur2(key: bytes) -> int:
    """Returns MurmurHash2 (32 bits, unsigned) as Kafka's Java client computes it (`Utils.murmur2`)."""
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Returns the partition of `key`: the hash without its sign bit, modulo the count."""
    hash_ = _remembered(key) if len(key) <= _REMEMBERED_KEY_MAX_BYTES else murmur2(key)
    return (hash_ & 0x7FFFFFFF) % partition_count


# Keys repeat, and hashing a key takes longer than everything else in sending its record.
_remembered = lru_cache(maxsize=8192)(murmur2)
