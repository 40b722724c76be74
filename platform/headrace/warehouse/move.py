"""The move of an older headrace's files to today's directories, through the commit log.

Owns the choice of files. An hour was in `hourly/YYYY/MM/DD/HH` until November 2026, and is in
`hourly/dt=YYYY-MM-DD/hour=HH` since. Renames alone: no byte is read or written, and the manifest names every
file's old and new path. A table is readable through the log before, between and after moves; a reader that
began with the old paths finds them missing and has to start again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import DataFile, Manifest, TableState
from headrace.warehouse.retain import delete_empty_dirs

FILES_AT_ONCE: Final = 2_000
"""A change moves so many files at most, so that its manifest stays small."""


@dataclass(frozen=True)
class MoveResult:
    """What was moved. `sequences` are those of the changes: none if every file was in its place."""

    topic: str
    sequences: tuple[int, ...] = ()
    hours: tuple[int, ...] = ()
    files: int = 0


def misplaced(state: TableState, paths: TopicPaths) -> list[DataFile]:
    """Returns the files that are where an older headrace put them, in order of their hours. Pure."""
    files = sorted(state.files.values(), key=lambda file: (file.hour_ms, file.path))
    return [file for file in files if file.path != paths.moved(file.path, file.hour_ms)]


def move_topic(table: TopicTable) -> MoveResult:
    """Moves every misplaced file. Needs no Spark. Safe to repeat and to kill; loads may run concurrently.

    Raises `CommitConflictError` if another change removed a file meanwhile; then nothing moved by that step.
    """
    table.log.complete_all(table.publish)
    sequences: list[int] = []
    moved: list[DataFile] = []
    while files := misplaced(table.log.state(), table.paths)[:FILES_AT_ONCE]:
        sequences.append(_commit(table, files).sequence)
        delete_empty_dirs(table.hdfs, table.paths, (file.path for file in files))
        moved += files
    hours = tuple(sorted({file.hour_ms for file in moved}))
    return MoveResult(table.topic, tuple(sequences), hours, len(moved))


def _commit(table: TopicTable, files: Sequence[DataFile]) -> Manifest:
    change = Change(table, "move")
    removed = tuple(file.path for file in files)
    moved = tuple(
        replace(file, path=table.paths.moved(file.path, file.hour_ms), staged=file.path) for file in files
    )
    table.hdfs.makedirs(change.staging)

    def rebase(now: TableState) -> Manifest:
        if any(path not in now.files for path in removed):
            raise CommitConflictError(
                f"{table.topic}: another change removed files that this one was moving; nothing changed, "
                "run again"
            )
        return replace(change.manifest(now), files=moved, removed=removed)

    return change.commit(rebase)
