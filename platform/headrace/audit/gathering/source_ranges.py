"""What of an hour the warehouse can only have from its datacenter's own log. Reads the store; decides nothing
of brokers.

The copy never had these addresses (its gap was accepted), or dropped them before a load read them. Where the
source's log still holds them, `headrace audit repair` takes them from there (`warehouse.from_source`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from headrace.audit.evidence import Evidence, PartitionEvidence
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, Finding, Status
from headrace.audit.intervals import Interval, overlaps, subtract, union
from headrace.audit.store import tables
from headrace.audit.topic.records import DATACENTER_TIER


class SourceRange(NamedTuple):
    """Addresses [from, to) of a source partition, in which at least `record_count` events lie. `topic_id`: of
    the source's topic; "" if it is not known.
    """

    partition: int
    log_partition: int
    from_address: int
    to_address: int
    record_count: int
    topic_id: str = ""


def source_ranges(
    connection: Connection, evidence: Evidence, findings: Iterable[Finding]
) -> Iterator[SourceRange]:
    """Yields the gaps in which these findings' lost events lie, as far as no load consumed them.

    Whole gaps: a change of the table consumes addresses, of whatever hour. What is corrupt in the source's
    log is left out.
    """
    lost: dict[int, list[tuple[Interval, int]]] = {}
    for finding in findings:
        after, before = finding.after_address, finding.before_address
        is_lost = finding.status is Status.LOST and finding.hop in (MIRROR_HOP, LOAD_HOP)
        if is_lost and finding.partition is not None and after is not None and before is not None:
            place = ((after, before), finding.record_count or 0)
            lost.setdefault(finding.partition, []).append(place)
    for partition, places in sorted(lost.items()):
        known = evidence.partition(partition)
        gaps = _gaps(known)
        for low, high in gaps if known.log_partition is not None else ():
            if overlaps([place for place, _ in places], low, high):
                here = sum(count for place, count in places if _only(gaps, place) == (low, high))
                count = max(here, _counted(connection, evidence, partition, low, high))
                yield SourceRange(partition, known.log_partition or 0, low, high, count, evidence.topic_id)


def _only(gaps: Iterable[Interval], place: Interval) -> Interval | None:
    """Returns the one gap that shares addresses with a place; None if several do."""
    found = [gap for gap in gaps if overlaps([gap], *place)]
    return found[0] if len(found) == 1 else None


def _gaps(place: PartitionEvidence) -> list[Interval]:
    """Returns what the copy never had, and what it dropped before a load; without what was taken already."""
    never_had = subtract(((gap.start, gap.end) for gap in place.analysis.gaps), place.taken)
    dropped = subtract(((gap.start, gap.end) for gap in place.warehouse.gaps), place.warehouse.cover)
    corrupt = ((each.start, each.end) for each in place.datacenter.corrupt)
    return subtract(union((*never_had, *dropped)), corrupt)


def _counted(connection: Connection, evidence: Evidence, partition: int, low: int, high: int) -> int:
    """Returns how many events the datacenter's auditor counted in spans that lie wholly in [low, high)."""
    span, tally = tables.spans, tables.tallies
    query = (
        select(func.sum(span.c.record_count))
        .join(tally, tally.c.id == span.c.tally_id)
        .where(
            tally.c.topic == evidence.topic,
            tally.c.datacenter == evidence.datacenter,
            tally.c.topic_id == evidence.topic_id,
            tally.c.tier == DATACENTER_TIER,
            tally.c.partition == partition,
            tally.c.chosen,
            span.c.first_address >= low,
            span.c.end_address <= high,
        )
    )
    return int(connection.execute(query).scalar() or 0)
