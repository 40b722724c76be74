"""`make bench-load`: the load against Spark's own Kafka connector, its growth, and the age of new rows.

Owns the procedure, the bars and the exit code, which is 1 if a bar is missed. `QUICK=1` takes under ten
minutes; `JSON=path` writes every figure. docs/benchmarks.md has the figures of a quiet machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from cpu_clock import CpuClock
from load_site import BASE_TIME_MS, HOURS, SCHEMA, BenchSite, publish, running_site
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from rich.console import Console

from headrace.audit.report import is_complete
from headrace.audit.store import AuditStore
from headrace.events.publisher import EventPublisher
from headrace.warehouse.api import load_topics, plan_loads
from headrace.warehouse.decode import ADDRESS_COLUMNS, HOUR_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.jars import ensure_jars
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadPlan, split_count
from headrace.warehouse.seal import seal_hour
from headrace.warehouse.session import spark_session
from headrace.warehouse.source.errors import NoSuchTopicError
from headrace.warehouse.source.options import format_offsets
from headrace.warehouse.tables import read

PAPER_LATENCY_S: Final = 10.0
"""Goodhope et al. 2012, section 5: events reach the offline cluster after about 10 s on average."""
LOAD_EVERY_S: Final = 10.0
EVENTS_PER_S: Final = 500
SEALED_HOUR_BAR_S: Final = 120.0
SEAL_WAIT_MAX_S: Final = 300.0
TOPIC: Final = "bench"
LIVE_TOPIC: Final = "page-view"

out = Console(highlight=False)


@dataclass(frozen=True)
class Scale:
    """The size of a run."""

    side_by_side: int
    growth: tuple[int, ...]
    repeats: int
    live_s: float
    sealed_hours: int


FULL: Final = Scale(
    5_000_000, (500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000), 3, 180.0, 3
)
QUICK: Final = Scale(1_000_000, (250_000, 500_000, 1_000_000, 2_000_000), 2, 60.0, 1)


@dataclass(frozen=True)
class Figure:
    """One measured number, and the bar that it must reach; None if it has none."""

    name: str
    value: float
    unit: str
    bar: str | None = None
    is_met: bool = True
    note: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.name}: {self.value:,.2f} {self.unit}"
            if self.value < 100
            else f"{self.name}: {self.value:,.0f} {self.unit}"
        )
        verdict = "" if self.bar is None else f"   (bar {self.bar}: {'met' if self.is_met else 'MISSED'})"
        return text + verdict + (f"   {self.note}" if self.note else "")


class Figures:
    """The figures so far, each printed once it is measured."""

    def __init__(self) -> None:
        self.all: list[Figure] = []

    def show(self, name: str, value: float, unit: str, note: str = "") -> None:
        self._add(Figure(name, value, unit, note=note))

    def at_least(self, name: str, value: float, unit: str, bar: float, note: str = "") -> None:
        self._add(Figure(name, value, unit, f"≥ {bar:g}", value >= bar, note))

    def at_most(self, name: str, value: float, unit: str, bar: float, note: str = "") -> None:
        self._add(Figure(name, value, unit, f"≤ {bar:g}", value <= bar, note))

    def _add(self, figure: Figure) -> None:
        self.all.append(figure)
        out.print(f"  {'[green]' if figure.is_met else '[red]'}{figure}[/]")


def main() -> int:
    scale = QUICK if os.environ.get("QUICK") else FULL
    figures = Figures()
    with running_site() as bench:
        spark = _session()
        try:
            count = max(scale.growth)
            out.print(f"publishing {count:,} events")
            size_bytes = publish(bench, TOPIC, count, lambda _: None)
            figures.show("one event", size_bytes, "bytes")
            compare(spark, bench, scale, count, figures)
            grow(spark, bench, scale, count, figures)
            out.print("starting the source datacenter, the mirror and the auditors")
            bench.start_rest()
            live(spark, bench, scale, figures)
            sealed(spark, bench, scale, figures)
        finally:
            spark.stop()
    if path := os.environ.get("JSON"):
        Path(path).write_text(json.dumps([asdict(figure) for figure in figures.all], indent=1))
    missed = [figure for figure in figures.all if not figure.is_met]
    out.print(f"{len(missed)} of {sum(figure.bar is not None for figure in figures.all)} bars missed")
    return 1 if missed else 0


def _session() -> SparkSession:
    jars = [
        str(path)
        for files in ensure_jars(("spark", "kafka")).values()
        for path in sorted(files.glob("*.jar"))
    ]
    cores = os.cpu_count() or 2
    conf = {"spark.jars": ",".join(jars), "spark.driver.memory": "3g"}
    return spark_session("bench-load", master=f"local[{cores}]", conf=conf)


def compare(spark: SparkSession, bench: BenchSite, scale: Scale, count: int, figures: Figures) -> None:
    """Measures both ways from the brokers to hourly Parquet, alternately, in one Spark session."""
    out.print(f"side by side: {scale.side_by_side:,} events, {scale.repeats} times each, alternately")
    warm, whole = _prefix(count, min(scale.growth) // 2), _prefix(count, scale.side_by_side)
    ours(spark, bench, "warm", warm)
    theirs(spark, bench, "warm", warm)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    shares: dict[str, list[float]] = {"ours": [], "theirs": []}
    cpu_per_million: dict[str, list[float]] = {"ours": [], "theirs": []}
    with CpuClock() as clock:
        for repeat in range(scale.repeats):
            for name, run in (("ours", ours), ("theirs", theirs)):
                before, began = clock.read(), time.monotonic()
                rows = run(spark, bench, f"{name}-{repeat}", whole)
                seconds, cpu = time.monotonic() - began, clock.read() - before
                rates[name].append(rows / seconds)
                shares[name].append(cpu.python_share)
                cpu_per_million[name].append(cpu.total * 1e6 / rows)
    mine, other = statistics.median(rates["ours"]), statistics.median(rates["theirs"])
    figures.show("headrace load", mine, "rows/s", "from the brokers to committed hourly Parquet")
    figures.show(
        "Spark's Kafka connector + from_avro", other, "rows/s", "same brokers, same session, same partitions"
    )
    figures.at_least("headrace ÷ Spark's connector", mine / other, "times", 1.0)
    for name, title in (("ours", "headrace load"), ("theirs", "Spark's connector")):
        figures.show(f"{title}: CPU per million rows", statistics.median(cpu_per_million[name]), "s")
        figures.show(f"{title}: Python's share of the CPU", 100 * statistics.median(shares[name]), "%")


def ours(spark: SparkSession, bench: BenchSite, name: str, until_ms: int | None) -> int:
    """Loads into a warehouse of its own; returns the rows."""
    warehouse = _root(bench, name)
    [result] = load_topics(spark, warehouse, [TOPIC], until_ms=until_ms)
    _delete(bench, warehouse.root)
    return result.rows


def theirs(spark: SparkSession, bench: BenchSite, name: str, until_ms: int | None) -> int:
    """Loads the same addresses by Spark's Kafka connector and `from_avro`; returns the rows."""
    [plan] = plan_loads(_root(bench, f"plan-{name}"), [TOPIC], until_ms=until_ms)
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
    root = f"/bench-{name}"
    target = bench.warehouse.url(root)
    rows = decoded.select("event.*", *ADDRESS_COLUMNS, hour.alias(HOUR_COLUMN))
    rows.write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(target)
    written = spark.read.parquet(target).count()
    _delete(bench, root)
    return int(written)


