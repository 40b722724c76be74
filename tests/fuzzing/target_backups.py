"""Backups that lie: a manifest whose digest fits, files of other kinds, a tree of ZooKeeper, a journal.

Whatever they say, `list`, `verify`, `restore` and `restore --partition` end soon with an error that names it,
or make what the manifest describes; and nothing outside of the new home is there afterwards that was not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fix_log import SMALL, build, files, segments
from fuzzing.documents import ODD
from fuzzing.limits import bounded
from fuzzing.values import TEXTS, mutate
from fuzzing.world import World
from headrace.backup import manifest, mendable, mending, trees
from headrace.backup.errors import BackupError
from headrace.backup.manifest import FileEntry, Manifest, Piece
from headrace.backup.pace import Pace
from headrace.backup.restoring import restore
from headrace.backup.shelf import Shelf
from headrace.backup.verifying import verify
from headrace.backup.writer import read_journal
from headrace.cli.backup import _as_json
from headrace.coordination.tree import TreeNode
from headrace.log.errors import LogError
from headrace.log.partition import PartitionLog

BACKUPS: Final = 12
NAME: Final = "2026-11-23T021500Z"
BROKER: Final = "east-broker-1"
PARTITION: Final = "t-0"
TOPIC_ID: Final = "00000000-0000-0000-0000-000000000001"
KNOWN_ERRORS: Final = (BackupError, LogError, OSError)
NO_MANIFEST: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    OSError,
    MemoryError,
)
"""What a second change of the same manifest may meet."""
NODES: Final = [TreeNode("/a", b"x", 1, 2), TreeNode("/a/b", b"\xff", 3, 4)]
PATHS: Final = (
    "../outside",
    f"{BROKER}/../../outside",
    "/etc/passwd",
    f"{BROKER}/\ud800",
    f"{BROKER}/{PARTITION}/\udcff",
    f"{BROKER}/{PARTITION}",
    "home/restoring/complete",
    "home/data",
    *(f"{BROKER}/{text}" for text in TEXTS),
)
SIZES: Final = (-1, 0, 2**31, 2**63, 2**70, 10**400, 1e300, True, None)


def make(folder: Path) -> None:
    """A whole backup: one broker with one log, a file of the home, a tree of ZooKeeper."""
    log = folder / BROKER / PARTITION
    build(log, [100] * 12, clean=True)
    (log / "partition.json").write_text(json.dumps({"topic_id": TOPIC_ID}))
    (folder / "home").mkdir()
    (folder / "home" / "site.yaml").write_text("datacenters: {}\n")
    partitions = {PARTITION: {"topic_id": TOPIC_ID, "end": 2040}}
    pieces = (
        Piece(BROKER, "broker", "east", "data/east/broker-1", {"partitions": partitions}),
        Piece("home", manifest.HOME, "", "home", {}),
    )
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = tuple(_entry(folder, path) for path in found)
    manifest.save(folder, Manifest(1, 2, "/srv/home", "host", {}, {BROKER: {}}, pieces, entries))


def _entry(folder: Path, path: Path) -> FileEntry:
    content = path.read_bytes()
    return FileEntry(str(path.relative_to(folder)), len(content), hashlib.sha256(content).hexdigest(), "")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest as an enemy would: the digest fits again."""
    values = json.loads((folder / manifest.MANIFEST).read_bytes())
    change(values)
    replace(folder, json.dumps(values).encode())


def replace(folder: Path, content: bytes) -> None:
    (folder / manifest.MANIFEST).write_bytes(content)
    (folder / manifest.DIGEST).write_text(f"{hashlib.sha256(content).hexdigest()}  {manifest.MANIFEST}\n")


