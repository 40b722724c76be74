"""One partition is mended with a backup's bytes: what is whole stays, what is damaged is the backup's."""

from __future__ import annotations

import json
import shutil
import uuid
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from fix_bad_sector import BadSector
from fix_failing_disk import FailingDisk
from fix_log import LED_SIZE_BYTES, SMALL, Built, append, batch, build, content, segments, written
from headrace.backup import manifest, mendable, mending
from headrace.backup.errors import DamagedBackupError, RefusedError
from headrace.backup.manifest import Manifest, Piece
from headrace.backup.mending import Mended
from headrace.backup.pace import Pace
from headrace.backup.writer import Writer
from headrace.log import snapshot
from headrace.log.claims import Claims
from headrace.log.partition import PartitionLog
from headrace.wire.topic_names import TOPIC_NAME_LENGTH_MAX

BACKED_UP = 20
WRITTEN_LATER = 10


class World(NamedTuple):
    """A broker's folder with a partition whose log went on after a backup."""

    data_dir: Path
    folder: Path
    backup: Path
    piece: Piece
    built: Built

    def mend(self, *, may_be_shorter: bool = False) -> Mended:
        name = self.folder.name
        return mending.mend(self.backup, self.piece, name, self.data_dir, may_be_shorter=may_be_shorter)

    def served(self) -> bytes:
        """What the broker serves once it opens the log."""
        log = PartitionLog(self.folder, SMALL)
        found = content(log)
        log.close()
        return found


def backed_up(folder: Path, backup: Path, topic_id: str) -> Piece:
    """Takes a backup of one partition; returns its broker's piece of it."""
    partition = folder.name
    backup.mkdir()
    taken = snapshot.take(folder, None)
    with Writer(backup, [], Pace()) as writer:
        for part in taken.segments:
            writer.copy(f"broker/{partition}/{part.name}", folder / part.name, part.length_bytes)
        for name in taken.indexes:
            writer.copy(f"broker/{partition}/{name}", folder / name)
        for name, small in taken.small_files.items():
            writer.put(f"broker/{partition}/{name}", small)
        files = tuple(writer.files.values())
    facts = {"partitions": {partition: {"topic_id": topic_id, "start": 0, "end": taken.end}}}
    piece = Piece("broker", "broker", "east", "data/broker", facts)
    manifest.save(backup, Manifest(0, 0, "/home", "host", {}, {}, (piece,), files))
    return piece


