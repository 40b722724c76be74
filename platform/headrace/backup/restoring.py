"""Makes a home of a backup, or nothing.

Owns the steps: all digests first; then everything into `<home>/restoring/`; then, once that is whole and
durable, each part to its place by a rename. A home with that folder is half restored: `headrace up` refuses
it, and a repeat of the restore completes it. One restore at a time works on a home, and no other command
starts or stops it meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from headrace.agent.home import RESTORING
from headrace.backup import crash, hdfs_tree, postgresql_dump, servers, trees
from headrace.backup.errors import RefusedError
from headrace.backup.manifest import HOME, FileEntry, Manifest, Piece, load
from headrace.backup.pace import Pace, check_room
from headrace.backup.verifying import ANOTHER_DIGEST, check_all, damaged_error, open_inside
from headrace.coordination.producer_ids import skip_ids
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.tree import write_tree
from headrace.fleet.home_lock import LOCK, locked
from headrace.fleet.paths import check_home_path
from headrace.log.files import replace_file, sync_directory

NEW: Final = "new"
COMPLETE: Final = "complete"
IMPORTS: Final = "imports"
CONTEXTS: Final = "contexts"
DONE_PREFIX: Final = ".restored-"
PRODUCER_IDS_SKIPPED: Final = 1_000_000_000
"""Ids that the lost ZooKeeper may have allocated after the backup: none of them is given to another
producer.
"""
# What a home may hold that is not data: programs, and logs of programs.
HARMLESS: Final = frozenset({"jars", "logs", LOCK, "run"})
SIZE_SPARE_PART: Final = 20
"""A twentieth more than the files have is needed: what file systems and servers add."""

Observe = Callable[[str], None]


class Restored(NamedTuple):
    """A home that was restored, and what the operator should know of it."""

    manifest: Manifest
    home: Path
    notes: list[str]


def restore(
    folder: Path, home: Path, *, bytes_per_second: int | None = None, observe: Observe = lambda line: None
) -> Restored:
    """Makes `home` of the backup in `folder`. Raises `BackupError`, `SiteError`, `OSError`."""
    home = home.absolute()
    if not (home / RESTORING).exists():
        _check_empty(home)
        if any(piece.kind == "hdfs" for piece in load(folder).pieces):
            check_home_path(home, "restore --into a folder without it")
    is_new = not home.exists()
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        try:
            return _restore(folder, home, bytes_per_second, observe)
        except BaseException:
            if is_new and {path.name for path in home.iterdir()} == {LOCK}:  # refused before it began
                with suppress(OSError):  # another command may just be opening it
                    (home / LOCK).unlink()
                    home.rmdir()
            raise


def _restore(folder: Path, home: Path, bytes_per_second: int | None, observe: Observe) -> Restored:
    staging = home / RESTORING
    if (staging / COMPLETE).exists():
        made = _check_same(folder, staging)
        observe("a restore was interrupted at its end: completing it")
    else:
        _check_empty(home)
        pace = Pace(bytes_per_second)
        told = load(folder)
        check_room(
            home, told.size_bytes + told.size_bytes // SIZE_SPARE_PART, f"the restore of {folder} to {home}"
        )
        observe(f"checking the digests of {folder}")
        made = check_all(folder, pace)
        postgresql_dump.check_host(made)
        _stage(folder, made, home, pace, observe)
    _move_all(home, staging)
    return Restored(made, home, _notes(made, home))


def _check_same(folder: Path, staging: Path) -> Manifest:
    found = load(folder)
    if (staging / COMPLETE).read_text() != _mark(found):
        raise RefusedError(
            f"{staging} is of another backup: complete that restore, or remove {staging.parent}"
        )
    return found


def _mark(made: Manifest) -> str:
    return f"{made.began_ms} {made.host} {made.home}\n"


def _check_empty(home: Path) -> None:
    if not home.exists():
        return
    if not home.is_dir():
        raise RefusedError(f"{home} is a file: restore into a folder that is empty or does not exist")
    left = sorted(path.name for path in home.iterdir() if path.name not in HARMLESS | {RESTORING})
    if left:
        raise RefusedError(
            f"{home} is not empty: it holds {', '.join(left[:5])}. A restore overwrites "
            "nothing: stop what runs "
            "there, move the home aside, or restore --into another folder"
        )


def _stage(folder: Path, made: Manifest, home: Path, pace: Pace, observe: Observe) -> None:
    staging = home / RESTORING
    if staging.exists():
        shutil.rmtree(staging)
    new = staging / NEW
    new.mkdir(parents=True, mode=0o700)
    crash.reached("restore-began")
    for piece in made.pieces:
        observe(f"copying {piece.name}")
        for entry in made.files_of(piece.name):
            if not _is_elsewhere(entry, made, home):
                _copy(folder, entry, target_of(piece, entry, staging), pace)
    crash.reached("restore-copied")
    for piece in made.pieces:
        _import(piece, staging, home, observe)
    shutil.rmtree(staging / IMPORTS, ignore_errors=True)
    _sync_all(new)
    replace_file(staging / COMPLETE, _mark(made).encode())
    sync_directory(home)
    crash.reached("restore-complete")


def _is_elsewhere(entry: FileEntry, made: Manifest, home: Path) -> bool:
    """Whether this is a context with paths of the old home, and the new one is another."""
    return entry.path.startswith(f"{HOME}/{CONTEXTS}/") and str(home) != made.home


def target_of(piece: Piece, entry: FileEntry, staging: Path) -> Path:
    """Returns where a file is copied to: below `new`, as it will be below the home, or to be imported."""
    inside = entry.path.partition("/")[2]
    if piece.kind == HOME:
        return staging / NEW / inside
    if piece.kind == "auditor":
        return staging / NEW / piece.data
    if piece.kind == "hdfs":
        form, _, rest = inside.partition("/")
        if form == hdfs_tree.TREE:
            return staging / IMPORTS / piece.name / rest
        return staging / NEW / piece.data / rest
    if piece.kind in ("zookeeper", postgresql_dump.KIND):
        return staging / IMPORTS / piece.name / inside
    return staging / NEW / piece.data / inside


def _copy(folder: Path, entry: FileEntry, target: Path, pace: Pace) -> None:
    """Raises `DamagedBackupError` if these bytes are not those that were checked: that was another read."""
    sums = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = open_inside(folder, entry.path)
    try:
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while piece := os.read(source, pace.chunk_bytes):
                pace.spend(len(piece))
                sums.update(piece)
                view = memoryview(piece)
                while len(view):
                    view = view[os.write(made, view) :]
            os.fsync(made)
        finally:
            os.close(made)
    finally:
        os.close(source)
    if sums.hexdigest() != entry.sha256:
        raise damaged_error(folder, [(entry.path, ANOTHER_DIGEST)])


def _import(piece: Piece, staging: Path, home: Path, observe: Observe) -> None:
    source = staging / IMPORTS / piece.name
    directory = staging / NEW / piece.data
    if piece.kind == "zookeeper":
        nodes = trees.without_disk_ages(trees.in_later_epochs(trees.decode(source / trees.TREE)))
        observe(f"writing {len(nodes):,} nodes of {piece.name}")
        with servers.zookeeper(directory, home) as address:
            with ZooKeeperSession(address, name="restore") as session:
                write_tree(session, nodes)
            for chroot in sorted({"", *trees.chroots_in(nodes)}):
                with ZooKeeperSession(address + chroot, name="restore") as session:
                    skip_ids(session, PRODUCER_IDS_SKIPPED)
    elif piece.kind == "hdfs" and source.exists():
        observe(f"writing the files of {piece.name}")
        with servers.hdfs(directory, home) as url:
            hdfs_tree.restore_tree(url, source)
    elif piece.kind == postgresql_dump.KIND:
        observe(f"writing the database of {piece.name}")
        postgresql_dump.restore(source / postgresql_dump.DUMP, directory, source)


def _sync_all(folder: Path) -> None:
    """Makes all of it durable: servers of ours wrote a part."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            fd = os.open(Path(parent) / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_directory(Path(parent))


