"""Recovery: for any damage in the last segment, exactly the batches before it are kept."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.log import checkpoint, files
from headrace.log.config import LogConfig
from headrace.log.errors import LogDamagedError
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop
from headrace.wire.records import Record, encode_batch

CONFIG = LogConfig(segment_bytes=600)


def batch(number: int, size: int, producer: int = 9) -> bytes:
    record = Record(0, 1_000 + number, None, bytes([number % 256]) * size)
    return encode_batch([record], producer_id=producer, producer_epoch=0, base_sequence=number)


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30))


def starts(data: bytes) -> list[int]:
    return [at for at, _ in hop(data)]


def written(path: Path, sizes: list[int], *, clean: bool) -> bytes:
    """A log of these batches; after a clean close, or left as a crash leaves it (no checkpoint)."""
    log = PartitionLog(path, CONFIG)
    for number, size in enumerate(sizes):
        log.append(batch(number, size))
    log.flush()
    data = content(log)
    if clean:
        log.close()
    else:
        log.abandon()
    return data


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    where=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255) | st.none(),
)
@example(sizes=[0], where=0.0, flip=None)
@example(sizes=[10, 20, 30], where=0.999, flip=1)
def test_any_cut_or_flip_in_the_last_segment_keeps_every_batch_before_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], where: float, flip: int | None
) -> None:
    folder = tmp_path_factory.mktemp("log")
    data = written(folder / "t-0", sizes, clean=False)
    last = max((folder / "t-0").glob("*.log"))
    base = int(last.stem)
    damaged_at = int(where * last.stat().st_size)
    raw = bytearray(last.read_bytes())
    if flip is None:
        del raw[damaged_at:]
    else:
        raw[damaged_at] ^= flip
    last.write_bytes(raw)

    log = PartitionLog(folder / "t-0", CONFIG)
    kept = max([at for at in (*starts(data), len(data)) if at <= base + damaged_at])
    # The leader epoch's four bytes are unused and outside the checksum: a flip there is not damage.
    in_epoch = flip is not None and 12 <= base + damaged_at - kept < 16
    if in_epoch:
        assert log.end_address == len(data)
    else:
        assert log.end_address == kept
        assert content(log) == data[:kept]
    whole = starts(data[: log.end_address])
    entry = log.producers.get(9)
    assert (entry.batches[-1].last_sequence if entry else -1) == len(whole) - 1
    # The log continues where it was cut, and new batches are durable.
    log.append(batch(99, 5))
    log.flush()
    end = log.end_address
    log.close()
    again = PartitionLog(folder / "t-0", CONFIG)
    assert again.end_address == end
    again.close()
    shutil.rmtree(folder)


def test_the_cut_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = written(tmp_path / "t-0", [10, 20], clean=False)
    with (tmp_path / "t-0" / f"{0:020d}.log").open("r+b") as file:
        file.truncate(len(data) - 1)
    with caplog.at_level(logging.WARNING):
        PartitionLog(tmp_path / "t-0", CONFIG).close()
    second = starts(data)[1]
    assert f"cut {len(data) - 1 - second} bytes off at address {second}" in caplog.text


def test_after_a_clean_stop_nothing_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path / "t-0", [100] * 20, clean=True)
    reads: list[int] = []
    monkeypatch.setattr("headrace.log.recovery._read", lambda *a: reads.append(1))
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    assert log.end_address == len(data)
    entry = log.producers.get(9)
    assert entry is not None and entry.batches[-1].last_sequence == 19
    assert reads == []
    log.close()


def test_only_what_follows_the_recovery_point_is_checked(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0", LogConfig())
    log.append(batch(0, 50))
    log.request_checkpoint()
    log.flush()
    point = log.end_address
    log.append(batch(1, 50))
    log.flush()
    log.abandon()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[point - 1] ^= 1  # below the recovery point: trusted
    path.write_bytes(raw)
    log = PartitionLog(tmp_path / "t-0", LogConfig())
    assert log.end_address == len(raw)
    log.close()


@pytest.mark.parametrize("damage", ["missing", "garbage", "flipped"])
def test_a_lost_or_broken_checkpoint_costs_a_scan_not_data(tmp_path: Path, damage: str) -> None:
    data = written(tmp_path / "t-0", [30] * 15, clean=True)
    path = tmp_path / "t-0" / checkpoint.FILE_NAME
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"not a checkpoint")
    else:
        raw = bytearray(path.read_bytes())
        raw[20] ^= 4
        path.write_bytes(raw)
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    assert content(log) == data
    entry = log.producers.get(9)
    assert entry is not None and entry.batches[-1].last_sequence == 14
    log.close()


def test_a_missing_segment_below_the_recovery_point_is_refused_not_cut(tmp_path: Path) -> None:
    written(tmp_path / "t-0", [100] * 20, clean=True)
    segments = sorted((tmp_path / "t-0").glob("*.log"))
    assert len(segments) > 3
    segments[1].unlink()
    with pytest.raises(LogDamagedError, match="the segment is missing"):
        PartitionLog(tmp_path / "t-0", CONFIG)
    assert segments[2].exists()


def test_half_written_temporary_files_are_removed(tmp_path: Path) -> None:
    written(tmp_path / "t-0", [10], clean=True)
    leftover = tmp_path / "t-0" / "checkpoint.tmp"
    leftover.write_bytes(b"half")
    PartitionLog(tmp_path / "t-0", CONFIG).close()
    assert not leftover.exists()


def test_an_index_that_is_written_while_its_segment_is_cut_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would take the segment for a sealed one, miss the next one, and keep the log closed."""
    log = PartitionLog(tmp_path / "t-0", CONFIG)
    for number in range(10):
        log.append(batch(number, 100))
    job = log.begin_flush()
    assert job is not None
    log.end_flush(job.run())
    second = sorted((tmp_path / "t-0").glob("*.log"))[1]
    indexings = iter(log.begin_index, None)
    (late,) = [each for each in indexings if each.path == second]
    cut_to = log.position(int(second.stem)) + len(batch(3, 100))
    replace = files.replace_file

    def while_it_is_cut(path: Path, content: bytes) -> None:
        log.truncate(cut_to)
        replace(path, content)

    monkeypatch.setattr("headrace.log.index.replace_file", while_it_is_cut)
    late.run()
    assert not second.with_suffix(".index").exists()
    log.abandon()
    assert PartitionLog(tmp_path / "t-0", CONFIG).end_address == cut_to


@settings(max_examples=40, deadline=None)
@given(
    point=st.integers(0, 2**62),
    producers=st.dictionaries(
        st.integers(0, 2**62), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=4
    ),
    times=st.dictionaries(st.integers(0, 2**62), st.integers(-1, 2**62), max_size=4),
    at=st.floats(0, 1, exclude_max=True),
)
def test_checkpoints_round_trip_and_damage_is_detected(
    point: int, producers: dict[int, list[int]], times: dict[int, int], at: float
) -> None:
    from headrace.log.producers import ProducerEntry, StoredBatch, pack

    entries = tuple(
        (number, ProducerEntry(3, tuple(StoredBatch(s, s, s) for s in sequences), 17))
        for number, sequences in producers.items()
    )
    saved = checkpoint.Checkpoint(point, entries, times)
    raw = checkpoint.encode(saved)
    packed = replace(saved, producers=tuple((number, pack(entry)) for number, entry in entries))
    assert checkpoint.decode(raw) == packed and checkpoint.encode(packed) == raw
    broken = bytearray(raw)
    broken[int(at * len(raw))] ^= 0x20
    assert checkpoint.decode(bytes(broken)) in (None, packed)  # a hex digit's case may change without meaning
