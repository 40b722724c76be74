"""One load of one topic, from the commit log's end to the brokers' end, exactly once.

Owns the order of a load: complete what a crash interrupted, plan, stage, count, commit, complete. The
decisions are in `planning`, the Spark jobs in `stage` and `dead`, the steps in HDFS in `commitlog`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.warehouse import crash
from headrace.warehouse.by_datacenter import Share, for_each_source
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import distinct_offsets, may_repeat
from headrace.warehouse.dead import stage_dead
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.made_again import Said
from headrace.warehouse.manifest import (
    DataFile,
    DeadFile,
    FileSchema,
    HourCount,
    LoadedRange,
    Manifest,
    TableState,
)
from headrace.warehouse.plan import LoadPlan, PlannedRange, unread_text
from headrace.warehouse.planning import NOTHING, BatchMarks, plan_topic, read_marks
from headrace.warehouse.read_contents import Contents, together
from headrace.warehouse.schemas import WriterSchema, subject_of, with_writers
from headrace.warehouse.source.columns import NO_SCHEMA_ID
from headrace.warehouse.stage import StagedFile, present_schema_ids, stage_load, staged_files
from headrace.wire.content import NO_BATCHES, hex_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LoadError(Exception):
    """An internal check of the load failed; nothing was committed."""


@dataclass(frozen=True)
class LoadResult:
    """What a load did. `sequence` is None if there was nothing to load."""

    topic: str
    sequence: int | None = None
    rows: int = 0
    dead_lettered: int = 0
    hours: dict[int, int] = field(default_factory=dict)
    """Rows by hour of event time (its beginning in ms)."""
    ranges: tuple[LoadedRange, ...] = ()
    files: int = 0
    finished: tuple[int, ...] = ()
    """Changes that an earlier run committed and this one completed."""
    seconds: float = 0.0
    begun: Mapping[int, int] = field(default_factory=dict)
    """Where logs begin that were loaded in the place of others, by partition."""
    doubled: int = 0
    """Rows of these hours whose guid another row has, too (`warehouse.doubles`)."""
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why partitions could not be read; the next load reads them from where the last one ended."""

    @property
    def problem(self) -> str:
        """Says which partitions were not read; "" if all were."""
        return unread_text(self.topic, self.unread)

    @property
    def is_sound(self) -> bool:
        return not self.unread


def load_topic(
    spark: "SparkSession",
    table: TopicTable,
    *,
    subject: str | None = None,
    until_ms: int | None = None,
    accept_gap: bool = False,
    said: Said = NOTHING,
) -> LoadResult:
    """Loads new records. Safe to repeat, to kill at any moment, and to run twice at the same time."""
    began = time.monotonic()
    finished = tuple(manifest.sequence for manifest in table.log.complete_all(table.publish))
    state = table.log.state()
    plan = plan_topic(table, state, until_ms=until_ms, accept_gap=accept_gap, said=said)
    # A plan of accepted gaps alone is not empty: it has no ranges to stage, but its gaps are committed.
    if plan.is_empty:
        seconds = time.monotonic() - began
        return LoadResult(table.topic, finished=finished, seconds=seconds, unread=plan.unread)
    crash.reached("planned")
    change = Change(table, "load")
    topic_subject = subject or subject_of(table.topic)
    with change.discarded_on_error():
        staged = stage_planned(spark, change, plan.ranges, topic_subject)
        marks = read_marks(table, plan, state)
    crash.reached("staged")
    # Outside `discarded_on_error`: after an error here the change may be committed and need its files.
    manifest = _commit(change, plan, staged, state, marks)
    return LoadResult(
        topic=table.topic,
        sequence=manifest.sequence,
        rows=manifest.rows,
        dead_lettered=sum(loaded.dead_lettered for loaded in manifest.ranges),
        hours=manifest.hours(),
        ranges=manifest.ranges,
        files=len(manifest.files),
        finished=finished,
        seconds=time.monotonic() - began,
        begun=manifest.begun,
        unread=plan.unread,
    )


@dataclass(frozen=True)
class StagedLoad:
    """What the ranges of a load hold."""

    files: Sequence[StagedFile]
    """Files with `is_dead` hold only addresses."""
    dead_letters: Sequence[StagedFile]
    reader: WriterSchema
    contents: Contents | None = None
    """What the batches hold that were read; None if that is not known."""


def _contents_of(shares: Iterable[StagedLoad]) -> Contents | None:
    found = [each.contents for each in shares]
    known = [each for each in found if each is not None]
    return together(known) if len(known) == len(found) else None