def grow(spark: SparkSession, bench: BenchSite, scale: Scale, count: int, figures: Figures) -> None:
    """Measures loads of growing size."""
    out.print("loads of growing size")
    for size in scale.growth:
        began = time.monotonic()
        rows = ours(spark, bench, f"grow-{size}", _prefix(count, size))
        figures.show(f"a load of {rows:,} events", rows / (time.monotonic() - began), "rows/s")


def live(spark: SparkSession, bench: BenchSite, scale: Scale, figures: Figures) -> None:
    """Measures the age of events when a query can read them: published, mirrored, loaded every 10 s."""
    out.print(f"live: {EVENTS_PER_S} events/s for {scale.live_s:.0f} s, a load every {LOAD_EVERY_S:.0f} s")
    warehouse = _root(bench, "live")
    stop = threading.Event()
    publisher = threading.Thread(target=_publish_live, args=(bench, stop), name="publisher")
    publisher.start()
    readable_ms: dict[int, int] = {}
    began = time.monotonic()
    loads = 0
    try:
        while time.monotonic() - began < scale.live_s:
            loads += 1
            time.sleep(max(0.0, began + loads * LOAD_EVERY_S - time.monotonic()))
            _load_live(spark, warehouse, readable_ms)
    finally:
        stop.set()
        publisher.join()
    time.sleep(1)
    _load_live(spark, warehouse, readable_ms)
    ages_s = sorted(_ages_s(spark, bench, warehouse, readable_ms))
    figures.show("live events", len(ages_s), "events")
    figures.at_most(
        "event to readable in HDFS, mean",
        statistics.fmean(ages_s),
        "s",
        PAPER_LATENCY_S,
        "the paper: about 10 s",
    )
    figures.show("event to readable in HDFS, p50", _quantile(ages_s, 0.5), "s", "a load every 10 s")
    figures.show("event to readable in HDFS, p99", _quantile(ages_s, 0.99), "s")


