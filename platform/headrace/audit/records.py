"""The monitoring events of `_audit` as Python values, and their Avro shapes. Owns names and conversions;
does no I/O.

Every record begins with the common `header`; the publisher fills it (`audit.publish`). Schemas:
`schemas/audit-*.avsc`. The producer tier's schema belongs to `events`; here it is only read.

A record may arrive twice, late, or in any order: each carries the key under which the store keeps it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from headrace.audit.tally import Span

AUDIT_TOPIC: Final = "_audit"
# In the analysis cluster `_audit` is made of mirror partitions, which take nothing from ordinary producers;
# what that cluster itself has to say (its auditor, the warehouse, the mirrors) goes to a topic of its own.
ANALYSIS_AUDIT_TOPIC: Final = "_audit_analysis"

DATACENTER_TIER: Final = "datacenter"
ANALYSIS_TIER: Final = "analysis"

POSITIONS_PER_RECORD_MAX: Final = 1_000
LOAD_HOURS_PER_RECORD_MAX: Final = 20_000


class AuditRecord(Protocol):
    """What `audit.publish` can publish: names its schema and gives itself as Avro data without the header."""

    schema_file: ClassVar[str]

    def to_avro(self) -> dict[str, Any]: ...

    def key(self) -> str:
        """The partitioning key: records that belong together stay in order."""
        ...


@dataclass(frozen=True, slots=True)
class RangeTally:
    """What one log range [from_address, to_address) holds. `partition` is the source's, `log_partition` the
    one counted.

    They differ only in tier `analysis`, where several datacenters share a topic.
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

    @property
    def record_count(self) -> int:
        return sum(span.record_count for span in self.spans)

    def key(self) -> str:
        return f"{self.tier}/{self.topic}/{self.log_partition}"

    def to_avro(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "datacenter": self.datacenter,
            "topic": self.topic,
            "partition": self.partition,
            "log_partition": self.log_partition,
            "from_address": self.from_address,
            "to_address": self.to_address,
            "bucket_ms": self.bucket_ms,
            "spans": [span._asdict() for span in self.spans],
        }

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> RangeTally:
        return cls(
            tier=data["tier"],
            datacenter=data["datacenter"],
            topic=data["topic"],
            partition=data["partition"],
            log_partition=data["log_partition"],
            from_address=data["from_address"],
            to_address=data["to_address"],
            bucket_ms=data["bucket_ms"],
            spans=tuple(Span(**span) for span in data["spans"]),
        )


class Position(NamedTuple):
    """How far one partition is counted, and where its log ended at that moment."""

    datacenter: str
    topic: str
    partition: int
    log_partition: int
    counted_to_address: int
    end_address: int


