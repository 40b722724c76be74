"""What happens to log files while their brokers are down: each kind writes the truth into its plant first."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from drill.drill_plants import Place, SitePlant, StoredBatch, numbers, place_of
from drill.drill_site import DrillSite, batches_of
from fix_audit_world import resealed
from headrace.audit.findings import Status
from headrace.wire.batch import readdress

SPARE_TOPIC: Final = "drill-spare"
FIRST_ROUNDS: Final = 5
"""How many batches a log has when the older copy of its folder is made."""
SEGMENT_BYTES: Final = 1024
"""Of the topics whose logs have several segments: two batches each."""

Kind = Callable[[DrillSite, SitePlant, random.Random], None]
"""Plants one failure while the brokers are down."""


def _in_batch(change: Callable[[StoredBatch], bytes], *statuses: Status, datacenter: str = "east") -> Kind:
    """One batch in the middle of a log file becomes something else of the same size."""

    def plant(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
        file = site.log_file(plant.topic, datacenter)
        batches = batches_of(file)
        victim = batches[rng.randrange(1, len(batches) - 1)]
        plant.victims, plant.statuses, plant.places = numbers([victim]), statuses, (place_of([victim]),)
        data = bytearray(file.read_bytes())
        data[victim.start : victim.end] = change(victim)
        file.write_bytes(data)

    return plant


def _zeroed(batch: StoredBatch) -> bytes:
    return bytes(len(batch.data))


def _flipped(batch: StoredBatch) -> bytes:
    return batch.data[:-3] + bytes([batch.data[-3] ^ 4]) + batch.data[-2:]


def _resealed(batch: StoredBatch) -> bytes:
    return resealed(batch.data)


def cut_out(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """A batch is cut out of the middle of the file: those behind it lie at wrong addresses."""
    file = site.log_file(plant.topic)
    batches = batches_of(file)
    at = rng.randrange(1, len(batches) - 2)
    plant.victims, plant.statuses = numbers(batches[at:]), (Status.CORRUPT, Status.LOST)
    first, data = batches[at], file.read_bytes()
    plant.places = (Place(0, first.start, len(data) - len(first.data)),)
    file.write_bytes(data[: first.start] + data[first.end :])


def tail_cut(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """The file ends some batches earlier."""
    file = site.log_file(plant.topic)
    batches = batches_of(file)
    gone = batches[len(batches) - rng.randint(1, 4) :]
    plant.victims, plant.statuses = numbers(gone), (Status.LOST, Status.ALTERED)
    plant.places = (place_of(gone),)
    os.truncate(file, gone[0].start)


def of_another_topic(site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """The file is another topic's: of the same producer, with the same numbers."""
    file, other = site.log_file(plant.topic), site.log_file(SPARE_TOPIC)
    batches = batches_of(file)
    plant.victims, plant.places = numbers(batches), (place_of(batches),)
    plant.statuses = (Status.ALTERED, Status.CORRUPT, Status.LOST)
    file.write_bytes(other.read_bytes())


def segments_swapped(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """Two sealed segments of one log change places: whole batches of right checksums, at wrong addresses."""
    first, second = rng.sample(site.segments(plant.topic)[:-1], 2)
    _swap(plant, (0, first), (0, second))


def partitions_swapped(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    """Two partitions of a topic swap a segment: batches of the same producer, with the same numbers, sizes
    and addresses, and other events in them.
    """
    pairs = zip(site.segments(plant.topic, 0)[:-1], site.segments(plant.topic, 1)[:-1], strict=True)
    equal = [pair for pair in pairs if pair[0].name == pair[1].name and _size(pair[0]) == _size(pair[1])]
    one, other = rng.choice(equal)
    _swap(plant, (0, one), (1, other))


def _swap(plant: SitePlant, *segments: tuple[int, Path]) -> None:
    held = [(partition, batches_of(file)) for partition, file in segments]
    plant.victims = {number for partition, batches in held for number in numbers(batches, partition)}
    plant.places = tuple(place_of(batches, partition) for partition, batches in held)
    plant.statuses = (Status.ALTERED, Status.CORRUPT, Status.LOST)
    (_, one), (_, other) = segments
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _size(file: Path) -> int:
    return file.stat().st_size


def made_again(_site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """Planted once the brokers have started again: nothing is lost, and not all is copied."""
    plant.is_silenced = True


def _appended(which: Callable[[random.Random], int]) -> Kind:
    """A batch is appended once more behind the log's end, with the address of its place."""

    def plant(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
        file = site.log_file(plant.topic)
        victim = batches_of(file)[which(rng)]
        plant.victims, plant.statuses = numbers([victim]), (Status.DUPLICATED,)
        copy = bytearray(victim.data)
        readdress(copy, 0, _size(file), leader_epoch=victim.header.partition_leader_epoch)
        with file.open("ab") as opened:
            opened.write(copy)

    return plant


def restored(site: DrillSite, plant: SitePlant, _rng: random.Random) -> None:
    """The folder is replaced by the older copy of itself."""
    file = site.log_file(plant.topic)
    older = site.directory / "older" / file.parent.name
    kept = len(batches_of(older / file.name))
    plant.victims, plant.statuses = numbers(batches_of(file)[kept:]), (Status.LOST,)
    shutil.rmtree(file.parent)
    shutil.copytree(older, file.parent)


def restored_and_grown(site: DrillSite, plant: SitePlant, rng: random.Random) -> None:
    restored(site, plant, rng)
    plant.grows = True


def nothing(_site: DrillSite, _plant: SitePlant, _rng: random.Random) -> None:
    """The brokers, the mirror and the auditor only stop and start again."""


KINDS: Final[dict[str, Kind]] = {
    "log: a batch zeroed": _in_batch(_zeroed, Status.CORRUPT, Status.LOST),
    "log: a batch altered": _in_batch(_flipped, Status.CORRUPT, Status.LOST),
    "log: a batch altered, its CRC right": _in_batch(_resealed, Status.ALTERED),
    "log: a batch cut out": cut_out,
    "log: its tail cut": tail_cut,
    "log: another topic's in its place": of_another_topic,
    "log: two of its segments swapped": segments_swapped,
    "log: partitions' segments swapped": partitions_swapped,
    "log: its topic made again": made_again,
    "log: its last batch appended again": _appended(lambda _rng: -1),
    "log: an old batch appended again": _appended(lambda rng: rng.randrange(FIRST_ROUNDS)),
    "log: restored from an older copy": restored,
    "log: restored, and grown again": restored_and_grown,
    "copy: a batch zeroed": _in_batch(_zeroed, Status.CORRUPT, Status.LOST, datacenter="analysis"),
    "copy: a batch altered": _in_batch(_flipped, Status.CORRUPT, Status.LOST, datacenter="analysis"),
    "copy: a batch altered, its CRC right": _in_batch(_resealed, Status.ALTERED, datacenter="analysis"),
    "everything stopped and started": nothing,
}
SEGMENTED: Final[dict[Kind, int]] = {segments_swapped: 1, partitions_swapped: 2}
"""Kinds whose topics have logs of several segments, and how many partitions these have."""
