"""Producer against datacenter: the publishers' claims against the log, identity by identity. Pure.

`audit.verdicts.missing_events` judges what the log does not have, `audit.verdicts.silence` publishers and
auditors that stopped reporting, `audit.verdicts.hop_counts` publishers that report no sequence numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from headrace.audit import phrases
from headrace.audit.batches.damage import NO_PRODUCER
from headrace.audit.evidence import Claim, CountedSpan, Evidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, stretches, subtract, union
from headrace.audit.topic.doubled import split_doubled
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.audit.verdicts.corruption import (
    is_named_here,
    judge_corrupt,
    named_sequences,
    range_with,
)
from headrace.audit.verdicts.hop_counts import judge_counts
from headrace.audit.verdicts.missing_events import judge_missing
from headrace.audit.verdicts.producer_case import Case, Identity, extent_of, finding_of
from headrace.audit.verdicts.silence import judge_silence


def judge_producer_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields the problems between the producers and their datacenter's log."""
    unreported: list[Finding] = []
    yield from _judge_numbers(evidence, policy, now_ms, unreported)
    if not evidence.is_deleted:
        for earlier in evidence.earlier:
            for _ in _judge_numbers(earlier, policy, now_ms, unreported):
                pass  # its own judgement yields them
        yield from judge_counts(evidence, unreported, policy, now_ms)
    yield from judge_corrupt(evidence, DATACENTER_TIER, PRODUCER_HOP)
    yield from judge_silence(evidence, policy, now_ms)


def _judge_numbers(
    evidence: Evidence, policy: Policy, now_ms: int, unreported: list[Finding]
) -> Iterator[Finding]:
    """Yields problems of numbers; adds to `unreported` what is in the log without any producer's report."""
    for case in _cases(evidence, policy, now_ms):
        if case.identity.producer_id == NO_PRODUCER:
            yield from _sorted_out(_anonymous(case), case.counted, evidence, unreported)
            continue
        withdrawn = case.claimed(withdrawn=True)
        live = subtract(case.claimed(withdrawn=False), withdrawn)
        spans = (counted.span for counted in case.counted)
        logged = [(span.first_sequence, span.last_sequence + 1) for span in spans]
        unclaimed: list[Interval] = []
        for start, end, claimed_times, logged_times in stretches(live, logged):
            if not logged_times:
                yield from _missing_or_corrupt(case, start, end)
            if logged_times > 1:
                yield _repeated(case, start, end, logged_times)
            if not claimed_times:
                unclaimed.append((start, end))
        for start, end, is_unclaimed, is_withdrawn in stretches(union(unclaimed), withdrawn):
            if is_unclaimed and is_withdrawn:
                yield _renumbered_twice(case, start, end)
            elif is_unclaimed and evidence.publisher_of(case.identity.producer_id) is None:
                found = _unclaimed(case, start, end, "without any producer report")
                yield from _sorted_out(found, case.spans_with(start, end), evidence, unreported)
            elif is_unclaimed and not evidence.is_counted_from_log:
                found = _unclaimed(case, start, end, "that its reports do not mention")
                yield from split_doubled(found, case.spans_with(start, end), evidence)


def _sorted_out(
    finding: Finding, spans: list[CountedSpan], evidence: Evidence, unreported: list[Finding]
) -> Iterator[Finding]:
    """Yields what is duplicated by guid of an unreported producer's events; adds the rest to `unreported`."""
    for each in split_doubled(finding, spans, evidence):
        if each.status is Status.DUPLICATED:
            yield each
        else:
            unreported.append(each)


def _cases(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Case]:
    claims: defaultdict[Identity, list[Claim]] = defaultdict(list)
    spans: defaultdict[Identity, list[CountedSpan]] = defaultdict(list)
    for claim in evidence.claims:
        claims[Identity(claim.partition, claim.producer_id, claim.producer_epoch)].append(claim)
    for counted in evidence.datacenter_spans:
        span = counted.span
        spans[Identity(counted.partition, span.producer_id, span.producer_epoch)].append(counted)
    for identity in sorted(claims.keys() | spans.keys()):
        yield Case(identity, claims[identity], spans[identity], evidence, policy, now_ms)


def _missing_or_corrupt(case: Case, start: int, end: int) -> Iterator[Finding]:
    """Yields what is missing; of that, what lies in damaged batches, unless their own findings say so."""
    partition, producer_id, epoch = case.identity
    named = named_sequences(case.log, producer_id, epoch)
    for low, high, is_missing, is_named in stretches([(start, end)], named):
        if not is_missing:
            continue
        corrupt = range_with(case.log, producer_id, low) if is_named else None
        if corrupt is None:
            yield judge_missing(case, low, high)
        elif not is_named_here(case.evidence, DATACENTER_TIER, partition, corrupt.start, corrupt.end):
            place = (corrupt.start, corrupt.end)
            predicate = f"lie in a corrupt batch ({phrases.addresses(*place)}): {corrupt.cause}"
            yield finding_of(case, Status.CORRUPT, "handed over by", predicate, low, high, place)


def _repeated(case: Case, start: int, end: int, times: int) -> Finding:
    spans = case.spans_with(start, end)
    extent = extent_of(spans)
    predicate = f"are {times} times in {case.evidence.datacenter}'s log ({phrases.addresses(*extent)})"
    return finding_of(
        case, Status.DUPLICATED, "from", predicate, start, end, extent, (end - start) * (times - 1)
    )


def _renumbered_twice(case: Case, start: int, end: int) -> Finding:
    extent = extent_of(case.spans_with(start, end))
    predicate = (
        f"are in {case.evidence.datacenter}'s log ({phrases.addresses(*extent)}) although the producer "
        "gave them new numbers and sent them again"
    )
    return finding_of(case, Status.DUPLICATED, "from", predicate, start, end, extent)


def _unclaimed(case: Case, start: int, end: int, report: str) -> Finding:
    spans = case.spans_with(start, end)
    extent = extent_of(spans)
    predicate = f"are in {case.evidence.datacenter}'s log {report} ({phrases.addresses(*extent)})"
    found = finding_of(case, _status_of_unreported(case, spans), "from", predicate, start, end, extent)
    return replace(found, about="beyond the reports")


def _anonymous(case: Case) -> Finding:
    count = sum(counted.span.record_count for counted in case.counted)
    extent = extent_of(case.counted)
    return Finding(
        _status_of_unreported(case, case.counted),
        PRODUCER_HOP,
        f"{phrases.events(count, case.evidence)}, from producers without an id, are in partition "
        f"{case.identity.partition} of {case.evidence.datacenter}'s log without any producer report "
        f"({phrases.addresses(*extent)})",
        record_count=count,
        partition=case.identity.partition,
        after_address=extent[0],
        before_address=extent[1],
        about=phrases.of_topic("events", case.evidence),
    )


def _status_of_unreported(case: Case, spans: list[CountedSpan]) -> Status:
    age_ms = case.now_ms - max(counted.counted_ms for counted in spans)
    return Status.PENDING if age_ms < case.policy.delay_ms else Status.UNKNOWN
