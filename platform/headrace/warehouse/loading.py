"""One load of one topic, from the commit log's end to the brokers' end, exactly once.

Owns the order: finish what a crash left, plan, stage, count, commit, finish. Everything it decides is in
`plan`, everything Spark does in `stage` and `dead`, everything on HDFS in `commitlog`.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.process.clock import now_ms
from headrace.warehouse import crash
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, Publish
from headrace.warehouse.counting import distinct_offsets, may_repeat
from headrace.warehouse.dead import stage_dead
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, DeadFile, HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadPlan, PlannedRange, plan_load
from headrace.warehouse.schemas import Registries, TopicSchemas, subject_of, topic_schemas, with_writers
from headrace.warehouse.source.columns import NO_SCHEMA_ID
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import EARLIEST, LATEST, SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches
from headrace.warehouse.stage import (
    StagedFile,
    present_schema_ids,
    stage_load,
    staged_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER_TIMEOUT_S: Final = 60.0


class LoadError(Exception):
    """The load did something it must never do; nothing was committed."""


@dataclass(frozen=True)
class LoadResult:
    """What a load did. `sequence` is None where there was nothing to load."""

    topic: str
    sequence: int | None = None
    rows: int = 0
    dead_lettered: int = 0
    hours: dict[int, int] = field(default_factory=dict)
    """Rows by hour of event time (its beginning in ms)."""
    ranges: tuple[LoadedRange, ...] = ()
    files: int = 0
    finished: tuple[int, ...] = ()
    """Changes that an earlier run had committed and this one finished."""
    seconds: float = 0.0


def plan_topic(
    warehouse: WarehouseOptions,
    state: TableState,
    topic: str,
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
) -> LoadPlan:
    """What a load would do now. Writes nothing."""
    with MetadataClient(warehouse.servers, BROKER_TIMEOUT_S) as cluster:
        partitions = sorted(cluster.leaders([topic]))
        earliest = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
        latest = cluster.offsets(dict.fromkeys(partitions, LATEST))
        until = cluster.offsets(dict.fromkeys(partitions, until_ms)) if until_ms is not None else {}
    ends = {
        partition: _batch_address(warehouse, topic, partition, address, latest[topic, partition])
        for (_, partition), address in until.items()
        if address >= 0
    }
    return plan_load(
        topic,
        state.ends,
        {partition: address for (_, partition), address in earliest.items()},
        {partition: address for (_, partition), address in latest.items()},
        until=ends,
        accept_gap=accept_gap,
    )


def load_topic(
    spark: "SparkSession",
    topic: str,
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    publish: Publish | None,
    *,
    subject: str | None = None,
    until_ms: int | None = None,
    accept_gap: bool = False,
    clock_ms: Callable[[], int] = now_ms,
) -> LoadResult:
    """Load what is new. Safe to repeat, to kill at any moment, and to run twice at the same time."""
    began = time.monotonic()
    paths = TopicPaths(warehouse.root, topic)
    log = CommitLog(hdfs, paths)
    finished = tuple(manifest.sequence for manifest in log.finish_all(publish))
    state = log.state()
    plan = plan_topic(warehouse, state, topic, until_ms=until_ms, accept_gap=accept_gap)
    if plan.is_empty:
        return LoadResult(topic, finished=finished, seconds=time.monotonic() - began)
    crash.reached("planned")
    change_id = f"load-{uuid.uuid4().hex}"
    staging = paths.staged(change_id)
    with Registries(warehouse.registry_url) as registries:
        try:
            staged, schemas = _stage(spark, warehouse, hdfs, topic, plan, staging, subject, registries)
            dead = stage_dead(spark, warehouse, topic, hdfs, staged, schemas, staging)
        except BaseException:
            log.discard(change_id)
            raise
    crash.reached("staged")
    groups = [group for each in staged for group in each.count.groups]
    sizes = {each.path: each.size_bytes for each in staged}
    distinct = distinct_offsets(hdfs, sizes) if may_repeat(groups) else None
    ranges = loaded_ranges(plan.ranges, staged, distinct)

    def rebase(now: TableState) -> Manifest:
        if now.ends != state.ends:
            raise CommitConflictError(
                f"{topic}: another load committed the same addresses first; this one is dropped, "
                "nothing is doubled"
            )
        sequence = now.next_sequence
        return Manifest(
            sequence=sequence,
            kind="load",
            topic=topic,
            change_id=change_id,
            committed_ms=clock_ms(),
            warehouse=warehouse.name,
            ranges=ranges,
            gaps=plan.gaps,
            files=data_files(paths, sequence, staged, schemas.reader.schema_id),
            dead_files=dead_letter_files(paths, sequence, dead),
            schema_id=schemas.reader.schema_id,
            writer_ids=tuple(sorted({schema_id for each in staged for schema_id in each.count.schema_ids})),
        )

    try:
        manifest = log.commit(change_id, rebase)
    except CommitConflictError:
        log.discard(change_id)
        raise
    log.finish(manifest, publish)
    return LoadResult(
        topic=topic,
        sequence=manifest.sequence,
        rows=manifest.rows,
        dead_lettered=sum(each.dead_lettered for each in ranges),
        hours=manifest.hours(),
        ranges=ranges,
        files=len(manifest.files),
        finished=finished,
        seconds=time.monotonic() - began,
    )


def loaded_ranges(
    planned: Iterable[PlannedRange],
    staged: Sequence[StagedFile],
    distinct: dict[tuple[int, int], int] | None,
) -> tuple[LoadedRange, ...]:
    """What each planned range turned out to hold, by hour of Kafka timestamps.

    `distinct` says distinct offsets counted across files; None where no two files can share one. Raises
    `LoadError` for a row outside what was planned.
    """
    planned = list(planned)
    bounds = {each.partition: each for each in planned}
    sums: dict[int, dict[int, list[int]]] = {each.partition: {} for each in planned}
    for file in staged:
        for each in file.count.groups:
            bound = bounds.get(each.partition)
            if (
                bound is None
                or each.first_offset < bound.from_address
                or each.last_offset >= bound.to_address
            ):
                raise LoadError(
                    f"staged rows of partition {each.partition} have offsets {each.first_offset} to "
                    f"{each.last_offset}, which are not what was planned ({bound}); nothing was committed"
                )
            found = sums[each.partition].setdefault(each.timestamp_hour_ms, [0, 0, 0])
            if file.is_dead:
                found[2] += each.rows
            else:
                found[0] += each.rows
                found[1] += each.distinct_offsets
    return tuple(
        LoadedRange(
            each.partition,
            each.from_address,
            each.to_address,
            tuple(
                HourCount(hour_ms, rows, _distinct(distinct, each.partition, hour_ms, offsets, dead), dead)
                for hour_ms, (rows, offsets, dead) in sorted(sums[each.partition].items())
            ),
        )
        for each in planned
    )


def _distinct(
    distinct: dict[tuple[int, int], int] | None, partition: int, hour_ms: int, summed: int, dead: int
) -> int:
    return summed if distinct is None else distinct[partition, hour_ms] - dead


def _stage(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    topic: str,
    plan: LoadPlan,
    staging: str,
    subject: str | None,
    registries: Registries,
) -> tuple[list[StagedFile], TopicSchemas]:
    """Stage the plan with every schema that its records turn out to need."""
    schemas = topic_schemas(subject or subject_of(topic), registries)
    if not plan.ranges:
        return [], schemas
    if schemas.refused:
        # Only then is it worth a look before anything is written: is one of the refused schemas really in
        # there?
        schemas.refuse(present_schema_ids(spark, warehouse.bootstrap, topic, plan.ranges))
    # The first thing that is written: here a NameNode that restarts is waited for, and a stranger is refused.
    hdfs.makedirs(staging)
    hours = f"{staging}/hours"
    while True:
        stage_load(spark, warehouse, hdfs, topic, plan.ranges, schemas, hours)
        staged = staged_files(hdfs, hours)
        unread = {schema_id for each in staged if each.is_dead for schema_id in each.count.schema_ids} - {
            each.schema_id for each in schemas.writers
        }
        wider = with_writers(schemas, unread, registries) if unread else schemas
        wider.refuse(unread)
        if len(wider.writers) == len(schemas.writers):
            if unread - {NO_SCHEMA_ID}:
                registries.check_all_answered()
            return staged, schemas
        # Another subject's schema, known by its id: once more, with a branch for it.
        schemas = wider


def data_files(
    paths: TopicPaths, sequence: int, staged: Iterable[StagedFile], schema_id: int
) -> tuple[DataFile, ...]:
    """The staged files with the names they will have."""
    alive = sorted(
        (each for each in staged if not each.is_dead), key=lambda each: (each.hour_number, each.path)
    )
    return tuple(
        DataFile(
            path=paths.data_file(each.hour_number * HOUR_MS, sequence, number),
            staged=each.path,
            hour_ms=each.hour_number * HOUR_MS,
            rows=each.count.rows,
            size_bytes=each.size_bytes,
            schema_id=schema_id,
        )
        for number, each in enumerate(alive)
    )


def dead_letter_files(paths: TopicPaths, sequence: int, dead: Iterable[StagedFile]) -> tuple[DeadFile, ...]:
    """The staged dead-letter files with the names they will have."""
    return tuple(
        DeadFile(paths.dead_file(sequence, number), each.path, each.count.rows, each.size_bytes)
        for number, each in enumerate(dead)
    )


def _batch_address(warehouse: WarehouseOptions, topic: str, partition: int, address: int, end: int) -> int:
    """The address of the batch that holds `address`: loads begin and end at batches' edges."""
    if address >= end:
        return end
    options = SourceOptions(bootstrap=warehouse.servers, fetch_size_bytes=1)
    for batch in read_batches(Range(topic, partition, address, address + 1), options):
        return batch.header.base_offset
    return address
