"""The operations of a warehouse, by topic, for programs and commands.

Owns their signatures; the work is done in the modules that they name.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.warehouse.change import TopicTable, hdfs_of
from headrace.warehouse.compact import CompactResult, compact_topic
from headrace.warehouse.layout import hour_name
from headrace.warehouse.loading import LoadResult, load_topic, plan_topic
from headrace.warehouse.move import MoveResult, move_topic
from headrace.warehouse.options import DEFAULT_DATACENTER, DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.plan import LoadPlan
from headrace.warehouse.replay import ReplayResult, replay_topic
from headrace.warehouse.report import publishing
from headrace.warehouse.retain import RetainResult, retain_topic
from headrace.warehouse.seal import counted_from, is_stale, seals
from headrace.warehouse.verify import VerifyResult, verify_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """Where the seal's proof begins: producers or log (see `audit.declarations`); None without a seal."""


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
    subject: str | None = None,
) -> list[LoadResult]:
    """Like `load`, with the addresses in one value."""
    with _tables(warehouse, topics) as tables:
        return [
            load_topic(spark, table, until_ms=until_ms, accept_gap=accept_gap, subject=subject)
            for table in tables
        ]


def plan_loads(
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
) -> list[LoadPlan]:
    """Returns what `load_topics` would do now. Needs no Spark, writes nothing."""
    with _tables(warehouse, topics) as tables:
        return [
            plan_topic(table, table.log.state(), until_ms=until_ms, accept_gap=accept_gap) for table in tables
        ]


def replay_topics(
    spark: "SparkSession", warehouse: WarehouseOptions, topics: Iterable[str], *, subject: str | None = None
) -> list[ReplayResult]:
    """Loads dead letters again, once their cause is fixed."""
    with _tables(warehouse, topics) as tables:
        return [replay_topic(spark, table, subject=subject) for table in tables]


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
    warehouse: WarehouseOptions, topics: Iterable[str], *, audit_store: str | None = None
) -> list[VerifyResult]:
    """Compares the files with the manifests, and the manifests with the audit's store. Needs no Spark."""
    with _tables(warehouse, topics) as tables:
        return [verify_topic(table, audit_store=audit_store) for table in tables]


def list_tables(warehouse: WarehouseOptions) -> list[str]:
    """Returns the topics that have a table, by name."""
    with hdfs_of(warehouse) as hdfs:
        return [entry.name for entry in hdfs.entries(warehouse.root) if entry.is_dir]


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
