"""A log's leader epochs: batches whose epoch rotted, checkpoints that lie with a right checksum, logs that
are cut, and questions about any epoch.

A second reckoning, over the bytes themselves, says where each epoch ends. A log that nobody damaged answers
exactly that; one that was damaged opens, its list ascends, and what one rotten batch says changes nothing.
"""

from __future__ import annotations

import json
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from fix_log import SMALL, batch, segments
from fuzzing.documents import ODD
from fuzzing.limits import bounded
from fuzzing.values import integer, mutate
from fuzzing.world import World
from headrace.log import checkpoint
from headrace.log.epochs import UNKNOWN_EPOCH, EpochEnd, EpochStart
from headrace.log.errors import LogDamagedError, OldLogFormatError
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop

LOGS: Final = 30
EPOCH_AT: Final = 12
"""Of the leader's epoch in a batch: behind the base offset and the length."""
QUESTIONS: Final = 30


def run(_world: World, rng: random.Random) -> list[str]:
    """Returns what was done to the last log."""
    said: list[str] = []
    for _ in range(LOGS):
        with tempfile.TemporaryDirectory() as root:
            said = _one(Path(root) / "t-0", rng)
    return said


def _one(folder: Path, rng: random.Random) -> list[str]:
    batches = _build(folder, rng)
    said = [f"batches (epoch, address): {batches}"]
    kind = rng.choice(("none", "cut", "rot", "lie", "raw", "lost"))
    said.append(_damage(folder, kind, batches, rng))
    try:
        with bounded(f"opening {said}"):
            log = PartitionLog(folder, SMALL)
    except (LogDamagedError, OldLogFormatError):
        assert kind in ("raw", "lost"), f"refused: {said}"
        return said
    except Exception as error:
        raise AssertionError(f"{error!r}: {said}") from error
    try:
        if kind == "cut":
            at = rng.choice([address for _, address in batches])
            log.truncate(at)
            batches = [each for each in batches if each[1] < at]
        _check(log, batches, kind, said, rng)
    finally:
        log.abandon()
    return said


def _build(folder: Path, rng: random.Random) -> list[tuple[int, int]]:
    """A log of some leaders, closed or killed; returns the epoch and the address of each batch."""
    log = PartitionLog(folder, SMALL)
    found = []
    epoch = rng.randrange(3)
    for number in range(rng.randint(3, 20)):
        epoch += rng.choice((0, 0, 0, 1, 1, 3, 1000))
        log.leader_epoch = epoch
        found.append((epoch, log.end_address))
        log.append(batch(number, rng.randrange(150)))
        if rng.random() < 0.4:
            if rng.random() < 0.5:
                log.request_checkpoint()
            log.flush()
    if rng.random() < 0.5:
        log.close()
    else:
        log.flush()
        log.abandon()
    return found


def _damage(folder: Path, kind: str, batches: list[tuple[int, int]], rng: random.Random) -> str:
    path = folder / checkpoint.FILE_NAME
    if kind == "rot":
        _, address = rng.choice(batches)
        victim = [each for each in segments(folder) if int(each.stem) <= address][-1]
        raw = bytearray(victim.read_bytes())
        at = address - int(victim.stem) + EPOCH_AT
        raw[at : at + 4] = (integer(rng, 32) & 0xFFFFFFFF).to_bytes(4, "big")
        victim.write_bytes(raw)
        return f"the epoch of the batch at {address} is {raw[at : at + 4].hex()}"
    if kind == "lie":
        saved = checkpoint.load(folder)
        assert saved is not None
        starts: Any = list(saved.epochs or ())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(starts) + 1)
            lie: Any = rng.choice(
                (EpochStart(integer(rng, 32), integer(rng, 64)), EpochStart(*rng.choice(batches)), *ODD)
            )
            starts[at : at + rng.randrange(2)] = [lie]
        values = checkpoint.encode(checkpoint.Checkpoint(saved.recovery_point, epochs=(EpochStart(7, 7),)))[
            9:
        ]
        text = json.dumps(starts).encode()
        body = values.replace(b"[[7,7]]", text)
        path.write_bytes(b"%08x\n" % crc32c(body) + body)
        return f"the checkpoint's epochs are {text[:500]!r}"
    if kind == "raw":
        path.write_bytes(mutate(rng, path.read_bytes()))
        return f"the checkpoint: {path.read_bytes()[:500]!r}"
    if kind == "lost":
        path.unlink()
    return kind


def _check(
    log: PartitionLog, batches: list[tuple[int, int]], kind: str, said: list[str], rng: random.Random
) -> None:
    starts = log.epochs.starts()
    for one, following in pairwise(starts):
        assert one.epoch < following.epoch and one.address < following.address, f"{starts}: {said}"
    assert all(each.epoch >= 0 and each.address < log.end_address for each in starts), f"{starts}: {said}"
    assert log.epochs.latest == (starts[-1].epoch if starts else -1)
    known = sorted({epoch for epoch, _ in batches})
    asked = [rng.choice((*known, -1, 0, 2**31 - 1, integer(rng, 32))) for _ in range(QUESTIONS)]
    for epoch in asked:
        found = log.epochs.end_of(epoch, log.end_address)
        assert found == UNKNOWN_EPOCH or 0 <= found.end_address <= log.end_address, f"{found}: {said}"
        if kind != "rot":
            expected = reckoned(batches, epoch, log.end_address)
            assert found == expected, f"epoch {epoch}: {found}, and the bytes say {expected}: {said}"
    stored = b"".join(path.read_bytes() for path in segments(log.directory))
    assert [header.address for _, header in hop(stored)] == [address for _, address in batches], said


def reckoned(batches: list[tuple[int, int]], epoch: int, end: int) -> EpochEnd:
    """Where the largest epoch up to this one ends, from the batches alone (KIP-101)."""
    if epoch < 0 or not batches or epoch > batches[-1][0]:
        return UNKNOWN_EPOCH
    later = [address for each, address in batches if each > epoch]
    earlier = [each for each, _ in batches if each <= epoch]
    if not earlier:
        return EpochEnd(epoch, later[0])
    return EpochEnd(max(earlier), later[0] if later else end)
