"""One producer's claims and counted spans in an hour, and the findings about them. Values only.

`audit.verdicts.hop_producer` and `audit.verdicts.missing_events` judge them.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.audit import phrases
from headrace.audit.evidence import Claim, CountedSpan, Evidence, TierEvidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, union


class Identity(NamedTuple):
    """The partition, producer and epoch that sequence numbers belong to."""

    partition: int
    producer_id: int
    producer_epoch: int


class Case(NamedTuple):
    """One identity's claims and counted spans in an hour, with all that is needed to judge them."""

    identity: Identity
    claims: list[Claim]
    counted: list[CountedSpan]
    evidence: Evidence
    policy: Policy
    now_ms: int

    @property
    def log(self) -> TierEvidence:
        """How far the datacenter's auditor has counted the partition's log."""
        return self.evidence.partition(self.identity.partition).datacenter

    def claimed(self, *, withdrawn: bool) -> list[Interval]:
        """Returns the sequences that are claimed, or those whose claim was withdrawn."""
        return union(
            (claim.first_sequence, claim.last_sequence + 1)
            for claim in self.claims
            if claim.withdrawn is withdrawn
        )

    def spans_with(self, start: int, end: int) -> list[CountedSpan]:
        """Returns the spans that hold any of the sequences [start, end)."""
        return [
            counted
            for counted in self.counted
            if counted.span.first_sequence < end and start <= counted.span.last_sequence
        ]


def extent_of(spans: list[CountedSpan]) -> tuple[int, int]:
    """Returns the addresses [low, high) between which the spans lie."""
    low = min(counted.span.first_address for counted in spans)
    return low, max(counted.span.end_address for counted in spans)


def finding_of(
    case: Case,
    status: Status,
    verb: str,
    predicate: str,
    start: int,
    end: int,
    extent: tuple[int | None, int | None],
    record_count: int | None = None,
) -> Finding:
    """Returns a finding on sequences [start, end) of the case: how many events, whose, and `predicate`.

    `extent`: between which addresses they lie, or should. `record_count`: by default all of the sequences.
    """
    partition, producer_id, epoch = case.identity
    publisher = case.evidence.publisher_of(producer_id)
    count = end - start if record_count is None else record_count
    counted_ms = (counted.counted_ms for counted in case.spans_with(start, end))
    producer = phrases.producer(case.evidence, producer_id)
    sequences = phrases.sequences(start, end - 1, partition)
    return Finding(
        status,
        PRODUCER_HOP,
        f"{phrases.events(count, case.evidence)}, {verb} {producer}, {sequences}, {predicate}",
        record_count=count,
        partition=partition,
        producer_id=producer_id,
        producer_epoch=epoch,
        service=publisher.service if publisher else None,
        server=publisher.server if publisher else None,
        sequences=(start, end - 1),
        after_address=extent[0],
        before_address=extent[1],
        since_ms=max(counted_ms, default=None),
    )
