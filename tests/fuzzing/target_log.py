"""Files of a log that rot, also several at once: what was known to be durable is served, or left as it is.

Two damages together may destroy the proof that something was durable. Then it may be cut off, and is kept
beside.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Final

from fix_log import SMALL, build, files, recovery_point
from fuzzing.values import mutate
from fuzzing.world import World
from headrace.log.errors import LogDamagedError, OldLogFormatError
from headrace.log.partition import PartitionLog

LOGS: Final = 40


def run(_world: World, rng: random.Random) -> list[str]:
    """Returns the damage of the last log."""
    said: list[str] = []
    for _ in range(LOGS):
        with tempfile.TemporaryDirectory() as root:
            said = _damage_one(Path(root) / "t-0", rng)
    return said


def _damage_one(folder: Path, rng: random.Random) -> list[str]:
    sizes = [rng.randrange(200) for _ in range(rng.randint(8, 24))]
    built = build(
        folder,
        sizes,
        checkpoint_after=rng.randrange(8),
        unflushed=rng.randrange(4),
        clean=rng.random() < 0.5,
    )
    durable = min(built.durable, recovery_point(folder))
    said = []
    victims = rng.sample(sorted(folder.iterdir()), rng.choice((1, 1, 2, 3)))
    for path in victims:
        old = path.read_bytes()
        if rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(mutate(rng, old))
        new = path.read_bytes().hex()[:2000] if path.exists() else "removed"
        said.append(f"{path.name}: {old.hex()[:2000]} -> {new}")
    before = files(folder)
    try:
        log = PartitionLog(folder, SMALL)
    except (LogDamagedError, OldLogFormatError):
        after = files(folder)
        assert {name: after.get(name) for name in before} == before, f"a refusal changed files: {said}"
        return said
    except Exception as error:
        raise AssertionError(f"{error!r}: {said}") from error
    try:
        if len(victims) == 1:
            assert log.end_address >= durable, f"durable addresses are given away again: {said}"
        after = files(folder)
        cut = [content for name, content in after.items() if ".cut" in name]
        for name, content in before.items():
            left = after.get(name, b"")
            if name.endswith(".log") and left != content:
                assert content.startswith(left) and content[len(left) :] in cut, f"{name} lost bytes: {said}"
    finally:
        log.abandon()
    return said
