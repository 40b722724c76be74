"""Replaying dead letters: once their cause is fixed, they are decoded again and become rows.

Owns which dead letters are read again, and how. Those that still can't be decoded stay dead letters, with
their current reason. The report to the audit moves the others from its dead letters to its rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.warehouse.by_datacenter import Share, for_each_source
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.dead import dead_files, undecodable, unframed, write_dead
from headrace.warehouse.decode import (
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    SCHEMA_ID_COLUMN,
    TIMESTAMP_COLUMN,
    table_rows,
)
from headrace.warehouse.lineage import Lineage
from headrace.warehouse.loading import (
    LoadError,
    data_files,
    dead_letter_files,
    file_schema,
    first_offsets,
    writer_ids,
)
from headrace.warehouse.manifest import DeadFile, HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.schemas import TopicSchemas, WriterSchema, subject_of, with_writers
from headrace.warehouse.source.columns import NO_SCHEMA_ID, PROBLEM_PREFIX
from headrace.warehouse.source.options import PROBLEM_COLUMN
from headrace.warehouse.stage import StagedFile, staged_files, write_hours
from headrace.wire.content import NO_BATCHES, hex_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did. `sequence` is None if there were no dead letters, or none can be decoded yet."""

    topic: str
    sequence: int | None = None
    rows: int = 0
    still_dead: int = 0
    hours: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Staged:
    alive: Sequence[StagedFile]
    dead: Sequence[StagedFile]
    reader: WriterSchema

    @property
    def rows(self) -> int:
        return sum(file.count.rows for file in self.alive)


@dataclass(frozen=True)
class _StagedRows:
    """The letters of one share, and those of them that became rows."""

    letters: "DataFrame"
    letter_count: int
    schemas: TopicSchemas
    directory: str
    alive: Sequence[StagedFile]

    @property
    def still_dead(self) -> int:
        return self.letter_count - sum(file.count.rows for file in self.alive)


def replay_topic(spark: "SparkSession", table: TopicTable, *, subject: str | None = None) -> ReplayResult:
    """Loads the topic's dead letters again. Safe to repeat and to kill; loads may run concurrently."""
    table.log.complete_all(table.publish)
    # Letters of several logs may have the same addresses: one change for each.
    logs = sorted({file.log for file in table.log.state().dead_files.values()})
    done = [_replay(spark, table, log, subject) for log in logs]
    return _together(table.topic, done)


def _together(topic: str, done: Sequence[ReplayResult]) -> ReplayResult:
    hours: Counter[int] = Counter()
    for each in done:
        hours.update(each.hours)
    changed = [each.sequence for each in done if each.sequence is not None]
    return ReplayResult(
        topic,
        changed[-1] if changed else None,
        sum(each.rows for each in done),
        sum(each.still_dead for each in done),
        dict(hours),
    )


def _replay(spark: "SparkSession", table: TopicTable, log: int, subject: str | None) -> ReplayResult:
    """Loads the letters of one log again (`DeadFile.log`)."""
    old = [file for file in table.log.state().dead_files.values() if file.log == log]
    if not old:
        return ReplayResult(table.topic)
    wanted = sum(file.rows for file in old)
    raw = _letters(spark, [table.warehouse.url(file.path) for file in old])
    change = Change(table, "replay")
    with change.discarded_on_error():
        staged = _stage(change, raw, wanted, subject or subject_of(table.topic))
    if staged.rows == 0:
        table.hdfs.delete(change.staging)
        return ReplayResult(table.topic, still_dead=wanted)
    manifest = _commit(change, staged, old, log)
    return ReplayResult(table.topic, manifest.sequence, staged.rows, wanted - staged.rows, manifest.hours())


def _stage(change: Change, raw: "DataFrame", wanted: int, subject: str) -> _Staged:
    """Stages the raw letters, `wanted` of them, as rows and as new dead letters."""
    table = change.table

    def partitions() -> list[int]:
        return sorted(row.partition for row in raw.select("partition").distinct().collect())

    shares = for_each_source(
        table.warehouse,
        table.topic,
        subject,
        partitions,
        lambda share: _stage_rows(change, raw, wanted, share, subject),
        table.log.state(),
    )
    alive = [file for staged in shares for file in staged.alive]
    dead: list[StagedFile] = []
    for staged in shares if alive else ():
        if staged.still_dead:
            target = f"{staged.directory}/dead"
            letters = undecodable(staged.letters, staged.schemas)
            write_dead(letters, staged.schemas, table.warehouse.url(target))
            dead += dead_files(table.hdfs, target, staged.still_dead, table.topic)
    return _Staged(alive, dead, shares[-1].schemas.reader)


