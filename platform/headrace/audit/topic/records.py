"""The audit records of `_audit` as Python values, and their Avro form. Owns names and conversions; no I/O.

Schemas: `schemas/audit-*.avsc`. Every record begins with a common `header`, which the publisher adds
(`audit.topic.publish`). The producer report is written by `events`; here it is only read.

A record may arrive twice, late, or in any order: each carries the key under which the store keeps it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

from headrace.audit.batches.tally import Span
from headrace.audit.topic.acceptances import AcceptanceRecord
from headrace.audit.topic.avro_times import to_ms
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.record_values import values_for, values_of
from headrace.audit.topic.recounts import RecountRecord
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.tested import TestedRecord
from headrace.wire.content import from_bytes, to_bytes

AUDIT_TOPIC: Final = "_audit"
# In the analysis cluster `_audit` consists of mirror partitions, which refuse ordinary producers. That
# cluster's own reports (its auditor's, the warehouse's, the mirrors') go to this topic.
ANALYSIS_AUDIT_TOPIC: Final = "_audit_analysis"

DATACENTER_TIER: Final = "datacenter"
ANALYSIS_TIER: Final = "analysis"
POSITIONS_PER_RECORD_MAX: Final = 1_000


class AuditRecord(Protocol):
    """A record that `audit.topic.publish` can publish."""

    schema_file: ClassVar[str]

    def to_avro(self) -> dict[str, Any]:
        """Returns the Avro data without the header."""

    def key(self) -> str:
        """Returns the partitioning key: records of one key stay in order."""


class _FlatRecord:
    """A record whose Avro form has its fields as they are."""

    __slots__ = ()

    def to_avro(self) -> dict[str, Any]:
        return values_of(self)

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> Self:
        return cls(**values_for(cls, data))


@dataclass(frozen=True, slots=True)
class RangeTally:
    """The tally of one log range [from_address, to_address).

    `partition` is the source's, `log_partition` the one counted. They differ only in tier `analysis`, where
    several datacenters share a topic. `topic_id`: of the source's topic; "" if it is not known.
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
    topic_id: str = ""

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.log_partition}"

    def to_avro(self) -> dict[str, Any]:
        spans = [{**span._asdict(), "content": to_bytes(span.content)} for span in self.spans]
        return {**values_of(self), "spans": spans}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> RangeTally:
        spans = tuple(Span(**{**span, "content": from_bytes(span.get("content"))}) for span in data["spans"])
        return cls(**{**values_for(cls, data), "spans": spans})


class PartitionPosition(NamedTuple):
    """How far one partition is counted, and where its log ended at that moment.

    `audit-positions.avsc` describes each field; `audit.counting.standing` checks `last_…` against the log.
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
    source_topic_id: str = ""
    content_from: int = -1
    content: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """A part of an auditor's heartbeat, published once all tallies it covers are acknowledged.

    A large cluster's heartbeat is split into `parts` records with the same `beat`.
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
        positions = [{**each._asdict(), "content": to_bytes(each.content)} for each in self.positions]
        return {**values_of(self), "positions": positions}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> HeartbeatRecord:
        told = ({**each, "content": from_bytes(each.get("content"))} for each in data["positions"])
        positions = tuple(PartitionPosition(**each) for each in told)
        return cls(**{**values_for(cls, data), "positions": positions})


@dataclass(frozen=True, slots=True)
class GapRecord(_FlatRecord):
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
    topic_id: str = ""

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class CorruptRecord(_FlatRecord):
    """A damaged batch, or a stretch in which no batch can be found, at [from, to) of a source partition.

    `audit-corrupt.avsc` describes each field; `audit.batches.damage` owns what can be believed of a damaged
    batch.
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
    topic_id: str = ""

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.log_partition}"


class HandoverTally(NamedTuple):
    """One tally of a producer report.

    `ranges`: (partition, producer id, epoch, first sequence, last sequence). `contents`: what the batches of
    each range hold (`wire.content`), None where the publisher does not know; empty if it never does.
    """

    part: int
    topic: str
    bucket_start_ms: int
    handed_over_count: int
    final: bool
    ranges: tuple[tuple[int, int, int, int, int], ...]
    contents: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """A publisher's report of the events that it accepted; `events` publishes it.

    A tally with a higher `report_number` replaces the earlier one of the same (publisher, part). Tallies of
    `counts_only` publishers have no ranges, and are compared with the log by count. `arrived_number`: that of
    its last report that arrived; 0 if none did, or if the publisher does not say. `arrived_made_ms`: when
    that one was made, by the clock of its header; None if that is not known.
    """

    publisher: str
    started_ms: int
    report_number: int
    closed: bool
    tallies: tuple[HandoverTally, ...]
    counts_only: bool = False
    arrived_number: int = 0
    arrived_made_ms: int | None = None

    def producer_ids(self) -> set[int]:
        """Returns the producer ids in its ranges."""
        return {producer_id for tally in self.tallies for _, producer_id, *_ in tally.ranges}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> ProducerReport:
        made = data.get("arrived_made")
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
                    tuple(from_bytes(range_.get("content")) for range_ in tally["ranges"]),
                )
                for tally in data["tallies"]
            ),
            counts_only=data.get("counts_only", False),
            arrived_number=data.get("arrived_number", 0),
            arrived_made_ms=None if made is None else to_ms(made),
        )


_Counted = RangeTally | HeartbeatRecord | GapRecord | CorruptRecord | RecountRecord | LoadReport
_Repaired = ResentRecord | AcceptanceRecord
AnyAuditRecord = _Counted | ProducerReport | TopicDeclaration | _Repaired | TestedRecord


class ReceivedRecord(NamedTuple):
    """An audit record, with its reporter and time from the header; and the log (topic, partition) of it."""

    record: AnyAuditRecord
    datacenter: str
    service: str
    server: str
    time_ms: int
    log: tuple[str, int] | None = None
