"""Compressed data of any kind: decompression ends with the data or with one error, and within its bounds."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.compression import (
    FREE_OUTPUT_BYTES,
    Codec,
    compress,
    decompress,
    output_max_bytes,
)
from headrace.wire.errors import CorruptBatchError, DecompressionLimitError

PACKED = tuple(codec for codec in Codec if codec is not Codec.NONE)
LIMIT_BYTES = 256 << 20


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PACKED), st.binary(max_size=400))
def test_arbitrary_bytes_unpack_or_are_refused(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptBatchError):
        assert len(decompress(codec, data, limit_bytes=1 << 20)) <= 1 << 20


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PACKED), st.binary(min_size=1, max_size=3000), st.data())
def test_flipped_and_cut_data_unpack_or_are_refused(
    codec: Codec, data: bytes, choices: st.DataObject
) -> None:
    packed = bytearray(compress(codec, data))
    at = choices.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= choices.draw(st.integers(1, 255))
    cut = choices.draw(st.integers(0, len(packed)))
    for broken in (bytes(packed), bytes(packed[:cut])):
        with contextlib.suppress(CorruptBatchError):
            assert len(decompress(codec, broken, limit_bytes=1 << 20)) <= 1 << 20


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_stops_at_the_ratio_long_before_the_callers_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(160 << 20))
    assert output_max_bytes(len(bomb), LIMIT_BYTES) <= LIMIT_BYTES
    tracemalloc.start()
    try:
        if codec is Codec.ZSTD:  # the others pack to a thousandth at best, or to less
            with pytest.raises(DecompressionLimitError):
                decompress(codec, bomb, limit_bytes=LIMIT_BYTES)
        with pytest.raises(DecompressionLimitError):
            decompress(codec, bomb, limit_bytes=FREE_OUTPUT_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= 2 * FREE_OUTPUT_BYTES


def test_a_large_batch_that_packs_well_is_no_bomb() -> None:
    data = b"".join(b'{"path": "/company/%08d", "status": 200}' % i for i in range(1_700_000))
    assert len(data) > FREE_OUTPUT_BYTES
    packed = compress(Codec.ZSTD, data)
    assert decompress(Codec.ZSTD, packed, limit_bytes=LIMIT_BYTES) == data


def test_a_claimed_size_is_no_reason_to_allocate() -> None:
    """Raw snappy begins with the unpacked size; five bytes may claim 4 GiB."""
    with pytest.raises(DecompressionLimitError):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f", limit_bytes=1 << 40)
