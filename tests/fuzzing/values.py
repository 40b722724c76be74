"""Values that break programs, and changes that break bytes. All of it follows one seeded `random.Random`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

TEXTS: Final = (
    "",
    "a",
    ".",
    "..",
    "../..",
    "a/b",
    "a\nb",
    "\x1b[2J",
    "<script>alert(1)</script>",
    "%s%n",
    "x" * 249,
    "x" * 250,
    "\u0000",
    "\u202e",
    "日本語",
    "__consumer_offsets",
    "_audit",
)
RAW_TEXTS: Final = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"x" * 40_000)
"""Bytes that are no UTF-8, and a text that is longer than an int16 of some readers."""
MUTATIONS_MAX: Final = 6


def integer(rng: random.Random, bits: int) -> int:
    """An integer of so many bits, signed: mostly small or at an edge."""
    top = 1 << (bits - 1)
    kind = rng.random()
    if kind < 0.5:
        return rng.choice((0, 0, 1, 1, 2, 3, -1, 10, 100))
    if kind < 0.8:
        return rng.choice((top - 1, -top, -2, top // 2, -top + 1, min(top - 1, 30_000), min(top - 1, 65_536)))
    return rng.randrange(-top, top)


def text(rng: random.Random, known: Sequence[str]) -> bytes:
    """A name: usually one that the server knows, else one that servers mistake for something else."""
    kind = rng.random()
    if known and kind < 0.75:
        return rng.choice(known).encode()
    if kind < 0.97:
        return rng.choice(TEXTS).encode()
    return rng.choice(RAW_TEXTS)


def mutate(rng: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Changes a few places: bits, bytes, four-byte lengths, pieces removed, repeated, inserted or swapped."""
    out = bytearray(data)
    for _ in range(rng.randint(1, MUTATIONS_MAX)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            out[at : at + 4] = (integer(rng, 32) & 0xFFFFFFFF).to_bytes(4, "big")
        elif kind == 3:
            del out[at : at + rng.choice((1, 2, 4, 16, len(out)))]
        elif kind == 4:
            piece = bytes(out[at : at + rng.choice((1, 4, 61, 200))])
            out[at:at] = piece * rng.choice((1, 2, 50))
        elif kind == 5:
            out[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == 6 and words:
            out[at:at] = rng.choice(words)
        elif kind == 7:
            out[at : at + 10] = b"\xff" * 9 + b"\x01"
    return bytes(out)


def uvarint(value: int) -> bytes:
    """`value`'s lowest 64 bits as an unsigned varint."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """`value` as a zigzag varint of at most ten bytes."""
    return uvarint((value << 1) ^ (value >> 63))
