"""What the audit costs: CPU a million records, memory at 1,000 partitions, a report over a year of tallies.

python bench/audit_cost.py [--topics 50] [--days 365] [--kept-days 365] [--json FILE]

No network and no disk but the store's file: what an auditor adds to a broker's own work is its counting and
folding, which run here as they run there. CPU is this process's; memory is what the process holds more.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import delete, insert

from headrace.audit.batches.tally import Span
from headrace.audit.counting.partition_counter import (
    CountedPartition,
    PartitionCounter,
    SourcePartition,
    heartbeat,
)
from headrace.audit.counting.standing import MARKS_MAX, Standings
from headrace.audit.findings import Status
from headrace.audit.report.report import Report, report
from headrace.audit.report.settled import HOURS_A_TURN_MAX, Keeper
from headrace.audit.store import load_tables, tables
from headrace.audit.store.fold import digest_of
from headrace.audit.store.measured_tables import kept
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HandoverTally,
    ProducerReport,
    ReceivedRecord,
)
from headrace.process.clock import now_ms
from headrace.warehouse.checksums import read_checksum
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.wire.batch import readdress
from headrace.wire.records import Record, encode_batch

RECORDS: Final = 200_000
PARTITIONS: Final = 1_000
PRODUCERS: Final = 50
BUCKET_MS: Final = 600_000
FIRST_HOUR_MS: Final = 1_735_689_600_000  # 2025-01-01
BATCH_BYTES: Final = 1_000
RECORDS_PER_BUCKET: Final = 100
SEALED_BYTES: Final = 512 * 1024 * 1024
TIERS: Final = (DATACENTER_TIER, ANALYSIS_TIER)
WAREHOUSE: Final = "hdfs://bench/data"


def batches(records: int, per_batch: int) -> tuple[bytearray, int]:
    """A log of batches of many producers in turn."""
    log, sequences = bytearray(), [0] * PRODUCERS
    for number in range(records // per_batch):
        producer = number % PRODUCERS
        time_ms = FIRST_HOUR_MS + number * 10
        values = [Record(0, time_ms, None, b"x" * 100) for _ in range(per_batch)]
        batch = bytearray(
            encode_batch(values, producer_id=producer, producer_epoch=0, base_sequence=sequences[producer])
        )
        readdress(batch, 0, len(log), leader_epoch=0)
        sequences[producer] += per_batch
        log += batch
    return log, records


def counted(topic: str, number: int) -> CountedPartition:
    return CountedPartition(topic, number, SourcePartition("east", number, "id"), (DATACENTER_TIER,))


def counting_cpu_s(per_batch: int) -> float:
    """CPU seconds that counting a million records takes."""
    log, records = batches(RECORDS, per_batch)
    counter = PartitionCounter(counted("bench", 0), 0, BUCKET_MS, lambda *_: True)
    began_s = time.process_time()
    counter.feed(memoryview(log), 0)
    counter.cut()
    return (time.process_time() - began_s) * 1_000_000 / records


def memory_mb() -> float:
    """What the counters and marks of `PARTITIONS` partitions hold, each with all its marks."""
    log, _ = batches(PRODUCERS * MARKS_MAX, 1)
    gc.collect()
    before_kb = _resident_kb()
    standings = Standings(None)  # type: ignore[arg-type]
    counters = [
        PartitionCounter(counted("bench", n), 0, BUCKET_MS, lambda *_: True) for n in range(PARTITIONS)
    ]
    step = len(log) // MARKS_MAX - len(log) // MARKS_MAX % 170
    at = 0
    edges = [0]
    while at < len(log) and len(edges) <= MARKS_MAX:
        size = int.from_bytes(log[at + 8 : at + 12]) + 12
        at += size
        if at - edges[-1] >= step:
            edges.append(at)
    for low, high in itertools.pairwise(edges):
        for counter in counters:
            counter.feed(memoryview(log)[low:high], low)
            counter.cut()
            standings.note(counter, "id")
    beats = heartbeat(1, [(counter, counter.counted_to) for counter in counters], {"bench": "id"})
    gc.collect()
    assert beats
    return (_resident_kb() - before_kb) / 1024


def _resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- a year of tallies ---


def fill(store: AuditStore, topics: int, hours: int) -> None:
    """Fills a store with what it holds of complete hours after their tallies were merged, a day in each."""
    for number in range(topics):
        topic = f"topic-{number:03}"
        with store.writing() as connection:
            for tier in TIERS:
                for day in range(0, hours, 24):
                    spans = list(_spans(number, day, min(24, hours - day)))
                    row = {
                        "tier": tier,
                        "datacenter": "east",
                        "topic": topic,
                        "topic_id": "id",
                        "partition": 0,
                        "digest": digest_of(spans),
                        "chosen": True,
                        "from_address": spans[0].first_address,
                        "to_address": spans[-1].end_address,
                        "counted_ms": spans[-1].bucket_start_ms + BUCKET_MS,
                    }
                    key = connection.execute(insert(tables.tallies), row).inserted_primary_key
                    assert key is not None
                    rows = [{"tally_id": key[0], **span._asdict()} for span in spans]
                    connection.execute(insert(tables.spans), rows)
                beat = {"tier": tier, "datacenter": "east", "topic": topic, "topic_id": "id", "partition": 0}
                end = hours * 6 * BATCH_BYTES
                beat |= {"log_partition": 0, "beat": 1, "at_ms": now_ms()}
                connection.execute(
                    insert(tables.beats), {**beat, "counted_to_address": end, "end_address": end}
                )
            _fill_other_tiers(connection, topic, number, hours)
        if number == 0:
            store.fold([_closing(number)])
    store.fold([_closing(number) for number in range(1, topics)])


def _spans(number: int, first_hour: int, hours: int) -> Iterator[Span]:
    for bucket in range(first_hour * 6, (first_hour + hours) * 6):
        first, at = bucket * RECORDS_PER_BUCKET, bucket * BATCH_BYTES
        numbers = (number, 0, first, first + RECORDS_PER_BUCKET - 1, RECORDS_PER_BUCKET)
        yield Span(FIRST_HOUR_MS + bucket * BUCKET_MS, *numbers, at, at + BATCH_BYTES, bucket)


def _fill_other_tiers(connection: Any, topic: str, number: int, hours: int) -> None:
    buckets = range(hours * 6)
    claims = [
        json.dumps([[0, number, 0, bucket * RECORDS_PER_BUCKET, (bucket + 1) * RECORDS_PER_BUCKET - 1]])
        for bucket in buckets
    ]
    connection.execute(
        insert(tables.handovers),
        [
            {
                "datacenter": "east",
                "publisher": f"publisher-{number}",
                "part": bucket,
                "report_number": 1,
                "topic": topic,
                "handed_over_count": RECORDS_PER_BUCKET,
                "bucket_start_ms": FIRST_HOUR_MS + bucket * BUCKET_MS,
                "final": True,
                "reported_ms": 1,
                "ranges": claims[bucket],
                "ever": claims[bucket],
                "contents": json.dumps([f"{bucket:032x}"]),
            }
            for bucket in buckets
        ],
    )
    place = {"topic": topic, "datacenter": "east"}
    ids = {"first_ms": FIRST_HOUR_MS, "last_ms": now_ms(), "topic_id": "id"}
    connection.execute(insert(tables.topic_ids), {**place, **ids})
    attribution = {"log_partition": 0, "log_topic_id": "", "partition": 0, "topic_id": "id", "said_ms": 1}
    connection.execute(insert(tables.attributions), {**place, **attribution})
    connection.execute(
        insert(tables.hours),
        [{**place, "hour_ms": FIRST_HOUR_MS + hour * HOUR_MS, "touched_ms": 1} for hour in range(hours)],
    )
    _fill_loads(connection, topic, hours)


def _fill_loads(connection: Any, topic: str, hours: int) -> None:
    """One load an hour."""
    load = {"warehouse": WAREHOUSE, "topic": topic, "log_partition": 0}
    loads = [{**load, "load_sequence": hour} for hour in range(hours)]
    size, count = 6 * BATCH_BYTES, 6 * RECORDS_PER_BUCKET
    connection.execute(
        insert(load_tables.load_ranges),
        [
            {
                **each,
                "from_address": at * size,
                "to_address": (at + 1) * size,
                "committed_ms": at,
                "from_source": False,
            }
            for at, each in enumerate(loads)
        ],
    )
    connection.execute(
        insert(load_tables.load_rows),
        [
            {
                **each,
                "hour_ms": FIRST_HOUR_MS + at * HOUR_MS,
                "rows": count,
                "distinct_offsets": count,
                "dead_lettered": 0,
                "content": sum(range(at * 6, at * 6 + 6)),
            }
            for at, each in enumerate(loads)
        ],
    )


def _closing(number: int) -> ReceivedRecord:
    """The publisher's last report."""
    tally = HandoverTally(10**6, f"topic-{number:03}", FIRST_HOUR_MS, 0, True, ())
    told = ProducerReport(f"publisher-{number}", FIRST_HOUR_MS, 2, True, (tally,))
    return ReceivedRecord(told, "east", f"service-{number}", "host", now_ms())


