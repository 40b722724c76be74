"""The record that lost events were brought again under new numbers. Values only; `audit.repair.resending`
brings them.

A log accepts no number twice and none out of order, so events that are brought later come from another
producer. Their publisher's claims move to the new numbers: the audit then looks for these, and names a
duplicate if the old ones turn up after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from headrace.audit.topic.avro_times import to_datetime, to_ms

NO_NUMBER: Final = -1


@dataclass(frozen=True, slots=True)
class ResentRecord:
    """`audit-resent.avsc` describes the fields. The old numbers are -1 for events that never had any."""

    schema_file: ClassVar[str] = "audit-resent.avsc"

    datacenter: str
    topic: str
    bucket_start_ms: int
    publisher: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    old_producer_id: int
    old_producer_epoch: int
    old_first_sequence: int
    said_by: str

    @property
    def record_count(self) -> int:
        return self.last_sequence - self.first_sequence + 1

    @property
    def had_numbers(self) -> bool:
        return self.old_producer_id != NO_NUMBER

    def key(self) -> str:
        return f"resent/{self.topic}/{self.producer_id}"

    def to_avro(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        start_ms = values.pop("bucket_start_ms")
        return {**values, "bucket_start": to_datetime(start_ms)}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> ResentRecord:
        values = {field.name: data[field.name] for field in fields(cls) if field.name != "bucket_start_ms"}
        return cls(bucket_start_ms=to_ms(data["bucket_start"]), **values)
