"""The record of a load: the addresses that it consumed, and the rows of each hour. Values only.

`audit-load.avsc` describes its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from headrace.audit.topic.avro_times import hour_to_avro, to_datetime, to_ms
from headrace.wire.content import from_bytes, to_bytes

LOAD_HOURS_PER_RECORD_MAX: Final = 20_000


NOT_BEGUN: Final = -1


class LoadedHour(NamedTuple):
    """What one load wrote of one analysis partition and hour of Kafka timestamps.

    `audit-load.avsc` describes each field.
    """

    hour_ms: int
    rows: int
    distinct_offsets: int
    dead_lettered: int = 0
    content: int | None = None


class LoadedPartition(NamedTuple):
    """The range [from_address, to_address) of an analysis partition that a load consumed, and its rows.

    `from_source`: they were read from the datacenter's own log, because the copy does not hold them.
    `begins_at`: from this load on, the addresses from here on are those of another log than before.
    """

    partition: int
    from_address: int
    to_address: int
    hours: tuple[LoadedHour, ...] = ()
    from_source: bool = False
    begins_at: int = NOT_BEGUN


class AcceptedGapRecord(NamedTuple):
    """A range of an analysis partition that an operator let the load skip."""

    partition: int
    from_address: int
    to_address: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The warehouse's report of one committed load of one topic.

    `warehouse`: the URL of its root; `load_sequence`: the manifest's number. `topic_id`: of the analysis
    cluster's topic, whose addresses these are; "" if it is not known. The ranges of a partition over all
    sequences since its log began must be disjoint, because the store adds their rows.
    """

    schema_file: ClassVar[str] = "audit-load.avsc"

    warehouse: str
    topic: str
    load_sequence: int
    committed_ms: int
    partitions: tuple[LoadedPartition, ...]
    accepted_gaps: tuple[AcceptedGapRecord, ...] = ()
    topic_id: str = ""

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
                            "content": to_bytes(hour.content),
                        }
                        for hour in partition.hours
                    ],
                    "from_source": partition.from_source,
                    "begins_at": partition.begins_at,
                }
                for partition in self.partitions
            ],
            "accepted_gaps": [gap._asdict() for gap in self.accepted_gaps],
            "topic_id": self.topic_id,
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
                            to_ms(hour["hour"]),
                            hour["rows"],
                            hour["distinct_offsets"],
                            hour["dead_lettered"],
                            from_bytes(hour.get("content")),
                        )
                        for hour in partition["hours"]
                    ),
                    partition.get("from_source", False),
                    partition.get("begins_at", NOT_BEGUN),
                )
                for partition in data["partitions"]
            ),
            accepted_gaps=tuple(AcceptedGapRecord(**gap) for gap in data["accepted_gaps"]),
            topic_id=data.get("topic_id", ""),
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
