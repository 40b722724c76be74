"""The file of high watermarks: it may say less than was known, never more."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.replicas.high_watermarks import FILE_NAME, HighWatermark, load, save
from headrace.log.directory import PartitionName

KNOWN = {
    PartitionName("t", 0): HighWatermark(UUID(int=7), 1_234, 3),
    PartitionName("u", 5): HighWatermark(UUID(int=9), 0, -1),
}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path) == {}
    save(tmp_path, KNOWN)
    assert load(tmp_path) == KNOWN


@given(st.data())
def test_a_file_with_a_flipped_bit_or_cut_off_says_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("rot", numbered=True)
    save(folder, KNOWN)
    path = folder / FILE_NAME
    rotten = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(rotten) - 1))
    rotten[bit // 8] ^= 1 << bit % 8
    for damaged in (bytes(rotten), path.read_bytes()[: data.draw(st.integers(0, len(rotten) - 1))]):
        path.write_bytes(damaged)
        assert load(folder) in ({}, KNOWN)  # a flipped bit may change the case of a checksum's letter


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"null",
        b"[[1]]",
        b'[["t", "x", "y", 1, 1]]',
        b'[["t", 0, "00000000-0000-0000-0000-000000000007", 9]]',
        b"\xff",
    ],
)
def test_a_file_of_another_content_is_not_used(tmp_path: Path, body: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"%08x\n" % crc32c(body) + body)
    assert load(tmp_path) == {}