def _stage(
    spark: "SparkSession",
    change: Change,
    planned: Sequence[PlannedRange],
    share: Share,
    subject: str,
) -> StagedLoad:
    """Stages the share's ranges with every schema that their records turn out to need."""
    table, registries, directory = change.table, share.registries, share.below(change.staging)
    ranges = [each for each in planned if share.has(each.partition)]
    schemas = share.schemas(subject)
    if not ranges:
        return StagedLoad((), (), schemas.reader, {})
    if schemas.refused:
        # Before anything is written: do the ranges hold records of a refused schema?
        schemas.refuse(present_schema_ids(spark, table, ranges))
    # The first write: it waits for a NameNode that restarts, and fails for a user without permission.
    table.hdfs.makedirs(directory)
    hours = f"{directory}/hours"
    while True:
        load = stage_load(spark, table, ranges, schemas, hours)
        staged = staged_files(table.hdfs, hours, load.checksums)
        dead_ids = _most_frequent(staged)
        known_ids = {writer.schema_id for writer in schemas.writers}
        undecoded_ids = [schema_id for schema_id in dead_ids if schema_id not in known_ids]
        with_found_writers = with_writers(schemas, undecoded_ids, registries) if undecoded_ids else schemas
        with_found_writers.refuse(undecoded_ids)
        if undecoded_ids:
            # One that is silent may have such an id as a newer version, with more fields than the reader.
            registries.check_all_answered()
        if len(with_found_writers.writers) == len(schemas.writers):
            dead = stage_dead(spark, table, staged, with_found_writers, directory)
            return StagedLoad(staged, dead, schemas.reader, load.contents)
        # Some records have another subject's schema, which a registry knows by id: stage again with it.
        schemas = with_found_writers


def stage_planned(
    spark: "SparkSession", change: Change, planned: Sequence[PlannedRange], subject: str
) -> StagedLoad:
    """Stages the ranges, those of each source with its own schemas. Commits nothing."""
    shares = for_each_source(
        change.table.warehouse,
        change.table.topic,
        subject,
        lambda: (each.partition for each in planned),
        lambda share: _stage(spark, change, planned, share, subject),
        change.table.log.state(),
    )
    return StagedLoad(
        [file for each in shares for file in each.files],
        [file for each in shares for file in each.dead_letters],
        shares[-1].reader,
        _contents_of(shares),
    )


def _most_frequent(staged: Iterable[StagedFile]) -> list[int]:
    """Returns the schema ids of the rows that could not be decoded, the most frequent one first."""
    rows: Counter[int] = Counter()
    for count in (file.count for file in staged if file.is_dead):
        rows.update(dict(zip(count.schema_ids, count.schema_rows, strict=True)))
    return [schema_id for schema_id, _ in rows.most_common() if schema_id != NO_SCHEMA_ID]


def _commit(
    change: Change,
    plan: LoadPlan,
    staged: StagedLoad,
    planned_state: TableState,
    marks: Mapping[int, BatchMarks],
) -> Manifest:
    table, schema = change.table, file_schema(staged.reader)
    groups = [group for file in staged.files for group in file.count.groups]
    sizes = {file.path: file.size_bytes for file in staged.files}
    distinct = distinct_offsets(table.hdfs, sizes) if may_repeat(groups) else None
    read = [
        replace(each, marks=marks.get(each.partition, ()), begins_at=plan.begun.get(each.partition))
        for each in loaded_ranges(plan.ranges, staged.files, distinct, staged.contents)
    ]
    ranges = (*read, *_decided_empty(plan, planned_state.ends))

    def rebase(now: TableState) -> Manifest:
        if (now.ends, now.topic_ids, now.log) != (
            planned_state.ends,
            planned_state.topic_ids,
            planned_state.log,
        ):
            raise CommitConflictError(
                f"{table.topic}: another load committed the same addresses first; this one is discarded, "
                "nothing is duplicated"
            )
        log = now.next_sequence if plan.begun else now.log
        return replace(
            change.manifest(now),
            ranges=ranges,
            gaps=plan.gaps,
            files=data_files(table.paths, now.next_sequence, staged.files, schema, log),
            dead_files=dead_letter_files(table.paths, now.next_sequence, staged.dead_letters, log),
            schema_id=schema.schema_id,
            schema_datacenter=schema.datacenter,
            writer_ids=writer_ids(staged.files),
            topic_id=plan.topic_id,
        )

    return change.commit(rebase)