def world_of(tmp_path: Path, partition: str) -> World:
    data_dir = tmp_path / "broker"
    folder = data_dir / partition
    folder.mkdir(parents=True)
    topic_id = str(uuid.uuid4())
    (folder / "partition.json").write_text(json.dumps({"topic_id": topic_id}))
    build(folder, [100] * BACKED_UP, clean=True)
    backup = tmp_path / "backup"
    piece = backed_up(folder, backup, topic_id)
    log = PartitionLog(folder, SMALL)
    for number in range(BACKED_UP, BACKED_UP + WRITTEN_LATER):
        log.append(batch(number, 100))
        log.flush()
    log.close()
    data = b"".join(path.read_bytes() for path in segments(folder))
    return World(data_dir, folder, backup, piece, Built(data, [], len(data)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_of(tmp_path, "topic-0")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_mended_and_what_was_written_later_stays(world: World) -> None:
    flip(segments(world.folder)[1], 100)
    done = world.mend()
    assert world.served() == world.built.data
    assert done.end == len(world.built.data) and done.kept_as is not None
    assert done.kept_as.name == "topic-0.0.damaged"
    assert not list(world.data_dir.glob("*.restoring"))


def test_the_longest_topic_is_mended(tmp_path: Path) -> None:
    """Its folder's name leaves no room for a suffix."""
    world = world_of(tmp_path, "t" * TOPIC_NAME_LENGTH_MAX + "-0")
    flip(segments(world.folder)[1], 100)
    done = world.mend()
    assert world.served() == world.built.data
    assert done.kept_as is not None and done.kept_as.name.endswith(".0.damaged")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_segment_is_mended(world: World, number: int) -> None:
    segments(world.folder)[number].unlink()
    world.mend()
    assert world.served() == world.built.data


def test_a_segment_that_was_cut_short_is_mended(world: World) -> None:
    path = segments(world.folder)[1]
    path.write_bytes(path.read_bytes()[:-200])
    world.mend()
    assert world.served() == world.built.data


def test_damage_in_the_segment_that_was_written_during_the_backup_is_mended(world: World) -> None:
    ends = manifest.load(world.backup).files_of("broker")
    last = max(entry.path for entry in ends if entry.path.endswith(".log")).rpartition("/")[2]
    assert (world.folder / last).stat().st_size > (world.backup / "broker/topic-0" / last).stat().st_size
    flip(world.folder / last, 100)
    world.mend()
    assert world.served() == world.built.data


def test_damage_behind_the_backup_is_refused_by_addresses(world: World) -> None:
    path = segments(world.folder)[-2]
    flip(path, 100)
    before = path.read_bytes()
    with pytest.raises(RefusedError, match=r"the addresses \[\d+, \d+\) are not in this backup"):
        world.mend()
    assert path.read_bytes() == before and not list(world.data_dir.glob("*.restoring"))


def test_a_lost_folder_needs_consent_as_its_end_is_unknown(world: World) -> None:
    shutil.rmtree(world.folder)
    with pytest.raises(RefusedError, match="--shorter"):
        world.mend()
    assert not world.folder.exists()
    done = world.mend(may_be_shorter=True)
    assert world.served() == world.built.data[: done.end]
    assert done.end == world.piece.facts["partitions"]["topic-0"]["end"]


def test_a_whole_log_is_left_alone(world: World) -> None:
    with pytest.raises(RefusedError, match="is whole"):
        world.mend()
    assert world.served() == world.built.data


def test_a_log_that_its_broker_has_open_is_left_alone(world: World) -> None:
    flip(segments(world.folder)[1], 100)
    claims = Claims(world.data_dir)
    assert claims.take("topic-0")
    with pytest.raises(RefusedError, match="open in a running broker"):
        world.mend()
    claims.close()


def test_another_topic_of_the_same_name_is_left_alone(world: World) -> None:
    flip(segments(world.folder)[1], 100)
    (world.folder / "partition.json").write_text(json.dumps({"topic_id": str(uuid.uuid4())}))
    with pytest.raises(RefusedError, match="deleted and created again"):
        world.mend()


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_what_was_cut_off_since_the_backup_is_not_put_in_the_place_of_what_followed(
    tmp_path: Path, place: int
) -> None:
    """The backup is of a broker that was down, with a tail that nobody had acknowledged. It came back: the
    tail was cut off, and batches of the next leader, as large, have its addresses.
    """
    folder, backup = tmp_path / "broker" / "cut-0", tmp_path / "backup"
    folder.mkdir(parents=True)
    topic_id = str(uuid.uuid4())
    (folder / "partition.json").write_text(json.dumps({"topic_id": topic_id}))
    written(folder, *[(1, number) for number in range(4)]).close()
    piece = backed_up(folder, backup, topic_id)
    with closing(PartitionLog(folder)) as log:
        log.truncate(2 * LED_SIZE_BYTES)
        append(log, (2, 12), (2, 13), (2, 14))
        whole = content(log)
    world = World(folder.parent, folder, backup, piece, Built(whole, [], len(whole)))
    at = place * LED_SIZE_BYTES
    damaged = max(path for path in segments(folder) if int(path.stem) <= at)
    flip(damaged, at - int(damaged.stem) + 100)
    before = damaged.read_bytes()
    if place < 2:
        world.mend()
        assert world.served() == whole
    else:
        with pytest.raises(
            RefusedError, match=r"leader epoch 2, and .* has one of epoch 1.*nothing was chan"
        ):
            world.mend()
        assert damaged.read_bytes() == before and not list(world.data_dir.glob("*.restoring"))


def test_a_rotten_backup_changes_nothing(world: World) -> None:
    flip(segments(world.folder)[1], 100)
    flip(segments(world.backup / "broker/topic-0")[1], 50)
    before = {path.name: path.read_bytes() for path in world.folder.iterdir()}
    with pytest.raises(DamagedBackupError, match="1 files are damaged"):
        world.mend()
    assert {path.name: path.read_bytes() for path in world.folder.iterdir()} == before


def test_what_an_interrupted_mend_left_is_removed(world: World) -> None:
    flip(segments(world.folder)[1], 100)
    (world.data_dir / "topic-0.restoring").mkdir()
    (world.data_dir / "topic-0.restoring" / "half").write_text("x")
    world.mend()
    assert world.served() == world.built.data


def test_what_the_disk_can_no_longer_read_is_mended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segments(world.folder)[1]
    BadSector(monkeypatch, path, 100, 200)
    mended = world.mend()
    assert world.served() == world.built.data
    base = int(path.stem)
    ((start, end),) = mended.ranges
    assert start <= base + 100 and base + 200 <= end
    assert not list(world.data_dir.glob("*.restoring"))


def test_a_mend_that_fails_leaves_nothing_on_a_full_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(segments(world.folder)[1], 100)
    before = {path.name: path.read_bytes() for path in world.folder.iterdir()}
    FailingDisk(monkeypatch, room_bytes=50)
    with pytest.raises(OSError, match="No space left on device"):
        world.mend()
    assert not list(world.data_dir.glob("*.restoring"))
    assert {path.name: path.read_bytes() for path in world.folder.iterdir()} == before


def test_a_partition_is_found_by_its_datacenter(world: World) -> None:
    made = manifest.load(world.backup)
    assert mendable.find(made, "topic-0", None) == [world.piece]
    for partition, datacenter, broker_id in (
        ("topic-1", None, None),
        ("topic-0", "west", None),
        ("topic-0", None, 9),
    ):
        with pytest.raises(RefusedError, match="has no partition"):
            mendable.find(made, partition, datacenter, broker_id)


def test_of_several_replicas_in_a_home_the_one_that_is_offline_is_mended(tmp_path: Path) -> None:
    """Whatever was given, each partition of a site with replicas was refused: "add --datacenter"."""
    facts = {"partitions": {"topic-0": {"topic_id": "t"}}}
    pieces = {name: Piece(name, "broker", name[:4], name, facts) for name in ("east-1", "east-2", "west-1")}
    configurations = {name: {"broker_id": int(name[-1])} for name in pieces}
    made = Manifest(0, 0, "/home", "host", {}, configurations, tuple(pieces.values()), ())
    with pytest.raises(RefusedError, match=r"several datacenters of this backup \(east, west\)"):
        mendable.find(made, "topic-0", None)
    found = mendable.find(made, "topic-0", "east")
    assert found == [pieces["east-1"], pieces["east-2"]]
    assert mendable.find(made, "topic-0", "east", 2) == [pieces["east-2"]]
    folders = {name: tmp_path / name for name in ("east-1", "east-2")}
    with pytest.raises(RefusedError, match=r"\(east-1, east-2\): add --broker"):  # their disks are new
        mendable.choose(found, "topic-0", folders)
    for folder in folders.values():
        folder.mkdir()
    with closing(Claims(folders["east-1"])) as broker:
        assert broker.take("topic-0")
        assert mendable.choose(found, "topic-0", folders) == pieces["east-2"]
    with pytest.raises(RefusedError, match="add --broker"):
        mendable.choose(found, "topic-0", folders)
    assert mendable.choose(found, "topic-0", {"east-1": folders["east-1"]}) == pieces["east-1"]
    with pytest.raises(RefusedError, match="no unit east-1, east-2, which had topic-0"):
        mendable.choose(found, "topic-0", {})
