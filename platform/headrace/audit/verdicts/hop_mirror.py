"""Datacenter against analysis: the source's log against its copy, identity by identity. Pure.

The copy has the same bytes at the same addresses, so both tiers must count the same between two addresses.
Where both have counted, any difference is damage; where only one has, the other may still follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from headrace.audit import phrases
from headrace.audit.batches.damage import NO_PRODUCER
from headrace.audit.evidence import CountedSpan, Evidence, TierEvidence
from headrace.audit.findings import MIRROR_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, covers, overlaps, stretches, union
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER
from headrace.audit.verdicts.corruption import (
    anonymous_count,
    is_named_here,
    judge_corrupt,
    named_sequences,
    nameless_between,
    range_with,
)

_Identity = tuple[int, int, int]  # (partition, producer id, epoch)


class _Difference(NamedTuple):
    """Records that only one side has, and the spans of that side."""

    identity: _Identity
    record_count: int
    sequences: tuple[int, int] | None
    spans: list[CountedSpan]

    @property
    def low(self) -> int:
        return min(counted.span.first_address for counted in self.spans)

    @property
    def high(self) -> int:
        return max(counted.span.end_address for counted in self.spans)

    @property
    def counted_ms(self) -> int:
        return max(counted.counted_ms for counted in self.spans)

    def by_span(self) -> Iterator[_Difference]:
        """The same records by the span in which they lie; those that are only counted stay together."""
        if self.sequences is None:
            yield self._replace(spans=[_joined(self.spans)])
            return
        first, last = self.sequences
        times = self.record_count // (last - first + 1)
        for counted in self.spans:
            low, high = max(first, counted.span.first_sequence), min(last, counted.span.last_sequence)
            yield _Difference(self.identity, (high - low + 1) * times, (low, high), [counted])

    def is_within(self, cover: tuple[tuple[int, int], ...]) -> bool:
        spans = (counted.span for counted in self.spans)
        return all(covers(cover, span.first_address, span.end_address) for span in spans)


def _joined(spans: list[CountedSpan]) -> CountedSpan:
    """Returns one span in the place of all."""
    first, last = (
        min(spans, key=lambda each: each.span.first_address),
        max(spans, key=lambda each: each.span.end_address),
    )
    return first._replace(
        span=first.span._replace(end_address=last.span.end_address),
        counted_ms=max(each.counted_ms for each in spans),
    )


def judge_mirror_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields the problems between a datacenter's log and its copy in the analysis cluster."""
    for difference, is_missing, is_in_source in _differences(evidence):
        if is_missing:
            yield from _missing(difference, evidence, policy, now_ms)
        else:
            yield from _extra(difference, evidence, policy, now_ms, is_in_source=is_in_source)
    yield from judge_corrupt(evidence, ANALYSIS_TIER, MIRROR_HOP)


def taken_counts(evidence: Evidence) -> dict[int, int]:
    """Returns how many records the warehouse took from the datacenter's own log, by partition: those that the
    copy lacks, in its gaps.
    """
    counts: dict[int, int] = {}
    for difference, is_missing, _ in _differences(evidence):
        if is_missing:
            partition = difference.identity[0]
            pieces = difference.by_span() if len(difference.spans) > 1 else (difference,)
            count = sum(piece.record_count for piece in pieces if _is_taken(piece, evidence))
            counts[partition] = counts.get(partition, 0) + count
    return {partition: count for partition, count in counts.items() if count}


def _differences(evidence: Evidence) -> Iterator[tuple[_Difference, bool, bool]]:
    """Yields what the source and its copy do not both have; whether it is missing in the copy; and, of what
    the copy has too often, whether the source has it at all.
    """
    source, copy = _by_identity(evidence.datacenter_spans), _by_identity(evidence.analysis_spans)
    for identity in sorted(source.keys() | copy.keys()):
        in_source, in_copy = source[identity], copy[identity]
        if identity[1] == NO_PRODUCER:
            difference = _records(in_source) - _records(in_copy)
            if difference:
                spans = in_source if difference > 0 else in_copy
                yield _Difference(identity, abs(difference), None, spans), difference > 0, False
            continue
        compared = stretches(_sequences(in_source), _sequences(in_copy))
        for start, end, source_times, copy_times in compared:
            if source_times == copy_times:
                continue
            is_missing, sequences = source_times > copy_times, (start, end - 1)
            count = (end - start) * abs(source_times - copy_times)
            spans = _within(in_source if is_missing else in_copy, sequences)
            yield _Difference(identity, count, sequences, spans), is_missing, source_times > 0


