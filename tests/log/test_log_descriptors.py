"""How many files of a log are open: a reader of all of it, or very many segments, take no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fix_log import batch
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.log.segments import OPEN_SEALED_MAX

SEGMENTS: Final = 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """Each segment has one batch."""
    made = PartitionLog(tmp_path, LogConfig(segment_bytes=1))
    for number in range(SEGMENTS):
        made.append(batch(number, 10))
    made.flush()
    yield made
    made.abandon()


def open_segments(folder: Path) -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += descriptor.readlink().parent == folder
        except FileNotFoundError:  # the descriptor of the list itself
            continue
    return found


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_address for segment in log._segments]


def test_a_reader_of_all_of_a_log_opens_few_files(log: PartitionLog) -> None:
    for address in bases(log):
        (piece, *_) = log.slices(address, 1)
        assert piece.read()
        del piece, _
    assert open_segments(log.directory) <= OPEN_SEALED_MAX + 1


def test_so_does_one_that_asks_for_much_at_once(log: PartitionLog) -> None:
    slices = log.slices(0, 1 << 20)
    assert len(slices) == SEGMENTS and all(piece.read() for piece in slices), "those that are sent stay open"
    del slices
    assert open_segments(log.directory) <= OPEN_SEALED_MAX + 1


def test_who_is_asked_where_an_offset_lies_opens_few_files(log: PartitionLog) -> None:
    for address in bases(log):
        assert log.position(address + 1) == address
    assert open_segments(log.directory) <= OPEN_SEALED_MAX + 1


def test_what_is_not_durable_stays_open(log: PartitionLog) -> None:
    for number in range(3 * OPEN_SEALED_MAX):
        log.append(batch(number, 10))
    assert open_segments(log.directory) >= 3 * OPEN_SEALED_MAX, "the next fsync is of these descriptors"


class _Unseen(list[Segment]):
    """Segments that nobody may look through."""

    def __iter__(self) -> Any:
        pytest.fail("a roll looked at every segment")

    def __getitem__(self, at: Any) -> Any:
        assert not isinstance(at, slice), "a roll looked at every segment"
        return super().__getitem__(at)


def test_a_roll_looks_at_few_segments(log: PartitionLog) -> None:
    """Of a log with 100,000 small ones each batch took 7 ms of the loop."""
    unseen = log._segments._segments = _Unseen(list(log._segments))
    log.append(batch(0, 10))
    assert len(unseen) == SEGMENTS + 1
    log._segments._segments = [unseen[at] for at in range(len(unseen))]
