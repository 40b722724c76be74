"""Letting go: hours that are too old, staging directories that nobody will finish, what lies in the trash.

Owns what is deleted, and when. Hours leave through the commit log; their seals and dead letters stay.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, Publish, Unfinished
from headrace.warehouse.hdfs.client import FileStatus, HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import Manifest, TableState
from headrace.warehouse.options import WarehouseOptions

ORPHAN_AGE_MS: Final = 24 * HOUR_MS
"""A staging directory without a manifest that nobody has touched for so long belongs to a dead run."""
TRASH_AGE_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True)
class RetainResult:
    """What was let go."""

    topic: str
    sequence: int | None = None
    hours: tuple[int, ...] = ()
    rows: int = 0
    orphans: tuple[str, ...] = ()
    """Change ids whose staging was deleted."""
    trash: tuple[str, ...] = ()
    """Change ids whose removed files were deleted for good."""


def expired(state: TableState, before_ms: int) -> dict[int, list[str]]:
    """The files of hours that were over before `before_ms`, by hour. Pure."""
    return {
        hour_ms: [each.path for each in files]
        for hour_ms, files in state.hours().items()
        if hour_ms + HOUR_MS <= before_ms
    }


def orphans(unfinished: Iterable[Unfinished], now_ms: int, age_ms: int) -> list[str]:
    """Change ids that were never committed and are too old to be alive. Pure."""
    return [
        each.change_id for each in unfinished if each.manifest is None and each.modified_ms + age_ms <= now_ms
    ]


def old_enough(entries: Iterable[FileStatus], now_ms: int, age_ms: int) -> list[str]:
    """Names of what hasn't changed for `age_ms`. Pure."""
    return [each.name for each in entries if each.modified_ms + age_ms <= now_ms]


def retain_topic(
    topic: str,
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    publish: Publish | None,
    *,
    keep_ms: int | None = None,
    orphan_age_ms: int = ORPHAN_AGE_MS,
    trash_age_ms: int = TRASH_AGE_MS,
    clock_ms: Callable[[], int] = now_ms,
) -> RetainResult:
    """Let hours go that are older than `keep_ms` (None: none), orphans, and old trash.

    Needs no Spark. Safe to repeat.
    """
    paths = TopicPaths(warehouse.root, topic)
    log = CommitLog(hdfs, paths)
    log.finish_all(publish)
    now_ms = clock_ms()
    manifest: Manifest | None = None
    gone = expired(log.state(), now_ms - keep_ms) if keep_ms is not None else {}
    rows = 0
    if gone:
        rows = sum(log.state().files[path].rows for files in gone.values() for path in files)
        change_id = f"retain-{uuid.uuid4().hex}"
        removed = tuple(path for files in gone.values() for path in files)
        hdfs.makedirs(paths.staged(change_id))

        def rebase(now: TableState) -> Manifest:
            if any(path not in now.files for path in removed):
                raise CommitConflictError(f"{topic}: another change came first; nothing changed, repeat it")
            return Manifest(
                sequence=now.next_sequence,
                kind="retain",
                topic=topic,
                change_id=change_id,
                committed_ms=clock_ms(),
                warehouse=warehouse.name,
                removed=removed,
                note=f"hours that were over before {now_ms - (keep_ms or 0)} ms since the epoch",
            )

        manifest = log.commit(change_id, rebase)
        log.finish(manifest, publish)
        for hour_ms in gone:
            _delete_if_empty(hdfs, paths.hour_dir(hour_ms))
    dead = orphans(log.unfinished(), now_ms, orphan_age_ms)
    for change_id in dead:
        hdfs.delete(paths.staged(change_id))
    trash = old_enough(hdfs.entries(paths.trash), now_ms, trash_age_ms)
    for change_id in trash:
        hdfs.delete(paths.trashed(change_id))
    return RetainResult(
        topic=topic,
        sequence=None if manifest is None else manifest.sequence,
        hours=tuple(gone),
        rows=rows,
        orphans=tuple(dead),
        trash=tuple(trash),
    )


def _delete_if_empty(hdfs: HdfsClient, directory: str) -> None:
    # The hour, then its day, month and year: as far up as nothing else is there.
    for _ in range(4):
        if hdfs.entries(directory) or not hdfs.delete_empty(directory):
            return
        directory = directory.rsplit("/", 1)[0]
