"""The canary's table in memory: committed loads of real Parquet files, and what the audit is told of them.

Builders only, no pytest fixtures. Each load writes a file for each of its services, in an hour of its own.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from fix_audit_world import received
from fix_memory_hdfs import MemoryHdfs
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.audit.topic.records import ANALYSIS_TIER, HeartbeatRecord, PartitionPosition
from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.decode import ADDRESS_FIELDS
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.report import load_report, verified_record
from headrace.warehouse.verify import VerifyResult, verify_topic

ROWS: Final = 12
ADDRESSES_PER_ROW: Final = 50
WAREHOUSE: Final = WarehouseOptions(
    "hdfs://namenode:8020", "http://namenode:9870", "x:1", "http://x", root="/data/_drills/1"
)
TOLD_MS: Final = 1_800_000_000_000
Events = list[tuple[str, str]]
"""(service, guid) of each row of a file."""


class CanaryHdfs(MemoryHdfs):
    """HDFS in memory that can be opened and closed."""

    def close(self) -> None:
        pass


@dataclass
class CanaryWorld:
    """A canary's table, and the end of the partition that it is loaded from."""

    hdfs: CanaryHdfs = field(default_factory=CanaryHdfs)
    end: int = 0

    @property
    def table(self) -> TopicTable:
        return TopicTable(CANARY_TOPIC, WAREHOUSE, self.hdfs, clock_ms=lambda: TOLD_MS)

    def load(self, services: Mapping[str, int]) -> None:
        """Commits a load with a file of `ROWS` events for each service, in its hour (start in ms)."""
        self.load_events(
            {
                hour_ms: [(service, f"{service}-{number}") for number in range(ROWS)]
                for service, hour_ms in services.items()
            }
        )

    def load_events(self, hours: Mapping[int, Events]) -> None:
        """Commits a load with a file of these events for each hour."""
        table, start = self.table, self.end
        sequence = table.log.state().next_sequence
        change_id = f"load-{sequence}"
        files, counts = [], []
        for number, (hour_ms, events) in enumerate(sorted(hours.items())):
            data = parquet(events, hour_ms, self.end)
            self.end += len(events) * ADDRESSES_PER_ROW
            staged = f"{table.paths.staged(change_id)}/{number}"
            table.hdfs.write(staged, data)
            path = table.paths.data_file(hour_ms, sequence, number)
            checksum = checksum_of(data)
            files.append(DataFile(path, staged, hour_ms, len(events), len(data), 7, checksum=checksum))
            counts.append(HourCount(hour_ms, len(events), len(events)))
        ranges = (LoadedRange(0, start, self.end, tuple(counts)),)
        manifest = Manifest(
            sequence, "load", CANARY_TOPIC, change_id, TOLD_MS, WAREHOUSE.name, ranges, files=tuple(files)
        )
        table.log.complete(table.log.commit(change_id, lambda _now: manifest), None)

    def verify(self) -> VerifyResult:
        return verify_topic(self.table)

    def told(self, *found: VerifyResult) -> AuditStore:
        """Returns a store that knows of all loads and of these verifications. The caller closes it."""
        position = PartitionPosition("east", CANARY_TOPIC, 0, 0, 0, 0)
        records = [HeartbeatRecord(ANALYSIS_TIER, TOLD_MS, 0, 1, (position,))]
        store = AuditStore("sqlite://")
        loads = map(load_report, self.table.log.manifests())
        verified = [verified_record(each, WAREHOUSE) for each in found]
        told: Iterable[object] = (*records, *loads, *verified)
        store.fold([received(each, time_ms=TOLD_MS, datacenter="analysis") for each in told])
        return store


def parquet(events: Events, hour_ms: int, start: int) -> bytes:
    """A file of these events, whose addresses begin at `start`."""
    headers = pa.array([{"time": hour_ms, "service": service, "guid": guid} for service, guid in events])
    count = len(events)
    columns = [
        headers,
        pa.array(range(count), pa.int32()),
        pa.array([0] * count, pa.int32()),
        pa.array([start + (row + 1) * ADDRESSES_PER_ROW - 1 for row in range(count)], pa.int64()),
        pa.array([(hour_ms + row) * 1_000 for row in range(count)], pa.timestamp("us", "UTC")),
        pa.array([7] * count, pa.int32()),
    ]
    fields = [pa.field("header", headers.type), pa.field("number", pa.int32()), *ADDRESS_FIELDS]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), out, compression="zstd")
    return out.getvalue()


def hours_before(hour_ms: int, count: int) -> int:
    return hour_ms - count * HOUR_MS