def _is_taken(missing: _Difference, evidence: Evidence) -> bool:
    """Whether the copy lacks these records because of a gap whose addresses loads took from the source."""
    place = evidence.partition(missing.identity[0])
    taken = place.taken_from_source()
    if not overlaps(taken, missing.low, missing.high):
        return False
    return covers(union((*place.analysis.cover, *taken)), missing.low, missing.high)


def _missing(missing: _Difference, evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    analysis = evidence.partition(missing.identity[0]).analysis
    if cause := _corrupt_cause(missing, analysis):
        if not is_named_here(evidence, ANALYSIS_TIER, missing.identity[0], missing.low, missing.high):
            yield _finding(Status.CORRUPT, f"are corrupt in the copy: {cause}", missing, evidence)
        return
    if analysis.gap_in(missing.low, missing.high) and len(missing.spans) > 1:
        for piece in missing.by_span():  # only some of them may lie in the gap
            yield from _missing(piece, evidence, policy, now_ms)
        return
    if _is_taken(missing, evidence):
        return  # `audit.verdicts.hop_load` counts them: the warehouse has them from the source's own log
    status, predicate = _status_of_missing(missing, analysis, policy, now_ms)
    if status is Status.LOST and missing.is_within(analysis.cover):
        status, predicate = phrases.unless_forgotten(evidence, status, predicate)
    yield _finding(status, f"in {evidence.datacenter}'s log, {predicate}", missing, evidence)


def _status_of_missing(
    missing: _Difference, analysis: TierEvidence, policy: Policy, now_ms: int
) -> tuple[Status, str]:
    age_ms, heartbeat = now_ms - missing.counted_ms, analysis.heartbeat
    gap = analysis.gap_in(missing.low, missing.high)
    gaps = ((each.start, each.end) for each in analysis.gaps)
    if gap and covers(union((*analysis.cover, *gaps)), missing.low, missing.high):
        return Status.LOST, f"can no longer be mirrored: {gap.cause} (addresses {gap.start} to {gap.end})"
    if missing.is_within(analysis.cover):
        return Status.LOST, "are not in the copy, although its log reaches beyond them: the copy differs"
    not_counted = "have not been counted in the analysis cluster"
    if age_ms < policy.delay_ms:
        return Status.PENDING, f"{not_counted} yet"
    if heartbeat is None:
        silence = "whose auditor has never reported on that partition: are mirror and auditor running?"
        return Status.UNKNOWN, f"{not_counted}, {silence}"
    if heartbeat.at_ms < missing.counted_ms + policy.delay_ms:
        silence = f"whose auditor has not reported since {phrases.instant(heartbeat.at_ms)}"
        return Status.UNKNOWN, f"{not_counted}, {silence}"
    overdue = phrases.duration(age_ms - policy.delay_ms)
    if any(start >= missing.high for start, _ in analysis.cover):
        if any(end <= missing.low for _, end in analysis.cover):  # counting passes over nothing unsaid
            return (
                Status.UNKNOWN,
                f"are not counted in the copy: {phrases.tally_missing('its', missing.low, missing.high)}",
            )
        return Status.LOST, f"are overdue by {overdue}, and the copy has gone on behind them"
    end = f"the copy ends at address {heartbeat.end_address}; is the mirror running?"
    return Status.UNKNOWN, f"are overdue by {overdue}: {end}"


def _corrupt_cause(difference: _Difference, other: TierEvidence) -> str:
    """Returns why the other side cannot hold these records: they lie in a batch that is corrupt there; "" if
    no corrupt batch explains all of them.
    """
    _partition, producer_id, epoch = difference.identity
    low, high = difference.low, difference.high
    if nameless := nameless_between(other, low, high):
        return nameless.cause
    if difference.sequences is None:
        corrupt = anonymous_count(other, low, high)
        is_explained = corrupt is None or corrupt >= difference.record_count
        return "its checksum is wrong there" if is_explained else ""
    first, last = difference.sequences
    if not covers(named_sequences(other, producer_id, epoch), first, last + 1):
        return ""
    found = range_with(other, producer_id, first)
    return found.cause if found else ""


def _extra(
    extra: _Difference, evidence: Evidence, policy: Policy, now_ms: int, *, is_in_source: bool = False
) -> Iterator[Finding]:
    """`is_in_source`: the datacenter's log has these records, but not as often."""
    datacenter = evidence.datacenter
    if cause := _corrupt_cause(extra, evidence.partition(extra.identity[0]).datacenter):
        if not is_named_here(evidence, DATACENTER_TIER, extra.identity[0], extra.low, extra.high):
            predicate = f"are in the copy, and corrupt in {datacenter}'s log: {cause}"
            yield _finding(Status.CORRUPT, predicate, extra, evidence)
        return
    recount = evidence.partition(extra.identity[0]).datacenter.recount_in(extra.low, extra.high)
    is_counted = extra.is_within(evidence.partition(extra.identity[0]).datacenter.cover)
    if not is_in_source and (recount is not None or is_counted) and _is_claimed(extra, evidence):
        return  # they were handed over once, and `audit.verdicts.hop_producer` names them
    if recount is not None and not is_in_source:
        predicate = f"are in the copy only: {datacenter}'s log went back to address {recount.from_address}"
        found = _finding(Status.LOST, f"{predicate}, because {recount.cause}", extra, evidence)
        yield replace(found, about=f"{found.about} beyond the log".strip())
        return
    if is_counted:
        differs = (
            f"are in the copy more often than in {datacenter}'s log at the same addresses: the copy differs"
        )
        status, predicate = phrases.unless_forgotten(evidence, Status.DUPLICATED, differs)
    elif now_ms - extra.counted_ms < policy.delay_ms:
        status, predicate = Status.PENDING, f"are in the copy; {datacenter}'s own tally has not arrived yet"
    else:
        status = Status.UNKNOWN
        predicate = (
            f"are in the copy, but {datacenter}'s auditor never reported that it counted them: "
            "is it running, and is _audit mirrored?"
        )
    found = _finding(status, predicate, extra, evidence)
    yield replace(found, about=f"{found.about} beyond the log".strip())


def _is_claimed(extra: _Difference, evidence: Evidence) -> bool:
    """Whether publishers' reports name all of these records."""
    if extra.sequences is None:
        return False
    claims = union(
        (claim.first_sequence, claim.last_sequence + 1)
        for claim in evidence.claims
        if not claim.withdrawn
        and (claim.partition, claim.producer_id, claim.producer_epoch) == extra.identity
    )
    first, last = extra.sequences
    return covers(claims, first, last + 1)


def _finding(status: Status, predicate: str, difference: _Difference, evidence: Evidence) -> Finding:
    partition, producer_id, epoch = difference.identity
    publisher = evidence.publisher_of(producer_id)
    low, high, sequences = difference.low, difference.high, difference.sequences
    identity = (
        f"{phrases.sequences(*sequences, partition)} of {phrases.producer(evidence, producer_id)}"
        if sequences
        else f"partition {partition}"
    )
    events = phrases.events(difference.record_count, evidence)
    return Finding(
        status,
        MIRROR_HOP,
        f"{events}, {identity}, {predicate} ({phrases.addresses(low, high)})",
        record_count=difference.record_count,
        partition=partition,
        producer_id=producer_id if sequences else None,
        producer_epoch=epoch if sequences else None,
        service=publisher.service if publisher else None,
        server=publisher.server if publisher else None,
        sequences=sequences,
        after_address=low,
        before_address=high,
        since_ms=difference.counted_ms,
        about="" if sequences else phrases.of_topic("events", evidence),
    )


def _by_identity(spans: tuple[CountedSpan, ...]) -> defaultdict[_Identity, list[CountedSpan]]:
    found: defaultdict[_Identity, list[CountedSpan]] = defaultdict(list)
    for counted in spans:
        found[counted.partition, counted.span.producer_id, counted.span.producer_epoch].append(counted)
    return found


def _records(spans: list[CountedSpan]) -> int:
    return sum(counted.span.record_count for counted in spans)


def _sequences(spans: list[CountedSpan]) -> list[Interval]:
    return [(counted.span.first_sequence, counted.span.last_sequence + 1) for counted in spans]


def _within(spans: list[CountedSpan], sequences: tuple[int, int]) -> list[CountedSpan]:
    first, last = sequences
    return [
        counted
        for counted in spans
        if counted.span.first_sequence <= last and first <= counted.span.last_sequence
    ]
