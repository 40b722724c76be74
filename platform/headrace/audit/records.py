"""The audit records of `_audit` as Python values, and their Avro form. Owns names and conversions; no I/O.

Schemas: `schemas/audit-*.avsc`. Every record begins with a common `header`, which the publisher adds
(`audit.publish`). The producer report is written by `events`; here it is only read.

A record may arrive twice, late, or in any order: each carries the key under which the store keeps it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from headrace.audit.avro_times import hour_to_avro, to_datetime, to_ms
from headrace.audit.declarations import TopicDeclaration
from headrace.audit.recounts import RecountRecord
from headrace.audit.tally import Span

AUDIT_TOPIC: Final = "_audit"
# In the analysis cluster `_audit` consists of mirror partitions, which refuse ordinary producers. That
# cluster's own reports (its auditor's, the warehouse's, the mirrors') go to this topic.
ANALYSIS_AUDIT_TOPIC: Final = "_audit_analysis"

DATACENTER_TIER: Final = "datacenter"
ANALYSIS_TIER: Final = "analysis"

POSITIONS_PER_RECORD_MAX: Final = 1_000
LOAD_HOURS_PER_RECORD_MAX: Final = 20_000


class AuditRecord(Protocol):
    """A record that `audit.publish` can publish."""

    schema_file: ClassVar[str]

    def to_avro(self) -> dict[str, Any]:
        """Returns the Avro data without the header."""

    def key(self) -> str:
        """Returns the partitioning key: records of one key stay in order."""


@dataclass(frozen=True, slots=True)
class RangeTally:
    """The tally of one log range [from_address, to_address).

    `partition` is the source's, `log_partition` the one counted. They differ only in tier `analysis`, where
    several datacenters share a topic.
    """

    schema_file: ClassVar[str] = "audit-tally.avsc"

    tier: str
    datacenter: str
    topic: str
    partition: int
    log_partition: int
    from_address: int
    to_address: int
    bucket_ms: int
    spans: tuple[Span, ...]

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.log_partition}"

    def to_avro(self) -> dict[str, Any]:
        return {**_values_of(self), "spans": [span._asdict() for span in self.spans]}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> RangeTally:
        spans = tuple(Span(**span) for span in data["spans"])
        return cls(**{**_values_for(cls, data), "spans": spans})


class PartitionPosition(NamedTuple):
    """How far one partition is counted, and where its log ended at that moment.

    `audit-positions.avsc` describes each field; `audit.standing` checks `last_…` against the log.
    """

    datacenter: str
    topic: str
    partition: int
    log_partition: int
    counted_to_address: int
    end_address: int
    topic_id: str = ""
    last_address: int = -1
    last_crc: int = -1
    last_epoch: int = -1


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """A part of an auditor's heartbeat, published once all tallies it covers are acknowledged.

    A restarted auditor resumes from its last heartbeat. A large cluster's heartbeat is split into `parts`
    records with the same `beat`.
    """

    schema_file: ClassVar[str] = "audit-positions.avsc"

    tier: str
    beat: int
    part: int
    parts: int
    positions: tuple[PartitionPosition, ...]

    def key(self) -> str:
        return f"positions/{self.tier}"

    def to_avro(self) -> dict[str, Any]:
        return {**_values_of(self), "positions": [position._asdict() for position in self.positions]}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> HeartbeatRecord:
        positions = tuple(PartitionPosition(**position) for position in data["positions"])
        return cls(**{**_values_for(cls, data), "positions": positions})


@dataclass(frozen=True, slots=True)
class GapRecord:
    """Addresses [from, to) of a source partition that `tier` never saw and no longer can.

    Retention deleted them first, for example. `reason` is the cause in words.
    """

    schema_file: ClassVar[str] = "audit-gap.avsc"

    tier: str
    datacenter: str
    topic: str
    partition: int
    from_address: int
    to_address: int
    reason: str
    accepted: bool = False

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.partition}"

    def to_avro(self) -> dict[str, Any]:
        return _values_of(self)

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> GapRecord:
        return cls(**_values_for(cls, data))


@dataclass(frozen=True, slots=True)
class CorruptRecord:
    """A damaged batch, or a stretch in which no batch can be found, at [from, to) of a source partition.

    `audit-corrupt.avsc` describes each field; `audit.damage` owns what can be believed of a damaged batch.
    """

    schema_file: ClassVar[str] = "audit-corrupt.avsc"

    tier: str
    datacenter: str
    topic: str
    partition: int
    log_partition: int
    from_address: int
    to_address: int
    cause: str
    record_count: int | None
    first_ms: int | None
    last_ms: int | None
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    in_tally: bool

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.log_partition}"

    def to_avro(self) -> dict[str, Any]:
        return _values_of(self)

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> CorruptRecord:
        return cls(**_values_for(cls, data))


class HandoverTally(NamedTuple):
    """One tally of a producer report.

    `ranges`: (partition, producer id, epoch, first sequence, last sequence).
    """

    part: int
    topic: str
    bucket_start_ms: int
    handed_over_count: int
    final: bool
    ranges: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """A publisher's report of the events that it accepted; `events` publishes it.

    A tally with a higher `report_number` replaces the earlier one of the same (publisher, part). Tallies of
    `counts_only` publishers have no ranges, and are compared with the log by count.
    """

    publisher: str
    started_ms: int
    report_number: int
    closed: bool
    tallies: tuple[HandoverTally, ...]
    counts_only: bool = False

    def producer_ids(self) -> set[int]:
        """Returns the producer ids in its ranges."""
        return {producer_id for tally in self.tallies for _, producer_id, *_ in tally.ranges}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> ProducerReport:
        names = ("partition", "producer_id", "producer_epoch", "first_sequence", "last_sequence")
        return cls(
            publisher=data["publisher"],
            started_ms=to_ms(data["started"]),
            report_number=data["report_number"],
            closed=data["state"] == "CLOSED",
            tallies=tuple(
                HandoverTally(
                    tally["part"],
                    tally["topic"],
                    to_ms(tally["bucket_start"]),
                    tally["handed_over_count"],
                    tally["final"],
                    tuple(tuple(range_[name] for name in names) for range_ in tally["ranges"]),
                )
                for tally in data["tallies"]
            ),
            counts_only=data.get("counts_only", False),
        )


class LoadedHour(NamedTuple):
    """What one load wrote of one analysis partition and hour of Kafka timestamps.

    `audit-load.avsc` describes each field.
    """

    hour_ms: int
    rows: int
    distinct_offsets: int
    dead_lettered: int = 0


class LoadedPartition(NamedTuple):
    """The range [from_address, to_address) of an analysis partition that a load consumed, and its rows."""

    partition: int
    from_address: int
    to_address: int
    hours: tuple[LoadedHour, ...] = ()


class AcceptedGapRecord(NamedTuple):
    """A range of an analysis partition that an operator let the load skip."""

    partition: int
    from_address: int
    to_address: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The warehouse's report of one committed load of one topic.

    Publish it after the commit; publishing it again after a crash is harmless. `warehouse` is the URL of the
    warehouse's root, `load_sequence` the manifest's number. The ranges of a partition over all load sequences
    must be disjoint, because the store adds their rows.
    """

    schema_file: ClassVar[str] = "audit-load.avsc"

    warehouse: str
    topic: str
    load_sequence: int
    committed_ms: int
    partitions: tuple[LoadedPartition, ...]
    accepted_gaps: tuple[AcceptedGapRecord, ...] = ()

    def key(self) -> str:
        return f"warehouse/{self.topic}"

    def to_avro(self) -> dict[str, Any]:
        return {
            "warehouse": self.warehouse,
            "topic": self.topic,
            "load_sequence": self.load_sequence,
            "committed": to_datetime(self.committed_ms),
            "partitions": [
                {
                    "partition": partition.partition,
                    "from_address": partition.from_address,
                    "to_address": partition.to_address,
                    "hours": [
                        {
                            "hour": hour_to_avro(hour.hour_ms),
                            "rows": hour.rows,
                            "distinct_offsets": hour.distinct_offsets,
                            "dead_lettered": hour.dead_lettered,
                        }
                        for hour in partition.hours
                    ],
                }
                for partition in self.partitions
            ],
            "accepted_gaps": [gap._asdict() for gap in self.accepted_gaps],
        }

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> LoadReport:
        return cls(
            warehouse=data["warehouse"],
            topic=data["topic"],
            load_sequence=data["load_sequence"],
            committed_ms=to_ms(data["committed"]),
            partitions=tuple(
                LoadedPartition(
                    partition["partition"],
                    partition["from_address"],
                    partition["to_address"],
                    tuple(
                        LoadedHour(
                            to_ms(hour["hour"]), hour["rows"], hour["distinct_offsets"], hour["dead_lettered"]
                        )
                        for hour in partition["hours"]
                    ),
                )
                for partition in data["partitions"]
            ),
            accepted_gaps=tuple(AcceptedGapRecord(**gap) for gap in data["accepted_gaps"]),
        )

    def split(self, hours_per_record_max: int = LOAD_HOURS_PER_RECORD_MAX) -> Sequence[LoadReport]:
        """Splits the report, between partitions, into reports that each fit into one Kafka message."""
        pieces: list[LoadReport] = []
        batch: list[LoadedPartition] = []
        hours = 0
        for partition in self.partitions:
            weight = max(1, len(partition.hours))
            if batch and hours + weight > hours_per_record_max:
                pieces.append(replace(self, partitions=tuple(batch), accepted_gaps=()))
                batch, hours = [], 0
            batch.append(partition)
            hours += weight
        pieces.append(replace(self, partitions=tuple(batch)))
        return pieces


_Counted = RangeTally | HeartbeatRecord | GapRecord | CorruptRecord | RecountRecord | LoadReport
AnyAuditRecord = _Counted | ProducerReport | TopicDeclaration


class ReceivedRecord(NamedTuple):
    """An audit record, with its reporter and time from the header."""

    record: AnyAuditRecord
    datacenter: str
    service: str
    server: str
    time_ms: int


def _values_of(record: Any) -> dict[str, Any]:
    """Returns a record's fields by name, nested values as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _values_for(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values in `data` for the fields of `kind`, without the header."""
    return {field.name: data[field.name] for field in fields(kind)}
