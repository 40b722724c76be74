"""Logs that an older headrace wrote, with baseOffset = address, are refused; their files stay as they are."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.log import checkpoint
from headrace.log.checkpoint import Checkpoint
from headrace.log.directory import LOG_FORMAT, OWNER_FILE, LogDirectory
from headrace.log.epochs import EpochStart
from headrace.log.errors import OldLogFormatError
from headrace.log.partition import PartitionLog
from headrace.wire.records import Record, encode_batch

GOLDEN = Path(__file__).parent.parent / "golden"


def old_batch(address: int, count: int) -> bytes:
    """A batch as it was stored until November 2026."""
    records = [Record(0, 1_000, None, b"v")] * count
    size_bytes = len(encode_batch(records))
    return encode_batch(records, base_offset=address, last_offset_delta=size_bytes - 1)


def old_log(folder: Path) -> dict[str, bytes]:
    """Writes an old log of three batches without a checkpoint; returns its files."""
    folder.mkdir()
    data = b""
    for count in (1, 5, 2):
        data += old_batch(len(data), count)
    (folder / f"{0:020d}.log").write_bytes(data)
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_old_batches_are_refused_not_cut(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    before = old_log(folder)
    for _ in range(2):
        with pytest.raises(
            OldLogFormatError, match=r"t-0: the batch at address 0: an older headrace"
        ) as raised:
            PartitionLog(folder)
        assert str(folder) in str(raised.value)
        assert "empty data directory" in str(raised.value)
    assert files(folder) == before


def test_old_batches_behind_new_ones_are_refused_not_cut(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = PartitionLog(folder)
    log.append(encode_batch([Record(0, 1_000, None, b"v")]))
    log.flush()
    end = log.end_address
    log.abandon()
    with (folder / f"{0:020d}.log").open("ab") as file:
        file.write(old_batch(end, 3))
    before = files(folder)
    with pytest.raises(OldLogFormatError, match=f"the batch at address {end}"):
        PartitionLog(folder)
    assert files(folder) == before


def test_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    old_log(folder)
    (folder / checkpoint.FILE_NAME).write_bytes((GOLDEN / "checkpoint").read_bytes())
    before = files(folder)
    with pytest.raises(OldLogFormatError, match=r"t-0/checkpoint: format 1: an older headrace"):
        PartitionLog(folder)
    assert files(folder) == before


def test_an_old_data_directory_is_refused(tmp_path: Path) -> None:
    owner = tmp_path / OWNER_FILE
    owner.write_text(json.dumps({"broker_id": 7}))
    with (
        LogDirectory(tmp_path) as directory,
        pytest.raises(OldLogFormatError, match=f"{OWNER_FILE}: it lacks"),
    ):
        directory.claim(7)
    assert json.loads(owner.read_text()) == {"broker_id": 7}
    owner.unlink()
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        made = directory.directory_id
    fields = {"broker_id": 7, "log_format": LOG_FORMAT}
    assert json.loads(owner.read_text()) == fields | {"directory_id": made, "age": 0, "noted_age": 0}
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        assert directory.directory_id == made, "as long as it is the same disk"
    owner.write_text(json.dumps(fields))
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        assert directory.directory_id not in ("", made), "a directory of before gets one"


def test_a_cut_below_the_old_numbers_is_still_a_cut(tmp_path: Path) -> None:
    """Only whole old headers count as old: other damage is cut as before."""
    folder = tmp_path / "t-0"
    log = PartitionLog(folder)
    log.append(encode_batch([Record(0, 1_000, None, b"v")]))
    log.flush()
    end = log.end_address
    log.abandon()
    with (folder / f"{0:020d}.log").open("ab") as file:
        file.write(encode_batch([Record(0, 1_000, None, b"v")], base_offset=end))
    again = PartitionLog(folder)
    assert again.end_address == end
    again.close()
    lineage = again.notes.lineage
    saved = checkpoint.load(folder)
    assert saved is not None and saved.begun is not None
    assert replace(saved, begun=None) == Checkpoint(end, epochs=(EpochStart(0, 0),), lineage=lineage)
