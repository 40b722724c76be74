"""Replaying dead letters: once the cause is mended, what lies aside is decoded again and becomes rows.

Owns the choice of dead letters and their second reading. What still can't be decoded lies aside again,
with today's reason. The audit is told: so many dead letters less, so many rows more.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, Publish
from headrace.warehouse.dead import dead_files, undecodable, unframed, write_dead
from headrace.warehouse.decode import (
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    SCHEMA_ID_COLUMN,
    TIMESTAMP_COLUMN,
    table_rows,
)
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.loading import LoadError, data_files, dead_letter_files
from headrace.warehouse.manifest import HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import Registries, TopicSchemas, subject_of, topic_schemas, with_writers
from headrace.warehouse.source.columns import NO_SCHEMA_ID
from headrace.warehouse.stage import StagedFile, staged_files, write_hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did. `sequence` is None where nothing lay aside, or nothing of it can be decoded yet."""

    topic: str
    sequence: int | None = None
    rows: int = 0
    still_dead: int = 0
    hours: dict[int, int] = field(default_factory=dict)


def replay_topic(
    spark: "SparkSession",
    topic: str,
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    publish: Publish | None,
    *,
    subject: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> ReplayResult:
    """Load the topic's dead letters again. Safe to repeat and to kill; loads go on meanwhile."""
    paths = TopicPaths(warehouse.root, topic)
    log = CommitLog(hdfs, paths)
    log.finish_all(publish)
    old = list(log.state().dead_files.values())
    wanted = sum(each.rows for each in old)
    if not old:
        return ReplayResult(topic)
    raw = _letters(spark, [warehouse.url(each.path) for each in old])
    change_id = f"replay-{uuid.uuid4().hex}"
    staging = paths.staged(change_id)
    try:
        schemas = _schemas(raw, topic, warehouse, subject)
        write_hours(table_rows(unframed(raw), schemas), warehouse, hdfs, f"{staging}/hours")
        staged = staged_files(hdfs, f"{staging}/hours")
        alive = [each for each in staged if not each.is_dead]
        rows = sum(each.count.rows for each in alive)
        if rows == 0:
            hdfs.delete(staging)
            return ReplayResult(topic, still_dead=wanted)
        still_dead = wanted - rows
        dead: list[StagedFile] = []
        if still_dead:
            write_dead(undecodable(raw, schemas), schemas, warehouse.url(f"{staging}/dead"))
            dead = dead_files(hdfs, f"{staging}/dead", still_dead, topic)
        if sum(each.count.rows for each in staged) != wanted:
            raise LoadError(
                f"{topic}: {wanted} dead letters became {rows} rows and {still_dead} dead letters"
            )

        def rebase(now: TableState) -> Manifest:
            removed = tuple(each.path for each in old)
            if any(path not in now.dead_files for path in removed):
                raise CommitConflictError(f"{topic}: another replay came first; nothing changed")
            return Manifest(
                sequence=now.next_sequence,
                kind="replay",
                topic=topic,
                change_id=change_id,
                committed_ms=clock_ms(),
                warehouse=warehouse.name,
                ranges=replayed_ranges(now, alive),
                files=data_files(paths, now.next_sequence, alive, schemas.reader.schema_id),
                dead_files=dead_letter_files(paths, now.next_sequence, dead),
                removed=removed,
                schema_id=schemas.reader.schema_id,
                writer_ids=tuple(sorted({each for file in alive for each in file.count.schema_ids})),
            )

        manifest = log.commit(change_id, rebase)
    except Exception:
        log.discard(change_id)
        raise
    log.finish(manifest, publish)
    return ReplayResult(topic, manifest.sequence, rows, still_dead, manifest.hours())


def replayed_ranges(now: TableState, alive: Sequence[StagedFile]) -> tuple[LoadedRange, ...]:
    """What the audit is told: no new addresses, but dead letters that have become rows. Pure."""
    counts: dict[int, dict[int, list[int]]] = {}
    for group in (group for each in alive for group in each.count.groups):
        found = counts.setdefault(group.partition, {}).setdefault(group.timestamp_hour_ms, [0, 0])
        found[0] += group.rows
        found[1] += group.distinct_offsets
    return tuple(
        LoadedRange(
            partition,
            now.ends[partition],
            now.ends[partition],
            tuple(HourCount(hour, rows, distinct, -rows) for hour, (rows, distinct) in sorted(hours.items())),
        )
        for partition, hours in sorted(counts.items())
    )


def _letters(spark: "SparkSession", urls: Sequence[str]) -> "DataFrame":
    """Dead letters as the source gives raw records."""
    letters = spark.read.parquet(*urls)
    names = {PARTITION_COLUMN: "partition", OFFSET_COLUMN: "offset", TIMESTAMP_COLUMN: "timestamp"}
    return letters.drop("reason", SCHEMA_ID_COLUMN).withColumnsRenamed(names)


def _schemas(raw: "DataFrame", topic: str, warehouse: WarehouseOptions, subject: str | None) -> TopicSchemas:
    ids = {row.schemaId for row in unframed(raw).select("schemaId").distinct().collect()}
    with Registries(warehouse.registry_url) as registries:
        schemas = topic_schemas(subject or subject_of(topic), registries)
        return with_writers(schemas, ids - {NO_SCHEMA_ID}, registries)
