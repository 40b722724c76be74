"""The two loads that are compared, and their comparison: rows a second, CPU, the size of the files.

Owns both loads and the bars between them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from cpu_clock import CpuClock, CpuSeconds, used_by
from load_figures import Figures
from load_site import BASE_TIME_MS, HOURS, SCHEMA, TOPIC, BenchSite
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from headrace.warehouse.api import load_topics, plan_loads
from headrace.warehouse.decode import ADDRESS_COLUMNS, HOUR_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadPlan, split_count
from headrace.warehouse.source.options import format_offsets

WARM_ROUNDS: Final = 2
"""Rounds with half of the events before the first measured one: the JVM compiles what runs often."""
RATE_BAR: Final = 2.0
CPU_BAR: Final = 0.5
SIZE_BAR: Final = 1.05


@dataclass(frozen=True)
class Side:
    """One of the two loads: how it runs, and what was measured."""

    title: str
    run: Callable[[SparkSession, BenchSite, str, int | None], Loaded]
    rates: list[float] = field(default_factory=list)
    cpu: list[CpuSeconds] = field(default_factory=list)
    """Of the session, per million rows."""
    servers: list[dict[str, float]] = field(default_factory=list)
    """Of the brokers and of HDFS, per million rows."""
    sizes_bytes: list[float] = field(default_factory=list)
    """Of the files, per row."""

    @property
    def cpu_s(self) -> float:
        return statistics.median(used.total for used in self.cpu)

    def measure(self, spark: SparkSession, bench: BenchSite, until_ms: int | None, clock: CpuClock) -> None:
        """Runs this load once."""
        before, servers, began = clock.read(), used_by(bench.servers), time.monotonic()
        loaded = self.run(spark, bench, f"side-{len(self.rates)}", until_ms)
        seconds, used = time.monotonic() - began, clock.read() - before
        millions = loaded.rows / 1e6
        self.rates.append(loaded.rows / seconds)
        self.cpu.append(CpuSeconds(used.jvm / millions, used.python / millions))
        after = used_by(bench.servers)
        self.servers.append({name: (after[name] - servers[name]) / millions for name in after})
        self.sizes_bytes.append(loaded.size_bytes / loaded.rows)

    def show(self, figures: Figures) -> None:
        figures.show(self.title, statistics.median(self.rates), "rows/s")
        jvm = statistics.median(used.jvm for used in self.cpu)
        python = statistics.median(used.python for used in self.cpu)
        split = f"JVM {jvm:.2f} s, Python {python:.2f} s; outside the session: " + ", ".join(
            f"{name} {statistics.median(used[name] for used in self.servers):.2f} s"
            for name in self.servers[0]
        )
        figures.show(f"{self.title}: CPU per million rows", self.cpu_s, "s", split)
        figures.show(f"{self.title}: Parquet", statistics.median(self.sizes_bytes), "bytes a row")


@dataclass(frozen=True)
class Loaded:
    """What one run wrote."""

    rows: int
    size_bytes: int


def compare(
    spark: SparkSession, bench: BenchSite, until_ms: int | None, warm_until_ms: int | None, repeats: int
) -> list[Side]:
    """Measures both ways from the brokers to hourly Parquet, alternately, in one Spark session."""
    sides = [Side("headrace load", ours), Side("Spark's Kafka connector + from_avro", theirs)]
    for round_ in range(WARM_ROUNDS):
        for side in sides:
            side.run(spark, bench, f"warm-{round_}", warm_until_ms)
    with CpuClock() as clock:
        for _ in range(repeats):
            for side in sides:
                side.measure(spark, bench, until_ms, clock)
    return sides


def judge(sides: list[Side], figures: Figures) -> None:
    """Shows what was measured, and the bars."""
    for side in sides:
        side.show(figures)
    mine, other = sides
    rates = [statistics.median(side.rates) for side in sides]
    figures.at_least("headrace ÷ Spark's connector: rows a second", rates[0] / rates[1], "times", RATE_BAR)
    figures.at_most("headrace ÷ Spark's connector: CPU", mine.cpu_s / other.cpu_s, "times", CPU_BAR)
    sizes = [statistics.median(side.sizes_bytes) for side in sides]
    figures.at_most("headrace ÷ Spark's connector: size of the files", sizes[0] / sizes[1], "times", SIZE_BAR)


def ours(spark: SparkSession, bench: BenchSite, name: str, until_ms: int | None) -> Loaded:
    """Loads into a warehouse of its own."""
    warehouse = root_of(bench, f"ours-{name}")
    [result] = load_topics(spark, warehouse, [TOPIC], until_ms=until_ms)
    return Loaded(result.rows, _deleted_bytes(bench, f"{warehouse.root}/{TOPIC}/hourly", warehouse.root))


def theirs(spark: SparkSession, bench: BenchSite, name: str, until_ms: int | None) -> Loaded:
    """Loads the same addresses by Spark's Kafka connector and `from_avro`."""
    [plan] = plan_loads(root_of(bench, f"plan-{name}"), [TOPIC], until_ms=until_ms)
    source = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": bench.warehouse.bootstrap,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "endingOffsets": format_offsets(
                {(TOPIC, planned.partition): planned.to_address for planned in plan.ranges}
            ),
            "minPartitions": str(_parts(spark, plan)),
            "kafka.max.partition.fetch.bytes": str(8 << 20),
            "kafka.fetch.max.bytes": str(64 << 20),
            # Offsets are addresses, so its consumer sees gaps between batches that are no losses.
            "failOnDataLoss": "false",
        }
    )
    event = from_avro(f.expr("substring(value, 6)"), json.dumps(SCHEMA), {"mode": "FAILFAST"})
    decoded = source.load().select(
        event.alias("event"),
        f.col("partition").alias(ADDRESS_COLUMNS[0]),
        f.col("offset").alias(ADDRESS_COLUMNS[1]),
        f.col("timestamp").alias(ADDRESS_COLUMNS[2]),
        f.expr("int(conv(hex(substring(value, 2, 4)), 16, 10))").alias(ADDRESS_COLUMNS[3]),
    )
    hour = f.floor(f.unix_millis("event.header.time") / HOUR_MS).cast("int")
    root = f"/theirs-{name}"
    target = bench.warehouse.url(root)
    rows = decoded.select("event.*", *ADDRESS_COLUMNS, hour.alias(HOUR_COLUMN))
    rows.write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(target)
    written = spark.read.parquet(target).count()
    return Loaded(int(written), _deleted_bytes(bench, root, root))


def prefix(count: int, size: int) -> int | None:
    """The event time before which `size` of `count` events are; None for all of them."""
    return None if size >= count else BASE_TIME_MS + size * HOURS * HOUR_MS // count


def _parts(spark: SparkSession, plan: LoadPlan) -> int:
    return split_count(plan.size, spark.sparkContext.defaultParallelism)


def root_of(bench: BenchSite, name: str, *, audit: bool = False) -> WarehouseOptions:
    return replace(bench.warehouse, root=f"/{name}", audit=audit)


def _deleted_bytes(bench: BenchSite, files: str, root: str) -> int:
    """Deletes `root`; returns the bytes of the files below `files`."""
    with HdfsClient(bench.warehouse.webhdfs_url) as hdfs:
        _, size_bytes = hdfs.usage(files)
        hdfs.delete(root)
    return size_bytes
