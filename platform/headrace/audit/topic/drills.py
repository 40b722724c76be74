"""What a drill planted, and how it was found: a record of `_audit_analysis`, as values.

A drill plants failures into the *canary topic*, and nowhere else. That topic is known by its name alone, so
no setting can hide the hours of another one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

CANARY_TOPIC: Final = "headrace-drill"
"""Its hours are in no report but its own, and no seal waits for them."""
PLANTS_PER_RECORD_MAX: Final = 200
STATUSES_MAX: Final = 5
NO_NUMBER: Final = -1
NOT_NAMED_MS: Final = -1
NOT_COPIED_MS: Final = -1


class Outcome(enum.StrEnum):
    """What a report makes of a plant."""

    NAMED = "named"
    MISSED = "missed"  # called complete: the worst
    WRONG_PLACE = "wrong place"  # something of this kind is named, at another place
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DrillPlant:
    """One plant: the truth, and what came of it; `audit-drill.avsc` describes the fields.

    Without `statuses` and without a `note` nothing is wrong, and nothing may be named. With a `path` it is
    about that file of the canary's table.
    """

    kind: str
    datacenter: str
    service: str
    hour_ms: int
    hop: str
    statuses: tuple[str, ...] = ()
    note: str = ""
    record_count: int = 0
    producer_id: int = NO_NUMBER
    producer_epoch: int = NO_NUMBER
    first_sequence: int = NO_NUMBER
    last_sequence: int = NO_NUMBER
    outcome: str = Outcome.UNKNOWN
    named_after_ms: int = NOT_NAMED_MS
    path: str = ""
    sent_count: int = 0
    copied_after_ms: int = NOT_COPIED_MS

    @property
    def is_control(self) -> bool:
        """Whether nothing was harmed: the audit must have nothing to say."""
        return not self.statuses and not self.note

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`, and for Avro."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "statuses": list(self.statuses), "outcome": str(self.outcome)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DrillPlant:
        values = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{**values, "statuses": tuple(data["statuses"])})


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """A drill that has ended; `audit-drill.avsc` describes the fields."""

    schema_file: ClassVar[str] = "audit-drill.avsc"

    run: str
    said_by: str
    began_ms: int
    false_count: int
    plants: tuple[DrillPlant, ...]

    def key(self) -> str:
        return f"drill/{self.run}"

    def to_avro(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "plants": [each.to_json() for each in self.plants]}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> DrillRecord:
        values = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**values, "plants": tuple(map(DrillPlant.from_json, data["plants"]))})