def sealed(spark: SparkSession, bench: BenchSite, scale: Scale, figures: Figures) -> None:
    """Measures the time until a query reads the events of a past hour from its sealed version."""
    out.print("events of a closed hour, loaded, proven complete, sealed, queried")
    warehouse = _root(bench, "live", audit=True)
    waits_s: list[float] = []
    for number in range(scale.sealed_hours):
        hour_ms = (int(time.time() * 1000) // HOUR_MS - 2 - number) * HOUR_MS
        count = EVENTS_PER_S
        with _publisher(bench) as publisher:
            published = [time.monotonic()] * count
            for event in range(count):
                published[event] = time.monotonic()
                publisher.publish(LIVE_TOPIC, _page_view(event), time_ms=hour_ms + event * HOUR_MS // count)
        _wait_until_sealed(spark, bench, warehouse, hour_ms, count)
        rows = read(spark, LIVE_TOPIC, [hour_ms], warehouse=warehouse).count()
        assert rows == count, f"{rows} rows in the sealed hour, {count} were published"
        now = time.monotonic()
        waits_s += [now - published_at for published_at in published]
    figures.at_most(
        "event to sealed-hour query, p50", _quantile(sorted(waits_s), 0.5), "s", SEALED_HOUR_BAR_S
    )
    figures.show(
        "event to sealed-hour query, p99",
        _quantile(sorted(waits_s), 0.99),
        "s",
        "the audit waits 30 s for silence",
    )


def _wait_until_sealed(
    spark: SparkSession, bench: BenchSite, warehouse: WarehouseOptions, hour_ms: int, count: int
) -> None:
    store = AuditStore(bench.site.audit_store_url)
    deadline = time.monotonic() + SEAL_WAIT_MAX_S
    try:
        while True:
            load_topics(spark, warehouse, [LIVE_TOPIC])
            proof = is_complete(store, LIVE_TOPIC, hour_ms)
            if proof.complete:
                seal_hour(warehouse.webhdfs_url, LIVE_TOPIC, hour_ms, proof.to_json(), root=warehouse.root)
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the hour isn't proven complete: {'; '.join(proof.problems[:3])}")
            time.sleep(1)
    finally:
        store.close()


def _publish_live(bench: BenchSite, stop: threading.Event) -> None:
    with _publisher(bench) as publisher:
        number = 0
        began = time.monotonic()
        while not stop.is_set():
            wanted = int((time.monotonic() - began) * EVENTS_PER_S)
            for _ in range(wanted - number):
                publisher.publish(LIVE_TOPIC, _page_view(number))
                number += 1
            stop.wait(0.02)


def _publisher(bench: BenchSite) -> EventPublisher:
    east = bench.site.datacenter("east")
    return EventPublisher(
        datacenter="east", service="bench", bootstrap=east.bootstrap, registry_url=east.registry_url
    )


def _page_view(number: int) -> dict[str, Any]:
    return {"remote_host": f"10.0.0.{number % 250}", "method": "GET", "path": f"/in/{number}", "status": 200}


def _load_live(spark: SparkSession, warehouse: WarehouseOptions, readable_ms: dict[int, int]) -> None:
    try:
        [result] = load_topics(spark, warehouse, [LIVE_TOPIC])
    except NoSuchTopicError:
        # Nothing is mirrored yet.
        return
    if result.sequence is not None:
        readable_ms[result.sequence] = int(time.time() * 1000)


def _ages_s(
    spark: SparkSession, bench: BenchSite, warehouse: WarehouseOptions, readable_ms: dict[int, int]
) -> list[float]:
    files = f"{warehouse.url(warehouse.root)}/{LIVE_TOPIC}/hourly/*/*/*/*/*.parquet"
    sequence = f.regexp_extract(f.input_file_name(), r"/(\d{20})-\d+\.parquet", 1).cast("int")
    rows = spark.read.parquet(files).select(
        f.unix_millis("header.time").alias("ms"), sequence.alias("sequence")
    )
    return [(readable_ms[row.sequence] - row.ms) / 1000 for row in rows.collect()]


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def _prefix(count: int, size: int) -> int | None:
    """The event time before which `size` of `count` events are; None for all of them."""
    return None if size >= count else BASE_TIME_MS + size * HOURS * HOUR_MS // count


def _parts(spark: SparkSession, plan: LoadPlan) -> int:
    return split_count(plan.size, spark.sparkContext.defaultParallelism)


def _root(bench: BenchSite, name: str, *, audit: bool = False) -> WarehouseOptions:
    return replace(bench.warehouse, root=f"/{name}", audit=audit)


def _delete(bench: BenchSite, root: str) -> None:
    with HdfsClient(bench.warehouse.webhdfs_url) as hdfs:
        hdfs.delete(root)


if __name__ == "__main__":
    sys.exit(main())
