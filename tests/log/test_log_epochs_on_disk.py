"""A log knows its leader epochs after every kind of stop, whatever became of the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.log import checkpoint, epochs_below
from headrace.log.config import LogConfig
from headrace.log.epochs import EpochStart
from headrace.log.partition import PartitionLog
from headrace.wire.batch import LENGTH_END_BYTES, readdress
from headrace.wire.records import Record, encode_batch

BATCH = encode_batch([Record(0, 1_000, b"k", b"v" * 100)])
SIZE = len(BATCH)
SMALL = LogConfig(segment_bytes=3 * SIZE)
EPOCHS = (0, 0, 2, 2, 2, 2, 2, 7, 7)  # of the batches of `written`: three segments
STARTS = (EpochStart(0, 0), EpochStart(2, 2 * SIZE), EpochStart(7, 7 * SIZE))


@pytest.fixture
def written(tmp_path: Path) -> PartitionLog:
    log = PartitionLog(tmp_path / "t-0", SMALL)
    for epoch in EPOCHS:
        log.leader_epoch = epoch
        log.append(bytearray(BATCH))
    assert log.epochs.starts() == STARTS
    return log


def opened(log: PartitionLog) -> PartitionLog:
    return PartitionLog(log.directory, SMALL)


def change_saved(log: PartitionLog, epochs: tuple[EpochStart, ...] | None) -> None:
    saved = checkpoint.load(log.directory)
    assert saved is not None and saved.recovery_point == len(EPOCHS) * SIZE and saved.epochs == STARTS
    checkpoint.save(log.directory, replace(saved, epochs=epochs))


def set_epoch(log: PartitionLog, number: int, epoch: int) -> None:
    """Changes the stored epoch of one batch, which no checksum covers."""
    base = number // 3 * 3
    path = log.directory / f"{base * SIZE:020d}.log"
    content = bytearray(path.read_bytes())
    at = (number - base) * SIZE + LENGTH_END_BYTES
    content[at : at + 4] = epoch.to_bytes(4, "big")
    path.write_bytes(content)


def test_after_a_clean_stop(written: PartitionLog) -> None:
    written.close()
    assert opened(written).epochs.starts() == STARTS


def test_after_a_crash(written: PartitionLog) -> None:
    written.flush()
    written.abandon()
    assert opened(written).epochs.starts() == STARTS


def test_after_a_crash_with_a_torn_tail(written: PartitionLog) -> None:
    written.flush()
    written.abandon()
    last = written.directory / f"{6 * SIZE:020d}.log"
    last.write_bytes(last.read_bytes()[: SIZE + 10])  # epoch 7 was not durable
    assert opened(written).epochs.starts() == STARTS[:2]


@pytest.mark.parametrize(
    "saved",
    [
        None,
        (),
        (STARTS[0], STARTS[2]),
        (STARTS[0], EpochStart(3, 2 * SIZE), STARTS[2]),
        (*STARTS, EpochStart(9, 20 * SIZE)),
        (STARTS[1], STARTS[0]),
        (EpochStart("0", None),),  # type: ignore[arg-type]
    ],
)
def test_a_checkpoint_that_does_not_fit_is_not_believed(
    written: PartitionLog, saved: tuple[EpochStart, ...] | None
) -> None:
    written.close()
    change_saved(written, saved)
    assert opened(written).epochs.starts() == STARTS


@pytest.mark.parametrize("number", range(len(EPOCHS) - 1))
@pytest.mark.parametrize("epoch", [1, 2**30])
def test_one_rotten_epoch_changes_nothing(written: PartitionLog, number: int, epoch: int) -> None:
    written.close()
    set_epoch(written, number, epoch)
    assert opened(written).epochs.starts() == STARTS


def test_damage_below_the_recovery_point_does_not_keep_the_log_closed(written: PartitionLog) -> None:
    written.close()
    change_saved(written, None)
    path = written.directory / f"{3 * SIZE:020d}.log"
    content = bytearray(path.read_bytes())
    content[8:12] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert opened(written).epochs.starts() == (STARTS[0], STARTS[1], STARTS[2])


def test_retention_and_truncation(written: PartitionLog) -> None:
    written.request_checkpoint()
    written.flush()
    written.config = replace(SMALL, retention_bytes=4 * SIZE)
    assert written.delete_expired_segments()
    assert written.epochs.starts() == (EpochStart(2, 3 * SIZE), STARTS[2])
    written.close()
    again = opened(written)
    assert again.epochs.starts() == (EpochStart(2, 3 * SIZE), STARTS[2])
    again.truncate(7 * SIZE)
    assert again.epochs.starts() == (EpochStart(2, 3 * SIZE),)
    again.close()
    assert opened(written).epochs.starts() == (EpochStart(2, 3 * SIZE),)


def test_an_epoch_of_which_retention_left_nothing_makes_no_list_that_is_refused(
    written: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.request_checkpoint()
    written.flush()
    end = written.end_address
    written.config = replace(SMALL, retention_ms=0)
    assert written.delete_expired_segments() and written.start_address == end
    written.leader_epoch = 9
    written.append(bytearray(BATCH))
    assert written.epochs.starts() == (EpochStart(9, end),)
    written.close()

    def read_all(*_: object) -> None:
        raise AssertionError("the checkpoint's list is whole")

    monkeypatch.setattr(epochs_below, "_read_all", read_all)
    assert opened(written).epochs.starts() == (EpochStart(9, end),)


def test_a_copy_keeps_its_source_s_epochs(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "copy-0", SMALL)
    batches, address = bytearray(), 5_000
    for epoch in (4, 4, 6):
        batch = bytearray(BATCH)
        readdress(batch, 0, address, leader_epoch=epoch)
        batches += batch
        address += SIZE
    log.append_verbatim(batches)
    assert log.epochs.starts() == (EpochStart(4, 5_000), EpochStart(6, 5_000 + 2 * SIZE))
    log.restart(9_000)
    assert log.epochs.starts() == ()


def test_a_write_that_fails_leaves_no_epoch(written: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.pwritev", full)
        written.leader_epoch = 8
        with pytest.raises(Exception, match="No space"):
            written.append(bytearray(BATCH))
    assert written.epochs.starts() == STARTS


def test_a_list_that_names_no_batch_is_made_again_of_the_batches(written: PartitionLog) -> None:
    """Found by `make fuzz` (target `epochs`, seed 1056842577)."""
    written.close()
    change_saved(written, (*STARTS[:2], EpochStart(100, 7 * SIZE - 20)))
    log = opened(written)
    assert log.epochs.starts() == STARTS
    log.abandon()
