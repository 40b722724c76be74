"""A synthetic datacenter for audit tests: publishers that report, logs of real batches, tallies cut anywhere.

Builders only, no pytest fixtures. The clock stands at `NOW_MS`, long after everything was reported.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from headrace.audit.batches.tally import RunningTally, Span
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HandoverTally,
    HeartbeatRecord,
    PartitionPosition,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.wire.batch import ATTRIBUTES_AT, CONTROL_BIT, CRC_AT, hop, readdress
from headrace.wire.content import CONTENT_SPAN, content_of
from headrace.wire.primitives import Buffer
from headrace.wire.records import Record, encode_batch

TOPIC: Final = "page-view"
DC: Final = "west"
BUCKET_MS: Final = 600_000
HOUR_A: Final = 1_431_860_400_000  # 2015-05-17 11:00
REPORTED_MS: Final = 1_700_000_000_000
BEAT_MS: Final = REPORTED_MS + HOUR_MS
NOW_MS: Final = REPORTED_MS + 24 * HOUR_MS
IDENTITY_AT: Final = slice(43, 57)  # producer id, epoch, base sequence
WAREHOUSE: Final = "hdfs://namenode:8020/data"


def tally(buffer: Buffer, trusted: Callable[[int], bool] | None = None) -> tuple[Span, ...]:
    """The spans of every complete batch in `buffer`."""
    running = RunningTally(BUCKET_MS, trusted)
    running.feed(buffer)
    return running.spans


def concatenate(tallies: Iterable[Iterable[Span]]) -> tuple[Span, ...]:
    """The tally of the union of consecutive ranges, given theirs in log order."""
    whole = RunningTally(BUCKET_MS)
    for spans in tallies:
        whole.add_spans(spans)
    return whole.spans


@dataclass(frozen=True)
class Batch:
    """One batch of one publisher: `count` records from `first` on, all within one bucket."""

    partition: int
    producer_id: int
    epoch: int
    first: int
    count: int
    bucket_ms: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def encode(self) -> bytes:
        records = [
            Record(0, self.bucket_ms + index, None, b"event %d" % index) for index in range(self.count)
        ]
        return encode_batch(
            records, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.first
        )


@dataclass
class PartitionBytes:
    """A partition's log in memory: every batch readdressed as a broker does."""

    data: bytearray = field(default_factory=bytearray)
    cuts: list[int] = field(default_factory=lambda: [0])

    def append(self, encoded: bytes) -> None:
        batch = bytearray(encoded)
        readdress(batch, 0, len(self.data), leader_epoch=0)
        self.data += batch
        self.cuts.append(len(self.data))

    @property
    def end(self) -> int:
        return len(self.data)

    def tally(
        self, tier: str, partition: int, low: int, high: int, *, log_partition: int | None = None
    ) -> RangeTally:
        """The tally of the batches from cut `low` to cut `high` (indexes into `cuts`)."""
        start, end = self.cuts[low], self.cuts[high]
        return RangeTally(
            tier=tier,
            datacenter=DC,
            topic=TOPIC,
            partition=partition,
            log_partition=partition if log_partition is None else log_partition,
            from_address=start,
            to_address=end,
            bucket_ms=BUCKET_MS,
            spans=tally(memoryview(self.data)[start:end]),
        )

    def hours(self) -> list[LoadedHour]:
        """What a correct load of the whole log writes."""
        rows: dict[int, int] = {}
        contents: dict[int, int] = {}
        for at, header in hop(self.data):
            hour_ms = header.base_timestamp_ms - header.base_timestamp_ms % HOUR_MS
            rows[hour_ms] = rows.get(hour_ms, 0) + header.record_count
            contents[hour_ms] = (contents.get(hour_ms, 0) + content_of(self.data, at)) % CONTENT_SPAN
        return [
            LoadedHour(hour_ms, count, count, 0, contents[hour_ms]) for hour_ms, count in sorted(rows.items())
        ]


def received(
    record: object, *, time_ms: int = REPORTED_MS, datacenter: str = DC, service: str = "frontend-2"
) -> ReceivedRecord:
    """A record with its header."""
    return ReceivedRecord(record, datacenter, service, "host-1", time_ms)  # type: ignore[arg-type]