def _stage_rows(change: Change, raw: "DataFrame", wanted: int, share: Share, subject: str) -> _StagedRows:
    """Stages those of the share's letters that can be decoded now."""
    table, directory = change.table, share.below(change.staging)
    if share.datacenter is not None:
        raw = raw.where(raw["partition"].isin(sorted(share.partitions)))
        wanted = raw.count()
    schemas = _schemas(raw, share, subject)
    write_hours(table_rows(unframed(raw), schemas), table, f"{directory}/hours")
    files = staged_files(table.hdfs, f"{directory}/hours")
    staged = _StagedRows(raw, wanted, schemas, directory, [file for file in files if not file.is_dead])
    if sum(file.count.rows for file in files) != wanted:
        raise LoadError(
            f"{table.topic}: {wanted} dead letters became {wanted - staged.still_dead} rows and "
            f"{sum(file.count.rows for file in files if file.is_dead)} dead letters"
        )
    return staged


def _commit(change: Change, staged: _Staged, old: Sequence[DeadFile], log: int) -> Manifest:
    table, schema = change.table, file_schema(staged.reader)
    topic_id = Lineage(table.log.manifests()).topic_id(log)
    removed = tuple(file.path for file in old)

    def rebase(now: TableState) -> Manifest:
        if any(path not in now.dead_files for path in removed):
            raise CommitConflictError(f"{table.topic}: another replay was committed first; nothing changed")
        return replace(
            change.manifest(now),
            ranges=replayed_ranges(staged.alive, log),
            files=data_files(table.paths, now.next_sequence, staged.alive, schema, log),
            dead_files=dead_letter_files(table.paths, now.next_sequence, staged.dead, log),
            removed=removed,
            schema_id=schema.schema_id,
            schema_datacenter=schema.datacenter,
            writer_ids=writer_ids(staged.alive),
            topic_id=topic_id,
        )

    return change.commit(rebase)


def replayed_ranges(alive: Sequence[StagedFile], log: int = 0) -> tuple[LoadedRange, ...]:
    """Returns the ranges to report: empty, at the first of the dead letters that became rows. Pure."""
    counts: dict[int, dict[int, list[int]]] = {}
    for group in (group for file in alive for group in file.count.groups):
        found = counts.setdefault(group.partition, {}).setdefault(group.timestamp_hour_ms, [0, 0])
        found[0] += group.rows
        found[1] += group.distinct_offsets
    first = first_offsets(alive)
    return tuple(
        LoadedRange(
            partition,
            first[partition],
            first[partition],
            tuple(
                HourCount(hour, rows, distinct, -rows, hex_of(NO_BATCHES))
                for hour, (rows, distinct) in sorted(hours.items())
            ),
            log=log,
        )
        for partition, hours in sorted(counts.items())
    )


def _letters(spark: "SparkSession", urls: Sequence[str]) -> "DataFrame":
    """Reads dead letters as the source gives raw records; those of bad batches have their problem."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    letters = spark.read.parquet(*urls)
    is_of_batch = f.col("reason").startswith(PROBLEM_PREFIX)
    letters = letters.withColumn(PROBLEM_COLUMN, f.when(is_of_batch, f.col("reason")))
    names = {PARTITION_COLUMN: "partition", OFFSET_COLUMN: "offset", TIMESTAMP_COLUMN: "timestamp"}
    return letters.drop("reason", SCHEMA_ID_COLUMN).withColumnsRenamed(names)


def _schemas(raw: "DataFrame", share: Share, subject: str) -> TopicSchemas:
    rows = unframed(raw).groupBy("schemaId").count().orderBy("count", ascending=False).collect()
    ids = [row.schemaId for row in rows if row.schemaId != NO_SCHEMA_ID]
    schemas = share.schemas(subject)
    found = with_writers(schemas, ids, share.registries)
    if len(found.writers) > len(schemas.writers):
        # One that is silent may have such an id as a newer version, with more fields than the reader.
        share.registries.check_all_answered()
    return found
