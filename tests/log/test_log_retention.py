"""Retention: what expires, by time and by size, and what does not; segments that roll by age."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.log.config import LogConfig
from headrace.log.errors import AddressOutOfRangeError
from headrace.log.files import FileSlice
from headrace.log.partition import PartitionLog
from headrace.log.retention import FUTURE_MAX_MS
from headrace.log.segment import ColdSegmentError
from headrace.wire.batch import read_header
from headrace.wire.records import Record, encode_batch

DAY_MS = 86_400_000


def batch(value: bytes = b"v", count: int = 1, **fields: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000 + i, None, value) for i in range(count)], **fields))


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30))


def segment_count(log: PartitionLog) -> int:
    return len(list(log.directory.glob("*.log")))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def filled(path: Path, config: LogConfig, clock: Callable[[], int]) -> PartitionLog:
    log = PartitionLog(path, config, clock)
    for number in range(20):
        log.append(batch(b"%02d" % number * 100))
    log.request_checkpoint()
    log.flush()
    return log


def test_retention_by_size_keeps_at_least_that_much(tmp_path: Path) -> None:
    log = filled(
        tmp_path / "t-0", LogConfig(segment_bytes=1_000, retention_bytes=2_500, retention_ms=-1), Clock()
    )
    before = log.size_bytes
    deleted = log.delete_expired_segments()
    assert deleted and log.start_address > 0
    assert 2_500 <= log.size_bytes < 3_600 < before
    assert not any(path.with_suffix("").exists() for path in deleted)
    with pytest.raises(AddressOutOfRangeError):
        log.position(0)
    assert log.position(log.start_address) == log.start_address
    log.close()
    again = PartitionLog(tmp_path / "t-0")
    assert again.start_address == log.start_address
    again.close()


def test_what_is_not_committed_does_not_count_for_retention_by_size(tmp_path: Path) -> None:
    """A leader that nobody follows any more deleted events for what it wrote alone. That was cut off then: of
    what was committed its log had less than `retention.bytes`, and a part of it was younger than any limit.
    """
    log = filled(
        tmp_path / "t-0", LogConfig(segment_bytes=1_000, retention_bytes=2_500, retention_ms=-1), Clock()
    )
    committed_end = 3_200
    log.delete_expired_segments(upto=committed_end)
    log.truncate(log.position(committed_end))
    assert log.size_bytes >= 2_500 - 261, "a batch may lie across the committed end"
    log.close()


def test_retention_by_time_counts_from_the_append(tmp_path: Path) -> None:
    clock = Clock()
    log = filled(tmp_path / "t-0", LogConfig(segment_bytes=1_000, retention_ms=60_000), clock)
    clock.now_ms += 59_000  # the events' own timestamps (1,000 ms after the epoch) are ancient
    assert log.delete_expired_segments() == []
    end = log.end_address
    clock.now_ms += 1_001
    assert log.delete_expired_segments()
    assert (log.start_address, log.end_address) == (end, end), "even the last segment is rolled, then deleted"
    log.append(batch(b"goes on"))
    log.flush()
    assert read_header(content(log)).address == end
    log.close()


@pytest.mark.parametrize(
    ("age_ms", "is_deleted"),
    [
        (8 * DAY_MS, True),
        (6 * DAY_MS, False),
        (0, False),
        (-FUTURE_MAX_MS, False),
        (-FUTURE_MAX_MS - 1, True),
        (-400 * DAY_MS, True),
    ],
)
def test_events_that_are_younger_than_the_clock_was_stay(
    tmp_path: Path, age_ms: int, is_deleted: bool
) -> None:
    """The clock was eight days behind when they were written, and is right again. Timestamps of the far
    future are not believed.
    """
    clock = Clock()
    clock.now_ms = right_ms = 1_800_000_000_000
    clock.now_ms -= 8 * DAY_MS
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_000, retention_ms=7 * DAY_MS), clock)
    for _ in range(20):
        log.append(bytearray(encode_batch([Record(0, right_ms - age_ms, None, b"x" * 200)])))
    log.request_checkpoint()
    log.flush()
    clock.now_ms = right_ms
    assert bool(log.delete_expired_segments()) == is_deleted
    log.close()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_events_stay_until_their_timestamps_are_known(tmp_path: Path, *, is_damaged: bool) -> None:
    """As before, but the broker died meanwhile: whether the clock was behind, only the events can tell."""
    clock = Clock()
    clock.now_ms = right_ms = 1_800_000_000_000
    clock.now_ms -= 8 * DAY_MS
    config = LogConfig(segment_bytes=1_000, retention_ms=7 * DAY_MS)
    log = PartitionLog(tmp_path / "t-0", config, clock)
    for number in range(20):
        log.append(bytearray(encode_batch([Record(0, right_ms, None, b"x" * 200)])))
        if number == 2:
            log.request_checkpoint()  # a start reads what lies behind it, in the middle of the first segment
        log.flush()
    size_bytes = log.size_bytes
    log.abandon()
    for index in (tmp_path / "t-0").glob("*.index"):
        index.unlink()
    oldest = min((tmp_path / "t-0").glob("*.log"))
    if is_damaged:
        with oldest.open("r+b") as file:
            file.seek(278)  # the length of the second batch
            file.write(b"\xff" * 4)
    for path in (tmp_path / "t-0").glob("*.log"):
        os.utime(path, (clock.now_ms / 1000, clock.now_ms / 1000))
    clock.now_ms = right_ms
    log = PartitionLog(tmp_path / "t-0", config, clock)
    with pytest.raises(ColdSegmentError) as cold:
        log.delete_expired_segments()
    job = log.begin_index(cold.value.segment)
    assert job is not None
    cold.value.segment.learn(job.run(), job.problem, job.islands)
    assert (job.problem is not None) == is_damaged
    assert log.delete_expired_segments() == [] and log.size_bytes == size_bytes
    clock.now_ms += 7 * DAY_MS
    assert oldest.with_name(oldest.name + ".tmp") in log.delete_expired_segments()
    log.abandon()


def test_retention_never_deletes_what_is_not_flushed(tmp_path: Path) -> None:
    clock = Clock()
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_024, retention_ms=1), clock)
    for _ in range(20):
        log.append(batch(b"x" * 200))
    clock.now_ms += 1_000
    assert log.delete_expired_segments() == []
    log.request_checkpoint()
    log.flush()
    assert log.delete_expired_segments()
    log.close()


def test_a_slice_in_flight_outlives_its_segment(tmp_path: Path) -> None:
    clock = Clock()
    log = filled(tmp_path / "t-0", LogConfig(segment_bytes=1_000, retention_ms=10), clock)
    data = content(log)
    held: list[FileSlice] = log.slices(0, 1_000)
    clock.now_ms += 1_000
    log.delete_expired_segments()
    log.close()
    assert b"".join(each.read() for each in held) == data[: sum(each.length_bytes for each in held)]


def test_a_segment_rolls_by_age(tmp_path: Path) -> None:
    clock = Clock()
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_ms=5_000, retention_ms=-1), clock)
    log.append(batch())
    clock.now_ms += 4_999
    log.delete_expired_segments()
    assert segment_count(log) == 1
    clock.now_ms += 1
    log.delete_expired_segments()
    assert segment_count(log) == 2
    log.close()


def test_a_segment_rolls_that_was_begun_while_the_clock_was_ahead(tmp_path: Path) -> None:
    """Else it would take events for as long as the clock was ahead, and all of them would stay."""
    clock = Clock()
    clock.now_ms += 365 * DAY_MS
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_ms=5_000, retention_ms=-1), clock)
    log.append(batch())
    clock.now_ms -= 365 * DAY_MS
    for _ in range(2):
        log.delete_expired_segments()
        assert segment_count(log) == 2
    log.close()


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_segment_rolls_by_age_however_often_its_broker_is_restarted(
    tmp_path: Path, *, is_crash: bool
) -> None:
    """Its file says when it was written last. A week is `segment.ms`, and there is a restart each day."""
    clock = Clock()
    clock.now_ms = begun_ms = 1_800_000_000_000
    config = LogConfig(segment_ms=7 * DAY_MS, retention_ms=-1)
    log = PartitionLog(tmp_path / "t-0", config, clock)
    while segment_count(log) == 1:
        log.append(batch())
        log.request_checkpoint()
        log.flush()
        if is_crash:
            log.append(batch())
            log.abandon()
        else:
            log.close()
        for path in log.directory.glob("*.log"):
            os.utime(path, (clock.now_ms / 1000, clock.now_ms / 1000))
        clock.now_ms += DAY_MS
        log = PartitionLog(tmp_path / "t-0", config, clock)
        log.delete_expired_segments()
        assert clock.now_ms <= begun_ms + 7 * DAY_MS
    assert clock.now_ms == begun_ms + 7 * DAY_MS
    log.close()


def test_a_segment_was_begun_when_the_one_before_it_ended(tmp_path: Path) -> None:
    """Where no checkpoint tells it: it was begun since."""
    clock = Clock()
    clock.now_ms = 1_800_000_000_000
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=300), clock)
    log.append(batch(b"x" * 100))
    log.flush()
    before = log.directory / "00000000000000000000.log"
    log.append(batch(b"x" * 200))
    log.flush()
    assert segment_count(log) == 2
    log.abandon()
    os.utime(before, (clock.now_ms / 1000 - 3600, clock.now_ms / 1000 - 3600))
    again = PartitionLog(tmp_path / "t-0", LogConfig(segment_ms=3_600_000), clock)
    again.delete_expired_segments()
    assert segment_count(again) == 3
    again.close()
