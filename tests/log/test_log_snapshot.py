"""What a backup copies of a partition's folder is a whole log, whatever its broker does meanwhile."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

from fix_log import SMALL, batch, build, content, segments
from headrace.log import snapshot
from headrace.log.check import check_partition
from headrace.log.errors import LogError
from headrace.log.partition import PartitionLog
from headrace.log.snapshot import LogSnapshot

SIZES = [100] * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "topic-0"
    path.mkdir()
    (path / "partition.json").write_text(json.dumps({"topic_id": str(uuid.uuid4())}))
    return path


def copy_of(taken: LogSnapshot, target: Path) -> Path:
    """What a backup makes of it."""
    target.mkdir()
    for part in taken.segments:
        (target / part.name).write_bytes((taken.directory / part.name).read_bytes()[: part.length_bytes])
    for name in taken.indexes:
        shutil.copy(taken.directory / name, target / name)
    for name, small in taken.small_files.items():
        (target / name).write_bytes(small)
    return target


@pytest.mark.parametrize("clean", [True, False])
def test_a_stopped_log_is_copied_up_to_its_last_whole_batch(
    folder: Path, tmp_path: Path, clean: bool
) -> None:
    built = build(folder, SIZES, clean=clean)
    taken = snapshot.take(folder, None)
    assert (taken.start, taken.end, taken.problem) == (0, len(built.data), None)
    copied = copy_of(taken, tmp_path / "copy")
    assert not check_partition(copied).findings
    log = PartitionLog(copied, SMALL)
    assert content(log) == built.data
    log.close()


def test_a_torn_end_is_left_out(folder: Path) -> None:
    built = build(folder, SIZES)
    last = segments(folder)[-1]
    with last.open("ab") as file:
        file.write(batch(99, 100)[:50])
    taken = snapshot.take(folder, None)
    assert (taken.end, taken.problem) == (len(built.data), None)


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_it_ends_where_the_broker_says_also_inside_a_sealed_segment(
    folder: Path, tmp_path: Path, number: int
) -> None:
    built = build(folder, SIZES)
    end = [*built.starts, len(built.data)][number]
    (folder / "checkpoint").unlink()  # it knows a later end
    shutil.copy(_checkpoint_at_0(tmp_path), folder / "checkpoint")
    taken = snapshot.take(folder, end)
    assert (taken.end, taken.problem) == (end, None)
    copied = copy_of(taken, tmp_path / "copy")
    assert not check_partition(copied).findings
    log = PartitionLog(copied, SMALL)
    assert content(log) == built.data[:end]
    log.close()


def _checkpoint_at_0(tmp_path: Path) -> Path:
    other = tmp_path / "other-0"
    other.mkdir()
    PartitionLog(other, SMALL).abandon()
    return other / "checkpoint"


def test_damage_is_told_and_the_bytes_are_copied_all_the_same(folder: Path) -> None:
    built = build(folder, SIZES, clean=True)
    path = segments(folder)[1]
    path.write_bytes(path.read_bytes()[:-3])
    taken = snapshot.take(folder, None)
    assert taken.problem is not None and path.name in taken.problem
    assert taken.end == len(built.data)


def test_a_lost_checkpoint_is_told(folder: Path) -> None:
    build(folder, SIZES, clean=True)
    (folder / "checkpoint").unlink()
    taken = snapshot.take(folder, None)
    assert taken.problem is not None and "checkpoint" in taken.problem


def test_an_interrupted_set_aside_is_not_copied(folder: Path) -> None:
    build(folder, SIZES, clean=True)
    (folder / "set-aside.json").write_text("{}")
    with pytest.raises(LogError, match="repeat it"):
        snapshot.take(folder, None)


def test_a_folder_of_no_topic_is_not_copied(folder: Path) -> None:
    build(folder, SIZES, clean=True)
    (folder / "partition.json").write_text("{")
    with pytest.raises(LogError, match="nobody knows whose log this is"):
        snapshot.take(folder, None)