def report_s(directory: Path, topics: int, days: int, kept_days: int) -> dict[str, float]:
    """CPU seconds of reports over the last month and the last day of a store with so many days, of which the
    verdicts on the last `kept_days` are kept.
    """
    hours = days * 24
    url = f"sqlite:///{directory}/audit.db"
    store = AuditStore(url)
    fill(store, topics, hours)
    reader = AuditStore(url, must_exist=True)
    found = {"store_mb": (directory / "audit.db").stat().st_size / 1e6}
    end_ms = FIRST_HOUR_MS + hours * HOUR_MS
    month, day = (end_ms - 30 * 24 * HOUR_MS, end_ms), (end_ms - 24 * HOUR_MS, end_ms)
    try:
        fresh, found["month_judged_anew_cpu_s"] = _report_cpu_s(reader, *month, times=1)
        assert len(fresh.verdicts) == topics * min(30 * 24, hours)
        keeper, began_s = Keeper(), time.process_time()
        for _ in range(topics * math.ceil(min(kept_days, days) * 24 / HOURS_A_TURN_MAX)):
            keeper.keep_some(store, now_ms())
        found["keeping_cpu_s"] = time.process_time() - began_s
        found["keeping_cpu_ms_per_hour"] = found["keeping_cpu_s"] * 1e3 / (topics * min(kept_days, days) * 24)
        kept_month, found["month_cpu_s"] = _report_cpu_s(reader, *month)
        assert kept_month.verdicts == fresh.verdicts
        found["month_ratio"] = found["month_judged_anew_cpu_s"] / found["month_cpu_s"]
        found["day_cpu_s"] = _report_cpu_s(reader, *day)[1]
        with store.writing() as connection:  # as if something of the last hour of each topic had just come
            connection.execute(delete(kept).where(kept.c.hour_ms >= end_ms - HOUR_MS))
        found["month_with_a_changing_hour_cpu_s"] = _report_cpu_s(reader, *month)[1]
    finally:
        reader.close()
        store.close()
    return found