def report_of(
    publisher: str,
    batches: Iterable[Batch],
    *,
    number: int = 1,
    closed: bool = True,
    extra: int = 0,
) -> ProducerReport:
    """A publisher's report of these batches; `extra` events of the first bucket have no sequence number."""
    by_bucket: dict[int, list[Batch]] = {}
    for batch in batches:
        by_bucket.setdefault(batch.bucket_ms, []).append(batch)
    tallies = []
    for part, (bucket_ms, members) in enumerate(sorted(by_bucket.items())):
        count = sum(batch.count for batch in members) + (extra if part == 0 else 0)
        ranges = tuple((b.partition, b.producer_id, b.epoch, b.first, b.last) for b in members)
        contents = tuple(content_of(batch.encode()) for batch in members)
        tallies.append(HandoverTally(part, TOPIC, bucket_ms, count, closed, ranges, contents))
    return ProducerReport(publisher, REPORTED_MS - HOUR_MS, number, closed, tuple(tallies))


def heartbeat(tier: str, logs: dict[int, PartitionBytes]) -> HeartbeatRecord:
    """The heartbeat of an auditor that has counted everything."""
    positions = tuple(
        PartitionPosition(DC, TOPIC, partition, partition, log.end, log.end)
        for partition, log in logs.items()
    )
    return HeartbeatRecord(tier, 1, 0, 1, positions)


def load_of(logs: dict[int, PartitionBytes], sequence: int = 1) -> LoadReport:
    """The report of a correct load of everything."""
    return LoadReport(
        WAREHOUSE,
        TOPIC,
        sequence,
        REPORTED_MS,
        tuple(
            LoadedPartition(partition, 0, log.end, tuple(log.hours()))
            for partition, log in logs.items()
            if log.end
        ),
    )


def counted(tier: str, logs: dict[int, PartitionBytes]) -> list[RangeTally]:
    """One tally of each whole log."""
    return [log.tally(tier, partition, 0, len(log.cuts) - 1) for partition, log in logs.items()]


def damaged_bytes(batch: bytes, twin: bytes | None = None) -> bytes:
    """The batch without events, or with the numbers of another one; of the same size either way."""
    copy = bytearray(batch)
    if twin is None:
        struct.pack_into(">h", copy, ATTRIBUTES_AT, CONTROL_BIT)
    else:
        copy[IDENTITY_AT] = twin[IDENTITY_AT]
    return bytes(copy)


def resealed(batch: bytes) -> bytes:
    """The batch with another byte in its payload, under a right checksum."""
    changed = bytearray(batch)
    changed[-3] ^= 4
    struct.pack_into(">I", changed, CRC_AT, crc32c(memoryview(changed)[ATTRIBUTES_AT:]))
    return bytes(changed)


def damaged(log: PartitionBytes, victim: int, twin: int | None = None) -> PartitionBytes:
    """A copy of `log` in which batch number `victim` holds no events, or those of batch number `twin` again.

    All addresses stay.
    """
    copy = PartitionBytes(bytearray(log.data), list(log.cuts))

    def batch(number: int) -> bytes:
        return bytes(log.data[log.cuts[number] : log.cuts[number + 1]])

    other = None if twin is None else batch(twin)
    copy.data[log.cuts[victim] : log.cuts[victim + 1]] = damaged_bytes(batch(victim), other)
    return copy


def everything_reported(
    batches: list[Batch],
    logs: dict[int, PartitionBytes],
    copies: dict[int, PartitionBytes] | None = None,
    load: LoadReport | None = None,
) -> list[ReceivedRecord]:
    """What all tiers report if the publishers of `batches` closed normally and `logs` hold what arrived."""
    copies = logs if copies is None else copies
    publishers = sorted({batch.producer_id for batch in batches})
    records: list[object] = [
        report_of(f"publisher-{pid}", [batch for batch in batches if batch.producer_id == pid])
        for pid in publishers
    ]
    records += [*counted(DATACENTER_TIER, logs), heartbeat(DATACENTER_TIER, logs)]
    records += [*counted(ANALYSIS_TIER, copies), heartbeat(ANALYSIS_TIER, copies)]
    records.append(load_of(copies) if load is None else load)
    return [
        received(record, time_ms=BEAT_MS if isinstance(record, HeartbeatRecord) else REPORTED_MS)
        for record in records
    ]