def _move_all(home: Path, staging: Path) -> None:
    new = staging / NEW
    if new.exists():
        for path in sorted(new.iterdir()):
            if (home / path.name).exists():
                raise RefusedError(
                    f"{home / path.name} appeared while {home} was restored: remove it, then repeat"
                )
            path.rename(home / path.name)
            sync_directory(home)
            crash.reached("restore-moved-one")
    # Its name goes in one step: `restoring` without its mark would keep a whole home from being started.
    done = Path(tempfile.mkdtemp(prefix=DONE_PREFIX, dir=home))
    staging.rename(done)
    sync_directory(home)
    shutil.rmtree(done, ignore_errors=True)


def _notes(made: Manifest, home: Path) -> list[str]:
    notes = list(made.notes) + [f"the backup says: {problem}" for problem in made.problems]
    if str(home) != made.home and any(_is_elsewhere(entry, made, home) for entry in made.files):
        notes.append(f"the contexts are not restored, as they name paths of {made.home}: import them again")
    for piece in made.pieces:
        told = made.configurations.get(piece.name, {}).get("data_dir")
        if told and str(told) != f"{made.home}/{piece.data}":
            notes.append(
                f"{piece.name} kept its data in {told}; it is in {home / piece.data} now: move it there"
            )
    return notes
