"""Corrupt batches: the findings about them, and which missing records they explain. Pure.

A damaged batch is a finding of its own, in the hours that its header names. Records that are missing from a
tier are corrupt, not lost, if a damaged batch of that tier names their sequence numbers, or may hold them
because its header cannot be believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.audit import phrases
from headrace.audit.batches.damage import NO_PRODUCER, ON_DISK, OTHER_BYTES
from headrace.audit.evidence import CorruptRange, Evidence, TierEvidence
from headrace.audit.findings import Finding, Status
from headrace.audit.intervals import Interval, union
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER


def judge_corrupt(evidence: Evidence, tier: str, hop: str) -> Iterator[Finding]:
    """Yields a finding for each damaged batch of this hour in a tier's log.

    What the mirror copied as it was is named once, in the datacenter's log.
    """
    copied = {
        (each.partition, each.range.start, each.range.end)
        for each in evidence.corrupt
        if tier == ANALYSIS_TIER and each.tier == DATACENTER_TIER
    }
    for each in evidence.corrupt:
        place = (each.partition, each.range.start, each.range.end)
        if each.tier == tier and place not in copied:
            yield _finding(each.range, each.partition, tier, hop, evidence)


def named_sequences(log: TierEvidence, producer_id: int, producer_epoch: int) -> list[Interval]:
    """Returns the sequence numbers of a producer that lie in damaged batches, by these batches' headers."""
    return union(
        (each.first_sequence, each.last_sequence + 1)
        for each in _uncounted(log)
        if (each.producer_id, each.producer_epoch) == (producer_id, producer_epoch)
    )


def nameless_between(log: TierEvidence, low: int, high: int) -> CorruptRange | None:
    """Returns a damaged batch within [low, high) that may hold records of any producer."""
    return next(
        (
            each
            for each in _uncounted(log)
            if each.producer_id == NO_PRODUCER
            and each.record_count is None
            and each.start < high
            and low < each.end
        ),
        None,
    )


def anonymous_count(log: TierEvidence, low: int, high: int) -> int | None:
    """Returns how many records without a producer id lie in damaged batches; None if that is not known."""
    counts = [
        each.record_count
        for each in _uncounted(log)
        if each.producer_id == NO_PRODUCER and each.start < high and low < each.end
    ]
    return total(counts)


def total(counts: Iterable[int | None]) -> int | None:
    """Returns the sum; None if one of the counts is not known."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def is_named_here(evidence: Evidence, tier: str, partition: int, low: int, high: int) -> bool:
    """Whether a finding of this hour already names damage within [low, high) of a tier's log."""
    return any(
        (each.tier, each.partition) == (tier, partition) and each.range.start < high and low < each.range.end
        for each in evidence.corrupt
    )


def range_with(log: TierEvidence, producer_id: int, sequence: int) -> CorruptRange | None:
    """Returns the damaged batch whose header names this sequence number."""
    return next(
        (
            each
            for each in _uncounted(log)
            if each.producer_id == producer_id and each.first_sequence <= sequence <= each.last_sequence
        ),
        None,
    )


def _uncounted(log: TierEvidence) -> Iterator[CorruptRange]:
    """Yields the damaged batches whose records no tally of the tier holds: not those that were counted before
    a broker found them damaged.
    """
    return (
        each
        for each in log.corrupt
        if not each.cause.startswith(OTHER_BYTES)
        and (not each.in_tally or (each.record_count is None and not each.cause.startswith(ON_DISK)))
    )


def _finding(corrupt: CorruptRange, partition: int, tier: str, hop: str, evidence: Evidence) -> Finding:
    datacenter, start, end = evidence.datacenter, corrupt.start, corrupt.end
    where = f"{datacenter}'s log" if tier == DATACENTER_TIER else f"the copy of {datacenter}'s log"
    status = Status.ALTERED if corrupt.cause.startswith(OTHER_BYTES) else Status.CORRUPT
    place = f"in partition {partition} of {where} ({phrases.addresses(start, end)})"
    if corrupt.record_count is None:
        hour = f"{evidence.topic}, {datacenter}, {phrases.hour(evidence.hour_ms)}"
        text = f"{status}: an unknown number of events of {hour}, {place}: {corrupt.cause}"
    else:
        text = f"{status}: {phrases.events(corrupt.record_count, evidence)}, {place}: {corrupt.cause}"
    is_named = corrupt.producer_id != NO_PRODUCER
    publisher = evidence.publisher_of(corrupt.producer_id) if is_named else None
    return Finding(
        status,
        hop,
        text,
        record_count=corrupt.record_count,
        partition=partition,
        producer_id=corrupt.producer_id if is_named else None,
        producer_epoch=corrupt.producer_epoch if is_named else None,
        service=publisher.service if publisher else None,
        server=publisher.server if publisher else None,
        sequences=(corrupt.first_sequence, corrupt.last_sequence) if is_named else None,
        after_address=start,
        before_address=end,
    )