def run(_world: World, rng: random.Random) -> list[str]:
    """Returns what was done to the last backup."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        made = Path(root) / "made"
        made.mkdir()
        make(made)
        for number in range(BACKUPS):
            said = _attack_one(made, Path(root) / str(number), rng)
    return said


def _attack_one(made: Path, root: Path, rng: random.Random) -> list[str]:
    folder = root / "shelf" / NAME
    shutil.copytree(made, folder)
    data = root / "host" / "east-broker-1"
    shutil.copytree(made / BROKER, data)
    os.truncate(segments(data / PARTITION)[1], 100)
    log_before = files(data / PARTITION)
    said = [_change(folder, rng) for _ in range(rng.choice((1, 1, 2)))]
    before = {str(path.relative_to(root)) for path in root.rglob("*")}
    try:
        with bounded(f"a hostile backup {said}"):
            use(folder, root / "made", data)
    except KNOWN_ERRORS as error:
        assert str(error).isprintable() and len(str(error)) < 3_000, f"{error!r}: {said}"
    except Exception as error:
        raise AssertionError(f"{error!r}: {said}") from error
    outside = {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.is_relative_to(root / "made") and not path.is_relative_to(data)
    }
    assert outside <= before, f"{outside - before} is new: {said}"
    if (kept := data / f"{PARTITION}.0{mending.DAMAGED}").exists():
        assert files(kept) == log_before, f"the damaged files changed: {said}"
        PartitionLog(data / PARTITION, SMALL).abandon()
    else:
        assert files(data / PARTITION) == log_before, f"the log changed: {said}"
    return said


def use(folder: Path, home: Path, data: Path) -> None:
    """All that an operator does with a backup. Raises one of `KNOWN_ERRORS`."""
    problem: Exception | None = None
    shelf = Shelf(folder.parent)
    for step in (
        lambda: [json.dumps(_as_json(each, manifest.load(each))) for each in shelf.whole()],
        lambda: verify(folder, Pace()),
        shelf.earlier,
        lambda: read_journal(folder),
        lambda: trees.decode(folder / trees.TREE) if (folder / trees.TREE).exists() else None,
        lambda: mending.mend(folder, _broker(folder), PARTITION, data),
        lambda: restore(folder, home),
    ):
        try:
            step()
        except KNOWN_ERRORS as error:
            problem = error
    if problem is not None:
        raise problem


def _broker(folder: Path) -> Piece:
    return mendable.find(manifest.load(folder), PARTITION, "east")[0]


def _change(folder: Path, rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        content = mutate(rng, (folder / manifest.MANIFEST).read_bytes(), [b"1e400", b"null", b"[" * 3000])
        replace(folder, content)
        return f"manifest: {content[:3000]!r}"
    if kind == 1:
        return _change_file(folder, rng)
    if kind == 2:
        lines = trees.encode(NODES)
        content = mutate(rng, lines, [b"1e400", b'"\\ud800"', b"[" * 100_000, b"{"])
        (folder / trees.TREE).write_bytes(content)
        return f"tree: {content[:3000]!r}"
    if kind == 3:
        line = json.dumps([f"{BROKER}/x", 1, "0" * 64, ""]).encode() + b"\n"
        content = mutate(rng, line * 3, [b"1e400", b'"\\ud800"', b"[" * 100_000, b"\xff"])
        (folder / "journal.jsonl").write_bytes(content)
        return f"journal: {content[:3000]!r}"
    said: list[str] = []
    try:
        rewrite(folder, lambda values: said.append(_lie(values, rng)))
    except NO_MANIFEST as error:
        return f"the manifest was no manifest any more ({error!r})"
    return said[0]


def _change_file(folder: Path, rng: random.Random) -> str:
    """Another kind of file, or another content that the manifest vouches for."""
    victim = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kind = rng.choice(("fifo", "link", "folder", "content", "content", "sparse"))
    name = victim.relative_to(folder)
    if kind == "content":
        victim.write_bytes(mutate(rng, victim.read_bytes()))
        content = victim.read_bytes()
        if name.parts[0] in (BROKER, "home"):

            def vouch(values: dict[str, Any]) -> None:
                for each in values["files"]:
                    if each[0] == str(name):
                        each[1:3] = [len(content), hashlib.sha256(content).hexdigest()]

            with contextlib.suppress(*NO_MANIFEST):
                rewrite(folder, vouch)
        return f"{name}: {content[:500]!r}"
    if kind == "sparse":
        os.truncate(victim, 1 << 42)
        return f"{name} has {1 << 42} bytes"
    victim.unlink()
    if kind == "fifo":
        os.mkfifo(victim)
    elif kind == "link":
        victim.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "..", str(folder))))
    else:
        victim.mkdir()
    return f"{name} is a {kind}"


def _lie(values: dict[str, Any], rng: random.Random) -> str:
    """Puts a lie into one place of a manifest."""
    kind = rng.randrange(5)
    if kind == 0:
        entry, at = rng.choice(values["files"]), rng.randrange(4)
        entry[at] = rng.choice(PATHS if at == 0 else SIZES if at == 1 else ODD)
        return f"file: {entry}"[:500]
    if kind == 1:
        piece = rng.choice(values["pieces"])
        field = rng.choice(sorted(piece))
        piece[field] = rng.choice(PATHS if field in ("data", "name") else (*ODD, "broker", "auditor", "hdfs"))
        return f"piece: {piece}"[:500]
    if kind == 2:
        partitions = values["pieces"][0]["facts"]["partitions"]
        partitions[rng.choice((PARTITION, *TEXTS))] = rng.choice((*ODD, {"topic_id": rng.choice(ODD)}))
        return f"facts: {partitions}"[:500]
    if kind == 3:
        values["configurations"] = {BROKER: rng.choice((*ODD, {"data_dir": rng.choice(ODD)}))}
        return f"configurations: {values['configurations']}"[:500]
    field = rng.choice(sorted(values))
    values[field] = rng.choice((*ODD, *TEXTS, ["\x1b[2J"]))
    return f"{field}: {values[field]!r}"