def _report_cpu_s(store: AuditStore, from_ms: int, to_ms: int, times: int = 3) -> tuple[Report, float]:
    """Makes a report some times; returns the last, and the least CPU seconds that one took."""
    took_s = []
    for _ in range(times):
        began_s = time.process_time()
        made = report(store, from_ms=from_ms, to_ms=to_ms)
        took_s.append(time.process_time() - began_s)
        assert made.status is Status.COMPLETE, [v.findings for v in made.verdicts if v.findings][:3]
    return made, min(took_s)


def sealing_cpu_s_per_gb(directory: Path) -> float:
    """CPU seconds that a seal takes for each GB of files: it reads each once, and sums it up."""
    file = directory / "file"
    piece = random.Random(1).randbytes(SEALED_BYTES // 16)
    file.write_bytes(piece * 16)
    began_s = time.process_time()
    read_checksum(_OneFile(file), "/file", SEALED_BYTES)
    spent_s = time.process_time() - began_s
    file.unlink()
    return spent_s * 1e9 / SEALED_BYTES


class _OneFile(HdfsClient):
    """A file of this disk in the place of one in HDFS."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        with self._file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(-1 if length is None else length)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--kept-days", type=int, default=365, help="at least 30, which the report covers")
    chosen = parser.parse_args(arguments)
    figures: dict[str, float] = {
        "counting_cpu_s_per_million_1": counting_cpu_s(1),
        "counting_cpu_s_per_million_50": counting_cpu_s(50),
        "memory_mb_1000_partitions": memory_mb(),
    }
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        figures["sealing_cpu_s_per_gb"] = sealing_cpu_s_per_gb(Path(directory))
        figures |= report_s(Path(directory), chosen.topics, chosen.days, chosen.kept_days)
    for name, value in figures.items():
        print(f"{name:34}{value:12.2f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
