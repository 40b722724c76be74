"""The record that a table has events more than once, by their guids; and what the audit makes of it.

The warehouse sees guids (`warehouse.doubles`); the audit sees numbers. Events in the log that no report
mentions are *duplicated* if their guids are those of other events of the hour: a client sent them again as
another producer, without an id, or under its next numbers. Once a dedupe has removed them from the table,
each is there once. Values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from headrace.audit.evidence import CountedSpan, Evidence
from headrace.audit.evidence_of_tables import HeldTwice
from headrace.audit.findings import Finding, Status

RUNS_PER_RECORD_MAX: Final = 5_000


class DoubledRun(NamedTuple):
    """Rows at adjacent offsets of an analysis partition whose guids other rows have, too.

    `is_extra`: a dedupe removes them; of the others one row each stays.
    """

    log_partition: int
    first_offset: int
    last_offset: int
    is_extra: bool


@dataclass(frozen=True, slots=True)
class DoubledRecord:
    """`audit-doubled.avsc` describes the fields."""

    schema_file: ClassVar[str] = "audit-doubled.avsc"

    warehouse: str
    topic: str
    hour_ms: int
    removed: int
    runs: tuple[DoubledRun, ...]

    def key(self) -> str:
        return f"doubled/{self.topic}"

    def to_avro(self) -> dict[str, Any]:
        return {
            "warehouse": self.warehouse,
            "topic": self.topic,
            "hour_ms": self.hour_ms,
            "removed": self.removed,
            "runs": [run._asdict() for run in self.runs],
        }

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> DoubledRecord:
        runs = tuple(DoubledRun(**run) for run in data["runs"])
        return cls(data["warehouse"], data["topic"], data["hour_ms"], data["removed"], runs)


def split_doubled(finding: Finding, spans: list[CountedSpan], evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding about unreported events as two: those with guids of others, and the rest.

    What a dedupe has removed from the table is no finding any more. Rows of other producers between the same
    addresses may be those others, so as many are not counted.
    """
    partition, count = finding.partition, finding.record_count
    if partition is None or count is None or not evidence.doubled:
        yield finding
        return
    low = min(each.span.first_address for each in spans)
    high = max(each.span.end_address for each in spans)
    runs = list(_within(evidence, partition, low, high))
    others = sum(
        each.span.record_count
        for each in evidence.datacenter_spans
        if each.partition == partition
        and each not in spans
        and each.span.first_address < high
        and low < each.span.end_address
    )
    doubled = min(count, max(0, sum(run.last_offset - run.first_offset + 1 for run in runs) - others))
    if not doubled:
        yield finding
        return
    if not all(run.is_removed for run in runs):
        text = finding.text.replace(" without any producer report", "").replace(
            " that its reports do not mention", ""
        )
        text = (
            f"{text}: {doubled} of them have guids of events that are there, too: sent again as other events"
        )
        yield replace(finding, status=Status.DUPLICATED, record_count=doubled, text=text)
    if count > doubled:
        yield replace(finding, record_count=count - doubled)


def removed_count(evidence: Evidence) -> int:
    """Returns how many rows of the hour's doubles a dedupe has removed from the table."""
    places = {place.log_partition for place in evidence.partitions.values()}
    return sum(
        run.last_offset - run.first_offset + 1
        for run in evidence.doubled
        if run.is_removed and run.is_extra and run.log_partition in places
    )


def _within(evidence: Evidence, partition: int, low: int, high: int) -> Iterable[HeldTwice]:
    """Yields the doubled rows at addresses [low, high) of a source partition.

    Where no producer needs to report, nothing tells the first from the second: then only the extra ones.
    """
    log_partition = evidence.partition(partition).log_partition
    for run in evidence.doubled:
        first, last = max(run.first_offset, low), min(run.last_offset, high - 1)
        is_meant = run.is_extra or not evidence.is_counted_from_log
        if run.log_partition == log_partition and first <= last and is_meant:
            yield run._replace(first_offset=first, last_offset=last)