def _decided_empty(plan: LoadPlan, ends: Mapping[int, int]) -> Iterator[LoadedRange]:
    """Yields the partitions whose logs begin with this load, or were confirmed by it, and hold nothing to
    load.
    """
    gaps = {gap.partition: gap.to_address for gap in plan.gaps}
    for partition in sorted({*plan.begun, *plan.confirmed} - {each.partition for each in plan.ranges}):
        at = gaps.get(partition, plan.begun.get(partition, ends.get(partition, 0)))
        yield LoadedRange(partition, at, at, begins_at=plan.begun.get(partition))


def loaded_ranges(
    planned: Sequence[PlannedRange],
    staged: Iterable[StagedFile],
    distinct: Mapping[tuple[int, int], int] | None,
    contents: Contents | None = None,
) -> tuple[LoadedRange, ...]:
    """Returns what each planned range turned out to hold, by hour of Kafka timestamps.

    `distinct` has the distinct offsets over all files, by partition and hour; None if no two files can have
    one in common. `contents`: what the batches hold that were read, if that is known. Raises
    `LoadError` for a row outside the plan.
    """
    bounds = {bound.partition: bound for bound in planned}
    sums: dict[int, dict[int, list[int]]] = {bound.partition: {} for bound in planned}
    for file in staged:
        for group in file.count.groups:
            bound = bounds.get(group.partition)
            if not bound or group.first_offset < bound.from_address or group.last_offset >= bound.to_address:
                raise LoadError(
                    f"staged rows of partition {group.partition} have offsets {group.first_offset} to "
                    f"{group.last_offset}, which were not planned ({bound}); nothing was committed"
                )
            counts = sums[group.partition].setdefault(group.timestamp_hour_ms, [0, 0, 0])
            if file.is_dead:
                counts[2] += group.rows
            else:
                counts[0] += group.rows
                counts[1] += group.distinct_offsets

    def hour_count(partition: int, hour_ms: int, rows: int, offsets: int, dead: int) -> HourCount:
        if distinct is not None:
            offsets = distinct[partition, hour_ms] - dead
        content = None if contents is None else contents.get((partition, hour_ms), NO_BATCHES)
        return HourCount(hour_ms, rows, offsets, dead, hex_of(content))

    return tuple(
        LoadedRange(
            bound.partition,
            bound.from_address,
            bound.to_address,
            tuple(
                hour_count(bound.partition, hour_ms, *counts)
                for hour_ms, counts in sorted(sums[bound.partition].items())
            ),
        )
        for bound in planned
    )


def first_offsets(staged: Iterable[StagedFile]) -> dict[int, int]:
    """Returns the lowest offset of the rows in these files, by partition."""
    found: dict[int, int] = {}
    for each in (each for file in staged for each in file.count.groups):
        found[each.partition] = min(each.first_offset, found.get(each.partition, each.first_offset))
    return found


def file_schema(reader: WriterSchema) -> FileSchema:
    """Returns what a manifest says of the schema that names a table's columns."""
    return FileSchema(reader.schema_id, reader.datacenter)


def data_files(
    paths: TopicPaths, sequence: int, staged: Iterable[StagedFile], schema: FileSchema, log: int
) -> tuple[DataFile, ...]:
    """Returns the staged files of decoded rows with their final names. `log`: see `DataFile.log`."""
    alive = sorted(
        (file for file in staged if not file.is_dead), key=lambda file: (file.hour_number, file.path)
    )
    return tuple(
        DataFile(
            path=paths.data_file(file.hour_number * HOUR_MS, sequence, number),
            staged=file.path,
            hour_ms=file.hour_number * HOUR_MS,
            rows=file.count.rows,
            size_bytes=file.size_bytes,
            schema_id=schema.schema_id,
            schema_datacenter=schema.datacenter,
            checksum=file.checksum,
            log=log,
        )
        for number, file in enumerate(alive)
    )


def dead_letter_files(
    paths: TopicPaths, sequence: int, dead: Iterable[StagedFile], log: int
) -> tuple[DeadFile, ...]:
    """Returns the staged dead-letter files with their final names. `log`: see `DataFile.log`."""
    return tuple(
        DeadFile(paths.dead_file(sequence, number), file.path, file.count.rows, file.size_bytes, log)
        for number, file in enumerate(dead)
    )


def writer_ids(staged: Iterable[StagedFile]) -> tuple[int, ...]:
    """Returns the ids of the schemas that the rows in these files were written with."""
    return tuple(sorted({schema_id for file in staged for schema_id in file.count.schema_ids}))
