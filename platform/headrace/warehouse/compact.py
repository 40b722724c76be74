"""Compaction: an hour's many small files become few, through the commit log.

Owns the choice of files and the rewriting. The rows are the same before and after, and this is counted.
What a compaction takes away goes to the trash; a reader that had begun with the old files finds them gone
and has to begin again.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, Publish
from headrace.warehouse.counting import GroupCount, count_files
from headrace.warehouse.decode import HOUR_COLUMN, OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.loading import LoadError, data_files
from headrace.warehouse.manifest import DataFile, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.stage import staged_files, write_hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_SIZE_BYTES: Final = 256 << 20
FILES_MIN: Final = 2
"""Fewer small files than this are left alone."""
HOURS_AT_ONCE: Final = 64

Chosen = Mapping[tuple[int, int], Sequence[DataFile]]
"""By hour and schema id the files that become one."""


@dataclass(frozen=True)
class CompactResult:
    """What a compaction did. `sequence` is None where nothing was worth it."""

    topic: str
    sequence: int | None = None
    hours: tuple[int, ...] = ()
    files_before: int = 0
    files_after: int = 0
    rows: int = 0


def choose(
    state: TableState, now_ms: int, *, hours: Collection[int] | None = None, grace_ms: int = 0
) -> dict[tuple[int, int], list[DataFile]]:
    """Files of closed hours that are worth rewriting: several small ones of the same schema. Pure.

    The oldest hours first, at most `HOURS_AT_ONCE` of them.
    """
    found: dict[tuple[int, int], list[DataFile]] = {}
    for hour_ms, files in state.hours().items():
        if hour_ms + HOUR_MS + grace_ms > now_ms or (hours is not None and hour_ms not in hours):
            continue
        for schema_id in sorted({each.schema_id for each in files}):
            small = [
                each
                for each in files
                if each.schema_id == schema_id and each.size_bytes < FILE_SIZE_BYTES // 2
            ]
            if len(small) >= FILES_MIN:
                found[hour_ms, schema_id] = small
        if len({hour for hour, _ in found}) >= HOURS_AT_ONCE:
            break
    return found


def compact_topic(
    spark: "SparkSession",
    topic: str,
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    publish: Publish | None,
    *,
    hours: Collection[int] | None = None,
    grace_ms: int = 0,
    clock_ms: Callable[[], int] = now_ms,
) -> CompactResult:
    """Rewrite what is worth it. Safe to repeat and to kill; loads go on meanwhile."""
    paths = TopicPaths(warehouse.root, topic)
    log = CommitLog(hdfs, paths)
    log.finish_all(publish)
    chosen = choose(log.state(), clock_ms(), hours=hours, grace_ms=grace_ms)
    if not chosen:
        return CompactResult(topic)
    old = [each for files in chosen.values() for each in files]
    change_id = f"compact-{uuid.uuid4().hex}"
    staging = paths.staged(change_id)
    try:
        new = _rewrite(spark, warehouse, hdfs, paths, chosen, staging)
        _check_same_rows(hdfs, topic, old, new)
        manifest = log.commit(
            change_id,
            lambda now: Manifest(
                sequence=now.next_sequence,
                kind="compact",
                topic=topic,
                change_id=change_id,
                committed_ms=clock_ms(),
                warehouse=warehouse.name,
                files=_named(paths, now.next_sequence, new),
                removed=_still_there(topic, now, old),
            ),
        )
    except Exception:
        log.discard(change_id)
        raise
    log.finish(manifest, publish)
    return CompactResult(
        topic=topic,
        sequence=manifest.sequence,
        hours=tuple(sorted({hour for hour, _ in chosen})),
        files_before=len(old),
        files_after=len(new),
        rows=manifest.rows,
    )


def _rewrite(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    paths: TopicPaths,
    chosen: Chosen,
    staging: str,
) -> list[DataFile]:
    new: list[DataFile] = []
    # Each schema by itself: a rewrite changes no column.
    for schema_id in sorted({schema_id for _, schema_id in chosen}):
        hours = [
            _one_hour(spark, warehouse, hour_ms, files)
            for (hour_ms, of), files in chosen.items()
            if of == schema_id
        ]
        directory = f"{staging}/{schema_id}"
        write_hours(reduce(lambda left, right: left.union(right), hours), warehouse, hdfs, directory)
        new += data_files(paths, 0, staged_files(hdfs, directory), schema_id)
    return new


def _one_hour(
    spark: "SparkSession", warehouse: WarehouseOptions, hour_ms: int, files: Sequence[DataFile]
) -> "DataFrame":
    from pyspark.sql import functions as f

    count = -(-sum(each.size_bytes for each in files) // FILE_SIZE_BYTES)
    rows = spark.read.parquet(*[warehouse.url(each.path) for each in files]).coalesce(count)
    ordered = rows.sortWithinPartitions(PARTITION_COLUMN, OFFSET_COLUMN)
    return ordered.withColumn(HOUR_COLUMN, f.lit(hour_ms // HOUR_MS))


def _check_same_rows(hdfs: HdfsClient, topic: str, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    before = _sums(hdfs, {each.path: each.size_bytes for each in old})
    after = _sums(hdfs, {each.staged: each.size_bytes for each in new})
    if before != after:
        raise LoadError(f"{topic}: the rewritten files don't hold the same rows; nothing was committed")


def _sums(hdfs: HdfsClient, sizes: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, int, int]]:
    found: dict[tuple[int, int], list[GroupCount]] = {}
    for file in count_files(hdfs, sizes):
        for each in file.groups:
            found.setdefault((each.partition, each.timestamp_hour_ms), []).append(each)
    return {
        key: (
            sum(each.rows for each in groups),
            min(each.first_offset for each in groups),
            max(each.last_offset for each in groups),
        )
        for key, groups in found.items()
    }


def _named(paths: TopicPaths, sequence: int, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    return tuple(
        replace(each, path=paths.data_file(each.hour_ms, sequence, number))
        for number, each in enumerate(files)
    )


def _still_there(topic: str, now: TableState, old: Iterable[DataFile]) -> tuple[str, ...]:
    removed = tuple(each.path for each in old)
    if any(path not in now.files for path in removed):
        raise CommitConflictError(
            f"{topic}: another change took files away that this one was rewriting; nothing changed, repeat it"
        )
    return removed
