"""The operations of a warehouse, by topic, for programs and commands.

Owns their signatures; the work is done in the modules that they name.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.audit.topic.said_of_tables import ALL
from headrace.warehouse.change import TopicTable, hdfs_of
from headrace.warehouse.compact import CompactResult, compact_topic
from headrace.warehouse.doubles import DedupeResult, Doubles, dedupe_topic_hour, find_doubles
from headrace.warehouse.errors import known_error
from headrace.warehouse.from_source import SourceLog, TakenResult, WantedRange, take_from_source
from headrace.warehouse.layout import can_be_table, hour_name
from headrace.warehouse.loading import LoadResult, load_topic
from headrace.warehouse.made_again import Said
from headrace.warehouse.move import MoveResult, move_topic
from headrace.warehouse.options import DEFAULT_DATACENTER, DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.plan import LoadPlan
from headrace.warehouse.planning import NOTHING, plan_topic
from headrace.warehouse.refill import RefillResult, lost_hours, refill_topic, unsound_hours
from headrace.warehouse.replay import ReplayResult, replay_topic
from headrace.warehouse.report import publishing, tell_doubles, tell_verified
from headrace.warehouse.retain import RetainResult, retain_topic
from headrace.warehouse.seal import counted_from, is_stale, seals
from headrace.warehouse.unsound import unsound_files
from headrace.warehouse.verify import VerifyResult, suspect_hours, verify_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROWS_COMPARED_MAX: Final = 1_000_000
"""Of the hours of one load together, the newest first, so that it is quick: `verify` compares all."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HourSummary:
    """One hour of a table, in numbers."""

    hour: str
    hour_ms: int
    rows: int
    files: int
    size_bytes: int
    sealed_version: int | None
    sealed_rows: int | None
    is_stale: bool
    """Whether late data came after the seal. The next seal will be a new version."""
    counted_from: str | None = None
    """Where the seal's proof begins: producers or log (see `audit.topic.declarations`); None without a
    seal."""


def load(
    spark: "SparkSession",
    topics: Iterable[str],
    *,
    bootstrap: str,
    registry_url: str,
    hdfs_url: str,
    webhdfs_url: str,
    root: str = DEFAULT_ROOT,
    until: int | None = None,
    accept_gap: bool = False,
    subject: str | None = None,
    datacenter: str = DEFAULT_DATACENTER,
    audit: bool = True,
    zookeeper: str | None = None,
) -> list[LoadResult]:
    """Loads what is new of each topic into hourly Parquet, exactly once; returns a result per topic.

    `until` loads only records before this time in ms. `registry_url` may list several, separated by commas.
    If two of them have different schemas for one id, the load needs their datacenters' names
    (`east=http://…`) and `zookeeper`, the analysis cluster's.
    """
    warehouse = WarehouseOptions(
        hdfs_url, webhdfs_url, bootstrap, registry_url, root, datacenter, audit, zookeeper=zookeeper
    )
    return load_topics(spark, warehouse, topics, until_ms=until, accept_gap=accept_gap, subject=subject)


def load_topics(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
    said: Said = NOTHING,
    subject: str | None = None,
) -> list[LoadResult]:
    """Like `load`, with the addresses in one value."""
    with _tables(warehouse, topics) as tables:
        results = [
            load_topic(
                spark,
                table,
                until_ms=until_ms,
                accept_gap=accept_gap,
                said=said,
                subject=subject,
            )
            for table in tables
        ]
        return [_compared(table, warehouse, result) for table, result in zip(tables, results, strict=True)]


def _compared(table: TopicTable, warehouse: WarehouseOptions, result: LoadResult) -> LoadResult:
    """Looks for events that the hours of a load have more than once, and tells the audit of them. An hour's
    unsound files hide nothing of the sound ones.

    The load is done by then: what fails here is logged, and the next verification of these hours looks again.
    """
    try:
        state = table.log.state()
        found: list[Doubles] = []
        left = ROWS_COMPARED_MAX
        for hour_ms in sorted(result.hours, reverse=True):
            left -= sum(file.rows for file in state.hours().get(hour_ms, []))
            if left < 0:
                break
            found.append(find_doubles(table, state, hour_ms, skips_unsound=True))
        tell_doubles(found, warehouse)
    except Exception as error:
        problem = known_error(error, f"comparing the guids of {table.topic}")
        if problem is None:
            raise
        _log.warning("%s", problem)
        return result
    return replace(result, doubled=sum(each.extra for each in found))


def plan_loads(
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
    said: Said = NOTHING,
) -> list[LoadPlan]:
    """Returns what `load_topics` would do now. Needs no Spark, writes nothing."""
    with _tables(warehouse, topics) as tables:
        return [
            plan_topic(
                table,
                table.log.state(),
                until_ms=until_ms,
                accept_gap=accept_gap,
                said=said,
            )
            for table in tables
        ]


def replay_topics(
    spark: "SparkSession", warehouse: WarehouseOptions, topics: Iterable[str], *, subject: str | None = None
) -> list[ReplayResult]:
    """Loads dead letters again, once their cause is fixed."""
    with _tables(warehouse, topics) as tables:
        return [replay_topic(spark, table, subject=subject) for table in tables]


def refill_topic_hours(
    spark: "SparkSession", warehouse: WarehouseOptions, topic: str, hours: Iterable[int]
) -> list[RefillResult]:
    """Reads from the log again what the table lacks of these hours (starts in ms)."""
    with _tables(warehouse, [topic]) as [table]:
        return refill_topic(spark, table, hours)


