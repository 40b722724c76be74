"""How far a drill's events have come by the audit's own evidence: into the copy, into the warehouse. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.audit.evidence import CountedSpan, Evidence
from headrace.audit.intervals import covers
from headrace.audit.topic.drills import NO_NUMBER, DrillPlant


def copied_count(plant: DrillPlant, evidence: Iterable[Evidence]) -> int:
    """Returns how many events of the plant's publisher the audit has counted in the copy."""
    return sum(counted.span.record_count for _, counted in _copied(plant, evidence))


def is_loaded(plant: DrillPlant, evidence: Iterable[Evidence]) -> bool:
    """Whether all that is counted in the copy of the plant's publisher is in reported loads."""
    return all(
        covers(
            each.partition(counted.partition).warehouse.cover,
            counted.span.first_address,
            counted.span.end_address,
        )
        for each, counted in _copied(plant, evidence)
    )


def _copied(plant: DrillPlant, evidence: Iterable[Evidence]) -> Iterator[tuple[Evidence, CountedSpan]]:
    """Yields what the copy has of the plant's publisher, and of the producer id that sent again."""
    for each in evidence:
        if (each.datacenter, each.hour_ms) != (plant.datacenter, plant.hour_ms):
            continue
        for counted in each.analysis_spans:
            publisher = each.publisher_of(counted.span.producer_id)
            is_known = publisher is not None and publisher.service == plant.service
            if is_known or counted.span.producer_id == plant.producer_id != NO_NUMBER:
                yield each, counted