@dataclass(frozen=True, slots=True)
class Positions:
    """An auditor's heartbeat, published after all tallies it covers are acknowledged. A restart resumes
    from the last one.

    A large cluster's heartbeat is cut into `parts` records; they share `beat`.
    """

    schema_file: ClassVar[str] = "audit-positions.avsc"

    tier: str
    beat: int
    part: int
    parts: int
    positions: tuple[Position, ...]

    def key(self) -> str:
        return f"positions/{self.tier}"

    def to_avro(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "beat": self.beat,
            "part": self.part,
            "parts": self.parts,
            "positions": [position._asdict() for position in self.positions],
        }

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> Positions:
        return cls(
            tier=data["tier"],
            beat=data["beat"],
            part=data["part"],
            parts=data["parts"],
            positions=tuple(Position(**position) for position in data["positions"]),
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """Addresses [from, to) of a source partition that `tier` never saw and no longer can: retention ate
    them first.
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
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> Gap:
        return cls(**{name: data[name] for name in cls.__slots__})


class HandoverTally(NamedTuple):
    """One tally of a producer report (`audit-producer.avsc`).

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
    """What a publisher said it was handed; `events` publishes it.

    A tally of a higher `report_number` replaces the earlier one of the same (publisher, part).
    """

    publisher: str
    started_ms: int
    report_number: int
    reported_until_ms: int
    closed: bool
    tallies: tuple[HandoverTally, ...]

    def producer_ids(self) -> set[int]:
        """The producer ids it speaks of."""
        return {producer_id for tally in self.tallies for _, producer_id, *_ in tally.ranges}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> ProducerReport:
        names = ("partition", "producer_id", "producer_epoch", "first_sequence", "last_sequence")
        return cls(
            publisher=data["publisher"],
            started_ms=to_ms(data["started"]),
            report_number=data["report_number"],
            reported_until_ms=to_ms(data["reported_until"]),
            closed=data["state"] == "CLOSED",
            tallies=tuple(
                HandoverTally(
                    tally["part"],
                    tally["topic"],
                    to_ms(tally["bucket_start"]),
                    tally["handed_over_count"],
                    tally["final"],
                    tuple(tuple(each[name] for name in names) for each in tally["ranges"]),
                )
                for tally in data["tallies"]
            ),
        )


class LoadedHour(NamedTuple):
    """What one load wrote of one analysis partition and hour of Kafka timestamps. See `audit-load.avsc` for
    each field.
    """

    hour_ms: int
    rows: int
    distinct_offsets: int
    dead_lettered: int = 0


class LoadedPartition(NamedTuple):
    """The range [from_address, to_address) of one analysis partition that a load consumed, and its rows per
    hour.
    """

    partition: int
    from_address: int
    to_address: int
    hours: tuple[LoadedHour, ...] = ()


class AcceptedGap(NamedTuple):
    """A range the operator told the load to step over."""

    partition: int
    from_address: int
    to_address: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One committed load of one topic: the warehouse tier's word. Publish it after the commit; again after
    a crash is harmless.

    `warehouse` names the warehouse (its root URL), `load_sequence` the manifest's number. The ranges of a
    partition over all load sequences must be disjoint: the store adds their rows.
    """

    schema_file: ClassVar[str] = "audit-load.avsc"

    warehouse: str
    topic: str
    load_sequence: int
    committed_ms: int
    partitions: tuple[LoadedPartition, ...]
    accepted_gaps: tuple[AcceptedGap, ...] = field(default=())

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
                    "partition": each.partition,
                    "from_address": each.from_address,
                    "to_address": each.to_address,
                    "hours": [
                        {
                            "hour": to_datetime(hour.hour_ms),
                            "rows": hour.rows,
                            "distinct_offsets": hour.distinct_offsets,
                            "dead_lettered": hour.dead_lettered,
                        }
                        for hour in each.hours
                    ],
                }
                for each in self.partitions
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
                    each["partition"],
                    each["from_address"],
                    each["to_address"],
                    tuple(
                        LoadedHour(
                            to_ms(hour["hour"]), hour["rows"], hour["distinct_offsets"], hour["dead_lettered"]
                        )
                        for hour in each["hours"]
                    ),
                )
                for each in data["partitions"]
            ),
            accepted_gaps=tuple(AcceptedGap(**gap) for gap in data["accepted_gaps"]),
        )

    def split(self, hours_per_record_max: int = LOAD_HOURS_PER_RECORD_MAX) -> Sequence[LoadReport]:
        """Itself as several reports of whole partitions, each small enough for one Kafka message."""
        pieces: list[LoadReport] = []
        batch: list[LoadedPartition] = []
        hours = 0
        for each in self.partitions:
            weight = max(1, len(each.hours))
            if batch and hours + weight > hours_per_record_max:
                pieces.append(self._with(tuple(batch), ()))
                batch, hours = [], 0
            batch.append(each)
            hours += weight
        pieces.append(self._with(tuple(batch), self.accepted_gaps))
        return pieces

    def _with(self, partitions: tuple[LoadedPartition, ...], gaps: tuple[AcceptedGap, ...]) -> LoadReport:
        return LoadReport(self.warehouse, self.topic, self.load_sequence, self.committed_ms, partitions, gaps)


def to_datetime(time_ms: int) -> datetime:
    """The UTC datetime that fastavro writes as timestamp-millis."""
    seconds, ms = divmod(time_ms, 1_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1_000)


def to_ms(value: datetime | int) -> int:
    """Milliseconds since the epoch of what a reader gave for timestamp-millis (a datetime, or the bare
    number).
    """
    if isinstance(value, int):
        return value
    return int(value.replace(microsecond=0).timestamp()) * 1_000 + value.microsecond // 1_000
