"""What people and programs call: the warehouse's operations, by topic.

Owns the signatures; the work is in the module each function names.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.compact import CompactResult, compact_topic
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths, hour_name
from headrace.warehouse.loading import LoadResult, load_topic, plan_topic
from headrace.warehouse.options import DEFAULT_DATACENTER, DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.plan import LoadPlan
from headrace.warehouse.replay import ReplayResult, replay_topic
from headrace.warehouse.report import publishing
from headrace.warehouse.retain import RetainResult, retain_topic
from headrace.warehouse.seal import is_stale, seals
from headrace.warehouse.verify import VerifyResult, verify_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class HourSummary:
    """One hour of a table, for people."""

    hour: str
    hour_ms: int
    rows: int
    files: int
    size_bytes: int
    sealed_version: int | None
    sealed_rows: int | None
    is_stale: bool
    """Late data came after the seal: the next seal will be a new version."""


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
) -> list[LoadResult]:
    """Load what is new of each topic into hourly Parquet, exactly once; one result a topic, in their order.

    `until`: only records before this time in ms. `registry_url` may name several, with commas between.
    """
    warehouse = WarehouseOptions(hdfs_url, webhdfs_url, bootstrap, registry_url, root, datacenter, audit)
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
    """`load`, with the addresses in one value."""
    with _open(warehouse) as hdfs, publishing(warehouse) as publish:
        return [
            load_topic(
                spark,
                topic,
                warehouse,
                hdfs,
                publish,
                until_ms=until_ms,
                accept_gap=accept_gap,
                subject=subject,
            )
            for topic in topics
        ]


def plan_loads(
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
) -> list[LoadPlan]:
    """What `load_topics` would do now. Needs no Spark, writes nothing."""
    with _open(warehouse) as hdfs:
        return [
            plan_topic(
                warehouse,
                CommitLog(hdfs, TopicPaths(warehouse.root, topic)).state(),
                topic,
                until_ms=until_ms,
                accept_gap=accept_gap,
            )
            for topic in topics
        ]


def replay_topics(
    spark: "SparkSession", warehouse: WarehouseOptions, topics: Iterable[str], *, subject: str | None = None
) -> list[ReplayResult]:
    """Load dead letters again, once their cause is mended."""
    with _open(warehouse) as hdfs, publishing(warehouse) as publish:
        return [replay_topic(spark, topic, warehouse, hdfs, publish, subject=subject) for topic in topics]


def compact_topics(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    topics: Iterable[str],
    *,
    hours: Iterable[int] | None = None,
    grace_ms: int = 0,
) -> list[CompactResult]:
    """Rewrite the small files of closed hours (of these hours, by their beginnings in ms) into few."""
    chosen = None if hours is None else set(hours)
    with _open(warehouse) as hdfs, publishing(warehouse) as publish:
        return [
            compact_topic(spark, topic, warehouse, hdfs, publish, hours=chosen, grace_ms=grace_ms)
            for topic in topics
        ]


def retain_topics(
    warehouse: WarehouseOptions, topics: Iterable[str], *, keep_ms: int | None = None
) -> list[RetainResult]:
    """Let hours go that are older than `keep_ms`; clear orphaned staging and old trash. Needs no Spark."""
    with _open(warehouse) as hdfs, publishing(warehouse) as publish:
        return [retain_topic(topic, warehouse, hdfs, publish, keep_ms=keep_ms) for topic in topics]


def verify_topics(
    warehouse: WarehouseOptions, topics: Iterable[str], *, audit_store: str | None = None
) -> list[VerifyResult]:
    """Recount the files against the manifests, and the manifests against the audit's store.

    Needs no Spark.
    """
    with _open(warehouse) as hdfs:
        return [verify_topic(topic, warehouse, hdfs, audit_store=audit_store) for topic in topics]


def list_tables(warehouse: WarehouseOptions) -> list[str]:
    """The topics that have a table, by name."""
    with _open(warehouse) as hdfs:
        return [entry.name for entry in hdfs.entries(warehouse.root) if entry.is_dir]


def list_hours(warehouse: WarehouseOptions, topic: str) -> list[HourSummary]:
    """The hours of a table: what they hold, whether they are sealed, and whether late data came after the
    seal.
    """
    with _open(warehouse) as hdfs:
        paths = TopicPaths(warehouse.root, topic)
        state = CommitLog(hdfs, paths).state()
        sealed = seals(hdfs, paths)
    return [
        HourSummary(
            hour=hour_name(hour_ms),
            hour_ms=hour_ms,
            rows=sum(each.rows for each in files),
            files=len(files),
            size_bytes=sum(each.size_bytes for each in files),
            sealed_version=sealed[hour_ms].version if hour_ms in sealed else None,
            sealed_rows=sealed[hour_ms].rows if hour_ms in sealed else None,
            is_stale=hour_ms in sealed and is_stale(state, sealed[hour_ms], hour_ms),
        )
        for hour_ms, files in state.hours().items()
    ]


@contextmanager
def _open(warehouse: WarehouseOptions) -> Iterator[HdfsClient]:
    with HdfsClient(warehouse.webhdfs_url, user=warehouse.user, patience_s=warehouse.patience_s) as hdfs:
        yield hdfs
