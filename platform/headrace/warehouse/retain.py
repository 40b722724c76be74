"""Retention: deletes hours that are too old, orphaned staging directories and old trash.

Owns what is deleted, and when: by the earlier of two clocks, this host's and the NameNode's. A single one
that is ahead would delete the whole table. Hours are removed through the commit log; their seals and dead
letters stay.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import INCOMPLETE_MAX, CommitConflictError, StagedChange
from headrace.warehouse.hdfs.client import FileStatus, HdfsClient
from headrace.warehouse.hdfs.errors import HdfsFullError
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, Manifest, TableState

_log = logging.getLogger(__name__)

APART_MS: Final = 60_000
"""Clocks that are further apart are told of."""
ORPHAN_AGE_MS: Final = 24 * HOUR_MS
"""A staging directory without a manifest that has not changed for so long belongs to a dead run."""
TRASH_AGE_MS: Final = 24 * HOUR_MS
ASIDE: Final = "orphan-"
"""Before the id of a change, the name of its staging directory while it is deleted."""


@dataclass(frozen=True)
class RetainResult:
    """What was deleted."""

    topic: str
    sequence: int | None = None
    hours: tuple[int, ...] = ()
    rows: int = 0
    orphans: tuple[str, ...] = ()
    """Change ids whose staging was deleted."""
    trash: tuple[str, ...] = ()
    """Change ids whose removed files were deleted for good."""


def expired(state: TableState, before_ms: int) -> dict[int, list[DataFile]]:
    """Returns the files of hours that ended by `before_ms`, by hour. Pure."""
    return {hour_ms: files for hour_ms, files in state.hours().items() if hour_ms + HOUR_MS <= before_ms}


def orphans(staged: Iterable[StagedChange], now_ms: int) -> list[str]:
    """Returns the ids of changes that were never committed and are too old to be running. Pure."""
    return [
        change.change_id
        for change in staged
        if change.manifest is None and change.modified_ms + ORPHAN_AGE_MS <= now_ms
    ]


def old_trash(entries: Iterable[FileStatus], now_ms: int) -> list[str]:
    """Returns the ids of changes whose trash is old enough to delete. Pure."""
    return [entry.name for entry in entries if entry.modified_ms + TRASH_AGE_MS <= now_ms]


def retain_topic(table: TopicTable, *, keep_ms: int | None = None) -> RetainResult:
    """Deletes hours older than `keep_ms` (None: no hours), orphans and old trash.

    Needs no Spark. Safe to repeat.
    """
    now_ms = _agreed_ms(table)
    # Before anything is written: on a full HDFS nothing can be, until something is deleted.
    dead, trash = _delete_leftovers(table, now_ms)
    table.log.complete_all(table.publish)
    old = expired(table.log.state(), now_ms - keep_ms) if keep_ms is not None else {}
    files = [file for of_hour in old.values() for file in of_hour]
    manifest: Manifest | None = None
    if files:
        manifest = _commit(table, files, now_ms - (keep_ms or 0))
        delete_empty_dirs(table.hdfs, table.paths, (file.path for file in files))
    return RetainResult(
        topic=table.topic,
        sequence=None if manifest is None else manifest.sequence,
        hours=tuple(old),
        rows=sum(file.rows for file in files),
        orphans=tuple(dead),
        trash=tuple(trash),
    )


def _agreed_ms(table: TopicTable) -> int:
    """Returns the earlier of the two clocks' times."""
    own_ms = table.clock_ms()
    if not table.hdfs.entries(table.paths.base):
        return own_ms  # there is no table, and none is made
    try:
        named_ms = table.hdfs.now_ms(table.paths.staged(f"clock-{uuid.uuid4().hex}"))
    except HdfsFullError:
        # A quota of names is used up: the NameNode's time is not before that of the last change.
        return min(own_ms, max((each.modified_ms for each in table.hdfs.entries(table.paths.log)), default=0))
    if own_ms > named_ms + APART_MS:
        _log.warning(
            "%s: this host's clock is %.1f h ahead of the NameNode's; hours expire by the one that is "
            "behind: set the clock that is wrong",
            table.topic,
            (own_ms - named_ms) / HOUR_MS,
        )
    return min(own_ms, named_ms)


def _delete_leftovers(table: TopicTable, now_ms: int) -> tuple[list[str], list[str]]:
    """Deletes orphans and old trash; returns the ids of their changes. A change that is not complete may
    still bring files to its trash.
    """
    paths, hdfs = table.paths, table.hdfs
    staged = table.log.staged_changes()
    dead = [each for each in orphans(staged, now_ms) if not _is_written(hdfs, paths.staged(each), now_ms)]
    dead = [each for each in dead if _delete_uncommitted(table, each)]
    incomplete = {change.change_id for change in staged if change.manifest is not None}
    trash = [each for each in old_trash(hdfs.entries(paths.trash), now_ms) if each not in incomplete]
    for change_id in trash:
        hdfs.delete(paths.trashed(change_id))
    return dead, trash


def _delete_uncommitted(table: TopicTable, change_id: str) -> bool:
    """Deletes a change's staging directory, unless the change was committed since it was listed: a run that
    was suspended may go on at any moment.

    Once the directory has another name, no commit finds its manifest any more. So what is not committed then
    never is.
    """
    paths, hdfs = table.paths, table.hdfs
    own_id = change_id.removeprefix(ASIDE)
    staged, aside = paths.staged(own_id), paths.staged(f"{ASIDE}{own_id}")
    # One that is there already is of a retention that was killed.
    if change_id == own_id and not hdfs.rename(staged, aside):
        return False  # its run has just ended, or another retention has it
    recent = table.log.manifests(max(0, table.log.state().next_sequence - INCOMPLETE_MAX))
    if any(manifest.change_id == own_id for manifest in recent):
        hdfs.rename(aside, staged)
        return False
    hdfs.delete(aside)
    return True


def _is_written(hdfs: HdfsClient, path: str, now_ms: int) -> bool:
    """Whether a run still writes below a staging directory: a load may take more than a day, and what its
    tasks write, further down, changes nothing of the directory itself.
    """
    return any(file.modified_ms + ORPHAN_AGE_MS > now_ms for _, file in hdfs.walk(path))


def _commit(table: TopicTable, files: Sequence[DataFile], before_ms: int) -> Manifest:
    change = Change(table, "retain")
    removed = tuple(file.path for file in files)
    table.hdfs.makedirs(change.staging)

    def rebase(now: TableState) -> Manifest:
        if any(path not in now.files for path in removed):
            raise CommitConflictError(
                f"{table.topic}: another change was committed first; nothing changed, run again"
            )
        note = f"hours that were over before {before_ms} ms since the epoch"
        return replace(change.manifest(now), removed=removed, note=note)

    return change.commit(rebase)


def delete_empty_dirs(hdfs: HdfsClient, paths: TopicPaths, gone: Iterable[str]) -> None:
    """Deletes the hours' directories in which files are gone, and their days', if nothing else is in them."""
    for directory in sorted({path.rsplit("/", 1)[0] for path in gone}):
        while directory.startswith(f"{paths.hourly}/") and not hdfs.entries(directory):
            if not hdfs.delete_empty(directory):
                break
            directory = directory.rsplit("/", 1)[0]