def take_topic_ranges(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    topic: str,
    source: SourceLog,
    wanted: Iterable[WantedRange],
) -> list[TakenResult]:
    """Takes addresses that the copy cannot hold from their datacenter's own log (`warehouse.from_source`)."""
    with _tables(warehouse, [topic]) as [table]:
        return take_from_source(spark, table, source, wanted)


def doubles_of(warehouse: WarehouseOptions, topic: str, hours: Iterable[int]) -> list[Doubles]:
    """Returns which events of these hours (starts in ms) the table has more than once. Needs no Spark."""
    with _tables(warehouse, [topic]) as [table]:
        state = table.log.state()
        return [find_doubles(table, state, hour_ms) for hour_ms in sorted(set(hours))]


def dedupe_topic_hours(warehouse: WarehouseOptions, topic: str, hours: Iterable[int]) -> list[DedupeResult]:
    """Removes what the table has more than once of these hours, and tells the audit. Needs no Spark."""
    wanted = sorted(set(hours))
    with _tables(warehouse, [topic]) as [table]:
        table.log.complete_all(table.publish)
        state = table.log.state()
        tell_doubles((find_doubles(table, state, hour_ms) for hour_ms in wanted), warehouse)
        return [dedupe_topic_hour(table, hour_ms) for hour_ms in wanted]


def hours_to_refill(warehouse: WarehouseOptions, topic: str, *, audit_store: str | None = None) -> list[int]:
    """Returns the hours that lack files, and those of which the audit's store says that loads lost rows.

    Needs no Spark.
    """
    with _tables(warehouse, [topic]) as [table]:
        hours = set(unsound_hours(table, table.log.state()))
    return sorted(hours | (lost_hours(audit_store, topic) if audit_store else set()))


def unsound(warehouse: WarehouseOptions, topic: str, hours: Iterable[int]) -> dict[int, list[str]]:
    """Returns the files of these hours that are missing, cut or unreadable, by hour. Needs no Spark."""
    with _tables(warehouse, [topic]) as [table]:
        state = table.log.state()
        found = {hour_ms: unsound_files(table, state, hour_ms) for hour_ms in hours}
    return {
        hour_ms: [f"{file.path} {problem} ({file.rows} rows)" for file, problem in files]
        for hour_ms, files in found.items()
        if files
    }


def compact_topics(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    hours: Iterable[int] | None = None,
    grace_ms: int = 0,
) -> list[CompactResult]:
    """Rewrites the small files of closed hours (of `hours` only: starts in ms) into fewer, larger ones."""
    chosen = None if hours is None else set(hours)
    with _tables(warehouse, topics) as tables:
        return [compact_topic(spark, table, hours=chosen, grace_ms=grace_ms) for table in tables]


def retain_topics(
    warehouse: WarehouseOptions, topics: Iterable[str], *, keep_ms: int | None = None
) -> list[RetainResult]:
    """Deletes hours older than `keep_ms`, orphaned staging and old trash. Needs no Spark."""
    with _tables(warehouse, topics) as tables:
        return [retain_topic(table, keep_ms=keep_ms) for table in tables]


def move_topics(warehouse: WarehouseOptions, topics: Iterable[str]) -> list[MoveResult]:
    """Moves the files of an older headrace to `dt=…/hour=…`, where tools find columns. Needs no Spark."""
    with _tables(warehouse, topics) as tables:
        return [move_topic(table) for table in tables]


def verify_topics(
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    audit_store: str | None = None,
    checked: str = ALL,
) -> list[VerifyResult]:
    """Compares the files with the manifests, and the manifests with the audit's store. Needs no Spark.

    `checked`: `all` hours, or the `recent` ones (`warehouse.verify`). With a store it also tells the audit
    what it found.
    """
    with _tables(warehouse, topics) as tables:
        results = [
            verify_topic(
                table,
                audit_store=audit_store,
                checked=checked,
                suspects=suspect_hours(audit_store, table.topic) if audit_store else (),
            )
            for table in tables
        ]
    if audit_store is not None and warehouse.audit:
        tell_verified(results, warehouse)
    return results


def list_tables(warehouse: WarehouseOptions) -> list[str]:
    """Returns the topics that have a table, by name: other folders there are somebody's own."""
    with hdfs_of(warehouse) as hdfs:
        entries = hdfs.entries(warehouse.root)
    return [entry.name for entry in entries if entry.is_dir and can_be_table(entry.name)]


def list_hours(warehouse: WarehouseOptions, topic: str) -> list[HourSummary]:
    """Returns the hours of a table, with their seals."""
    with _tables(warehouse, [topic]) as [table]:
        state = table.log.state()
        sealed = seals(table.hdfs, table.paths)
    return [
        HourSummary(
            hour=hour_name(hour_ms),
            hour_ms=hour_ms,
            rows=sum(file.rows for file in files),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            sealed_version=sealed[hour_ms].version if hour_ms in sealed else None,
            sealed_rows=sealed[hour_ms].rows if hour_ms in sealed else None,
            is_stale=hour_ms in sealed and is_stale(state, sealed[hour_ms], hour_ms),
            counted_from=counted_from(sealed[hour_ms]) if hour_ms in sealed else None,
        )
        for hour_ms, files in state.hours().items()
    ]


@contextmanager
def _tables(warehouse: WarehouseOptions, topics: Iterable[str]) -> Iterator[list[TopicTable]]:
    with hdfs_of(warehouse) as hdfs, publishing(warehouse) as publish:
        yield [TopicTable(topic, warehouse, hdfs, publish) for topic in topics]
