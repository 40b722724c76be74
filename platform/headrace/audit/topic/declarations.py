"""What topics declare about their producers, as the audit knows it: the record, and what applies to an hour.

A topic with `headrace.producers=any` is counted from the log on: its producers need not report. A change of
the declaration applies to the hours that begin afterwards, and a topic that is deleted and created again
changes nothing for the hours before: no later declaration makes an earlier hour complete. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from headrace.audit.times import HOUR_MS
from headrace.coordination.declared import ANY, REPORTING, Change

FROM_PRODUCERS: Final = "producers"
FROM_LOG: Final = "log"
FROM_LOG_TEXT: Final = "counted from the log on"


@dataclass(frozen=True, slots=True)
class TopicDeclaration:
    """What a topic of the speaker's datacenter declares, or that it is `deleted`: then without `changes`.
    `audit-topic.avsc` describes the fields.
    """

    schema_file: ClassVar[str] = "audit-topic.avsc"

    topic: str
    topic_id: str
    changes: tuple[Change, ...]
    deleted: bool = False
    partitions: int = 0

    def key(self) -> str:
        return f"topic/{self.topic}"

    def to_avro(self) -> dict[str, Any]:
        changes = [change._asdict() for change in self.changes]
        named = {"topic": self.topic, "topic_id": self.topic_id}
        return {**named, "changes": changes, "deleted": self.deleted, "partitions": self.partitions}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> TopicDeclaration:
        changes = tuple(Change(change["producers"], change["from_ms"]) for change in data["changes"])
        told = (data.get("deleted", False), data.get("partitions", 0))
        return cls(data["topic"], data["topic_id"], changes, *told)


class Incarnation(NamedTuple):
    """A topic from its creation to its deletion: when it was first spoken of, and its declarations."""

    first_said_ms: int
    changes: tuple[Change, ...]


def counted_from(incarnations: Iterable[Incarnation], hour_ms: int) -> str:
    """Returns whether the hour is counted from the `producers` or from the `log` on.

    The first incarnation's apply from the beginning: events may be older than their topic. Those of a later
    one apply to the hours that begin after it was first seen.
    """
    declared = REPORTING
    for number, incarnation in enumerate(sorted(incarnations, key=lambda each: each.first_said_ms)):
        seen_ms = incarnation.first_said_ms
        floor_ms = None if number == 0 else seen_ms - seen_ms % HOUR_MS + HOUR_MS
        for change in incarnation.changes:
            starts = [start for start in (change.from_ms, floor_ms) if start is not None]
            if not starts or hour_ms >= max(starts):
                declared = change.producers
    return FROM_LOG if declared == ANY else FROM_PRODUCERS
