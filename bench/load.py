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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from load_figures import Figures, out
from load_sides import compare, judge, ours, prefix, root_of
from load_site import TOPIC, BenchSite, publish, running_site
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headrace.audit.report.report import is_complete
from headrace.audit.store.store import AuditStore
from headrace.events.publisher import EventPublisher
from headrace.warehouse.api import load_topics
from headrace.warehouse.jars import ensure_jars
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.seal import seal_hour
from headrace.warehouse.session import spark_session
from headrace.warehouse.source.errors import NoSuchTopicError
from headrace.warehouse.tables import read

PAPER_LATENCY_S: Final = 10.0
"""Goodhope et al. 2012, section 5: events reach the offline cluster after about 10 s on average."""
LOAD_EVERY_S: Final = 10.0
EVENTS_PER_S: Final = 500
SEALED_HOUR_BAR_S: Final = 120.0
SEAL_WAIT_MAX_S: Final = 300.0
LIVE_TOPIC: Final = "page-view"


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
            out.print(f"side by side: {scale.side_by_side:,} events, {scale.repeats} times each, alternately")
            whole, half = (prefix(count, scale.side_by_side // part) for part in (1, 2))
            judge(compare(spark, bench, whole, half, scale.repeats), figures)
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


def grow(spark: SparkSession, bench: BenchSite, scale: Scale, count: int, figures: Figures) -> None:
    """Measures loads of growing size."""
    out.print("loads of growing size")
    for size in scale.growth:
        began = time.monotonic()
        rows = ours(spark, bench, f"grow-{size}", prefix(count, size)).rows
        figures.show(f"a load of {rows:,} events", rows / (time.monotonic() - began), "rows/s")


def live(spark: SparkSession, bench: BenchSite, scale: Scale, figures: Figures) -> None:
    """Measures the age of events when a query can read them: published, mirrored, loaded every 10 s."""
    out.print(f"live: {EVENTS_PER_S} events/s for {scale.live_s:.0f} s, a load every {LOAD_EVERY_S:.0f} s")
    warehouse = root_of(bench, "live")
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
    warehouse = root_of(bench, "live", audit=True)
    waits_s: list[float] = []
    # Of one moment: while this runs an hour may end, and two rounds would share theirs.
    last_ms = (int(time.time() * 1000) // HOUR_MS - 2) * HOUR_MS
    for number in range(scale.sealed_hours):
        hour_ms = last_ms - number * HOUR_MS
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
    files = f"{warehouse.url(warehouse.root)}/{LIVE_TOPIC}/hourly/*/*/*.parquet"
    sequence = f.regexp_extract(f.input_file_name(), r"/(\d{20})-\d+\.parquet", 1).cast("int")
    rows = spark.read.parquet(files).select(
        f.unix_millis("header.time").alias("ms"), sequence.alias("sequence")
    )
    return [(readable_ms[row.sequence] - row.ms) / 1000 for row in rows.collect()]


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    sys.exit(main())
