"""Datacenter against analysis: the source's log against its copy, identity by identity. Pure.

The copy has the same bytes at the same addresses, so what one tier counted between two addresses the other
must have counted too: where both have looked, any difference is damage; where only one has, it is a matter
of time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from headrace.audit import wording
from headrace.audit.evidence import (
    MIRROR_HOP,
    Counted,
    Evidence,
    Finding,
    PartitionEvidence,
    Policy,
    Status,
)
from headrace.audit.intervals import covers, stretches
from headrace.audit.tally import NO_PRODUCER

_NOWHERE = PartitionEvidence()
_Identity = tuple[int, int, int]


class _Difference(NamedTuple):
    """Records that one side has and the other has not, and the spans of the side that has them."""

    identity: _Identity
    record_count: int
    sequences: tuple[int, int] | None
    spans: list[Counted]

    @property
    def low(self) -> int:
        return min(each.span.first_address for each in self.spans)

    @property
    def high(self) -> int:
        return max(each.span.end_address for each in self.spans)

    @property
    def counted_ms(self) -> int:
        return max(each.counted_ms for each in self.spans)

    def is_within(self, cover: tuple[tuple[int, int], ...]) -> bool:
        return all(covers(cover, each.span.first_address, each.span.end_address) for each in self.spans)


def judge_mirror_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """What is wrong between a datacenter's log and its copy in the analysis cluster."""
    source, copy = _by_identity(evidence.datacenter_spans), _by_identity(evidence.analysis_spans)
    for identity in sorted(source.keys() | copy.keys()):
        here, there = source[identity], copy[identity]
        if identity[1] == NO_PRODUCER:
            difference = _records(here) - _records(there)
            if difference > 0:
                yield _missing(_Difference(identity, difference, None, here), evidence, policy, now_ms)
            elif difference < 0:
                yield _extra(_Difference(identity, -difference, None, there), evidence, policy, now_ms)
            continue
        for stretch in stretches(_numbers(here), _numbers(there)):
            sequences = (stretch.start, stretch.end - 1)
            count = (stretch.end - stretch.start) * abs(stretch.left - stretch.right)
            if stretch.left > stretch.right:
                missing = _Difference(identity, count, sequences, _within(here, sequences))
                yield _missing(missing, evidence, policy, now_ms)
            elif stretch.left < stretch.right:
                extra = _Difference(identity, count, sequences, _within(there, sequences))
                yield _extra(extra, evidence, policy, now_ms)


def _missing(missing: _Difference, evidence: Evidence, policy: Policy, now_ms: int) -> Finding:
    place = evidence.partitions.get(missing.identity[0], _NOWHERE)
    status, why = _why_missing(missing, place, policy, now_ms)
    return _finding(status, f"in {evidence.datacenter}'s log, {why}", missing, evidence)


def _why_missing(
    missing: _Difference, place: PartitionEvidence, policy: Policy, now_ms: int
) -> tuple[Status, str]:
    age_ms, beat = now_ms - missing.counted_ms, place.analysis_beat
    for gap in place.analysis_gaps:
        if gap.start < missing.high and missing.low < gap.end:
            why = f"can no longer be mirrored: {gap.reason} (addresses {gap.start} to {gap.end})"
            return Status.LOST, why
    if missing.is_within(place.analysis_cover):
        return Status.LOST, "are not in the copy, although its log reaches beyond them: the copy differs"
    not_counted = "have not been counted in the analysis cluster"
    if age_ms < policy.delay_ms:
        return Status.PENDING, f"{not_counted} yet"
    if beat is None:
        why = "whose auditor knows nothing of that partition: are mirror and auditor running?"
        return Status.UNKNOWN, f"{not_counted}, {why}"
    if beat.at_ms < missing.counted_ms + policy.delay_ms:
        why = f"whose auditor is silent since {wording.instant(beat.at_ms)}"
        return Status.UNKNOWN, f"{not_counted}, {why}"
    overdue = wording.lasting(age_ms - policy.delay_ms)
    return (
        Status.UNKNOWN,
        f"are overdue by {overdue}: the copy ends at address {beat.end_address}; is the mirror running?",
    )


def _extra(extra: _Difference, evidence: Evidence, policy: Policy, now_ms: int) -> Finding:
    place = evidence.partitions.get(extra.identity[0], _NOWHERE)
    dc = evidence.datacenter
    if extra.is_within(place.datacenter_cover):
        status = Status.DUPLICATED
        why = f"are in the copy more often than in {dc}'s log at the same addresses: the copy differs"
    elif now_ms - extra.counted_ms < policy.delay_ms:
        status, why = Status.PENDING, f"are in the copy; {dc}'s own tally has not arrived yet"
    else:
        status = Status.UNKNOWN
        why = (
            f"are in the copy, but {dc}'s auditor never said that it counted them: "
            "is it running, and is _audit mirrored?"
        )
    return _finding(status, why, extra, evidence)


def _finding(status: Status, why: str, difference: _Difference, evidence: Evidence) -> Finding:
    partition, producer_id, epoch = difference.identity
    life = evidence.life_of(producer_id)
    low, high, sequences = difference.low, difference.high, difference.sequences
    which = (
        f"{wording.sequences(*sequences, partition)} of {wording.producer(evidence, producer_id)}"
        if sequences
        else f"partition {partition}"
    )
    what = wording.events(difference.record_count, evidence)
    return Finding(
        status,
        MIRROR_HOP,
        f"{what}, {which}, {why} ({wording.addresses(low, high)})",
        record_count=difference.record_count,
        partition=partition,
        producer_id=producer_id if sequences else None,
        producer_epoch=epoch if sequences else None,
        service=life.service if life else None,
        server=life.server if life else None,
        sequences=sequences,
        after_address=low,
        before_address=high,
    )


def _by_identity(spans: tuple[Counted, ...]) -> defaultdict[_Identity, list[Counted]]:
    out: defaultdict[_Identity, list[Counted]] = defaultdict(list)
    for each in spans:
        out[each.partition, each.span.producer_id, each.span.producer_epoch].append(each)
    return out


def _records(spans: list[Counted]) -> int:
    return sum(each.span.record_count for each in spans)


def _numbers(spans: list[Counted]) -> list[tuple[int, int]]:
    return [(each.span.first_sequence, each.span.last_sequence + 1) for each in spans]


def _within(spans: list[Counted], sequences: tuple[int, int]) -> list[Counted]:
    first, last = sequences
    return [each for each in spans if each.span.first_sequence <= last and first <= each.span.last_sequence]
