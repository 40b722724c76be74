"""Producer against datacenter: the publishers' claims against the log, identity by identity. Pure.

Missing records are lost only once they cannot arrive any more. There are three proofs: the log holds a later
sequence number of the same producer and partition (the broker accepts them in order) and the publisher has
had time to report new numbers; or the publisher has closed, and the whole log was counted after that; or the
delay has passed and the datacenter's auditor has counted since. `audit.verdicts.silence` judges publishers
and auditors that stopped reporting, `audit.verdicts.hop_counts` publishers that report no sequence numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from headrace.audit import phrases
from headrace.audit.batches.damage import NO_PRODUCER
from headrace.audit.evidence import Claim, CountedSpan, Evidence, Heartbeat, TierEvidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, covers, stretches, subtract, union
from headrace.audit.times import END_STALE_MAX_MS
from headrace.audit.topic.doubled import split_doubled
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.audit.verdicts.corruption import (
    is_named_here,
    judge_corrupt,
    named_sequences,
    nameless_between,
    range_with,
)
from headrace.audit.verdicts.hop_counts import judge_counts
from headrace.audit.verdicts.silence import judge_silence

STARTED_SLACK_MS: Final = 5 * 60_000  # clocks that are less off are not put right (`audit.store.clocks`)


class Identity(NamedTuple):
    """The partition, producer and epoch that sequence numbers belong to."""

    partition: int
    producer_id: int
    producer_epoch: int


class _Case(NamedTuple):
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
        return union(
            (claim.first_sequence, claim.last_sequence + 1)
            for claim in self.claims
            if claim.withdrawn is withdrawn
        )

    def spans_with(self, start: int, end: int) -> list[CountedSpan]:
        return [
            counted
            for counted in self.counted
            if counted.span.first_sequence < end and start <= counted.span.last_sequence
        ]


class _Missing(NamedTuple):
    """Claimed sequences [start, end) that are not in the log; they would lie between `after` and `before`."""

    start: int
    end: int
    reported_ms: int
    after: int | None
    before: int | None


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


def _cases(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[_Case]:
    claims: defaultdict[Identity, list[Claim]] = defaultdict(list)
    spans: defaultdict[Identity, list[CountedSpan]] = defaultdict(list)
    for claim in evidence.claims:
        claims[Identity(claim.partition, claim.producer_id, claim.producer_epoch)].append(claim)
    for counted in evidence.datacenter_spans:
        span = counted.span
        spans[Identity(counted.partition, span.producer_id, span.producer_epoch)].append(counted)
    for identity in sorted(claims.keys() | spans.keys()):
        yield _Case(identity, claims[identity], spans[identity], evidence, policy, now_ms)


def _missing_or_corrupt(case: _Case, start: int, end: int) -> Iterator[Finding]:
    """Yields what is missing; of that, what lies in damaged batches, unless their own findings say so."""
    partition, producer_id, epoch = case.identity
    named = named_sequences(case.log, producer_id, epoch)
    for low, high, is_missing, is_named in stretches([(start, end)], named):
        if not is_missing:
            continue
        corrupt = range_with(case.log, producer_id, low) if is_named else None
        if corrupt is None:
            yield _missing(case, low, high)
        elif not is_named_here(case.evidence, DATACENTER_TIER, partition, corrupt.start, corrupt.end):
            place = (corrupt.start, corrupt.end)
            predicate = f"lie in a corrupt batch ({phrases.addresses(*place)}): {corrupt.cause}"
            yield _finding(case, Status.CORRUPT, "handed over by", predicate, low, high, place)


def _missing(case: _Case, start: int, end: int) -> Finding:
    reported_ms = max(
        claim.reported_ms
        for claim in case.claims
        if claim.first_sequence < end and start <= claim.last_sequence and not claim.withdrawn
    )
    missing = _Missing(start, end, reported_ms, *_neighbours(case, start))
    status, predicate = _status_of_missing(case, missing)
    where = phrases.addresses(missing.after, missing.before)
    predicate += f" ({where})" if where else " (nothing of this producer and hour is there)"
    place = (missing.after, missing.before)
    found = _finding(case, status, "handed over by", predicate, start, end, place)
    return replace(found, since_ms=reported_ms)


def _status_of_missing(case: _Case, missing: _Missing) -> tuple[Status, str]:
    """Returns the status of missing records, and the predicate of the sentence about them.

    The order of the checks matters. Without a heartbeat nothing is known. In a part of the log that was not
    counted they may still be found, so this precedes both proofs that they can no longer arrive. Without such
    a proof they are pending during the delay; then lost, if the auditor has reported since, to the log's end.
    """
    datacenter, heartbeat = case.evidence.datacenter, case.log.heartbeat
    is_recent = case.now_ms - missing.reported_ms < case.policy.delay_ms
    pending = (Status.PENDING, f"have not been seen in {datacenter}'s log yet")
    if heartbeat is None:
        if is_recent:
            return pending
        silence = f"{datacenter}'s auditor has never reported on that partition; is it running?"
        return Status.UNKNOWN, f"were never counted: {silence}"
    uncounted = _uncounted(case, missing, heartbeat)
    if corrupt := nameless_between(case.log, *_place(case, missing, heartbeat)):
        where = phrases.addresses(corrupt.start, corrupt.end)
        may_lie = (Status.CORRUPT, f"may lie in a corrupt place of the log ({where}): {corrupt.cause}")
        return pending if is_recent else may_lie
    if uncounted is not None:
        predicate, never_countable = uncounted
        return pending if is_recent and not never_countable else (Status.UNKNOWN, predicate)
    if _is_proven_overtaken(case, missing) or _is_counted_after_close(case, missing, heartbeat):
        return Status.LOST, _lost(case, missing, heartbeat)
    if is_recent:
        return pending
    if heartbeat.at_ms < missing.reported_ms + case.policy.delay_ms:
        silence = f"{datacenter}'s auditor has not reported since {phrases.instant(heartbeat.at_ms)}"
        return Status.UNKNOWN, f"have not been seen: {silence}"
    if heartbeat.counted_to_address < heartbeat.end_address:
        progress = f"has counted to address {heartbeat.counted_to_address} of {heartbeat.end_address}"
        return Status.UNKNOWN, f"have not been seen: {datacenter}'s auditor {progress}"
    return Status.LOST, _lost(case, missing, heartbeat)


def _lost(case: _Case, missing: _Missing, heartbeat: Heartbeat) -> str:
    """Returns the predicate of lost records: they were never there, or the log has lost them."""
    datacenter, (low, high) = case.evidence.datacenter, _place(case, missing, heartbeat)
    recount = case.log.recount_in(low, high)
    held = union(
        (counted.span.first_sequence, counted.span.last_sequence + 1)
        for counted in case.evidence.analysis_spans
        if (counted.partition, counted.span.producer_id, counted.span.producer_epoch) == case.identity
    )
    is_copied = covers(held, missing.start, missing.end)
    if recount is None and not is_copied:
        return f"never reached {datacenter}'s log"
    went_back = f", which went back to address {recount.from_address}: {recount.cause}" if recount else ""
    copy = "; the copy in the analysis cluster has them" if is_copied else ""
    return f"are not in {datacenter}'s log{went_back}{copy}"


def _uncounted(case: _Case, missing: _Missing, heartbeat: Heartbeat) -> tuple[str, bool] | None:
    """Returns the predicate if the log was not all counted where they would lie; and whether it never can."""
    log, datacenter = case.log, case.evidence.datacenter
    low, high = _place(case, missing, heartbeat)
    if gap := log.gap_in(low, high):
        where = f"addresses {gap.start} to {gap.end}, which {datacenter}'s auditor could not count"
        return f"may lie in {where}: {gap.cause}", True
    if low < high and not covers(log.known(), low, high):
        whose = f"{datacenter}'s"
        return f"may lie where {phrases.tally_missing(whose, low, high)}", False
    return None


def _place(case: _Case, missing: _Missing, heartbeat: Heartbeat) -> tuple[int, int]:
    """Returns the addresses [low, high) between which missing records would lie."""
    low = _first_address(case) if missing.after is None else missing.after
    return low, heartbeat.counted_to_address if missing.before is None else missing.before


def _first_address(case: _Case) -> int:
    """Returns the first address at which events of this hour and producer may lie.

    What lies before the first counted address was there before it was counted: no event of a later time or of
    a later publisher. Nor does one of a later publisher lie before what was counted when it started. Any
    other event may lie in a tally that has not arrived, or was deleted uncounted.
    """
    known, counted_ms = case.log.known(), case.log.first_counted_ms
    if not known or counted_ms is None:
        return 0
    publisher = case.evidence.publisher_of(case.identity.producer_id)
    started_ms = case.evidence.hour_ms if publisher is None else publisher.started_ms
    first = known[0][0] if counted_ms < max(started_ms, case.evidence.hour_ms) else 0
    before_ms = None if publisher is None else publisher.started_ms - STARTED_SLACK_MS
    return max([first, *(end for end, at_ms in case.log.counted if before_ms and at_ms < before_ms)])


def _is_proven_overtaken(case: _Case, missing: _Missing) -> bool:
    """Whether later sequences are logged, and the publisher has had time to report new numbers."""
    partition, producer_id, epoch = case.identity
    is_overtaken = case.evidence.latest.get((partition, producer_id), (-1, -1)) > (epoch, missing.end - 1)
    publisher = case.evidence.publisher_of(producer_id)
    is_closed = publisher is not None and publisher.closed and publisher.last_ms >= missing.reported_ms
    return is_overtaken and (is_closed or case.now_ms - missing.reported_ms >= case.policy.report_grace_ms)


def _is_counted_after_close(case: _Case, missing: _Missing, heartbeat: Heartbeat) -> bool:
    """Whether the publisher has closed, and the whole log was counted after that."""
    publisher = case.evidence.publisher_of(case.identity.producer_id)
    if publisher is None or not publisher.closed or publisher.last_ms < missing.reported_ms:
        return False
    is_counted = heartbeat.counted_to_address >= heartbeat.end_address
    return is_counted and heartbeat.at_ms >= publisher.last_ms + END_STALE_MAX_MS


def _neighbours(case: _Case, start: int) -> tuple[int | None, int | None]:
    """Returns the end of the records before sequence `start` in the log, and the start of those after it."""
    missing = (case.identity.producer_epoch, start)
    before: list[int] = []
    following: list[int] = []
    for counted in case.evidence.datacenter_spans:
        span = counted.span
        if (counted.partition, span.producer_id) != case.identity[:2]:
            continue
        if (span.producer_epoch, span.first_sequence) < missing:
            before.append(span.end_address)
        else:
            following.append(span.first_address)
    return max(before, default=None), min(following, default=None)


def _repeated(case: _Case, start: int, end: int, times: int) -> Finding:
    spans = case.spans_with(start, end)
    extent = _extent(spans)
    predicate = f"are {times} times in {case.evidence.datacenter}'s log ({phrases.addresses(*extent)})"
    return _finding(
        case, Status.DUPLICATED, "from", predicate, start, end, extent, (end - start) * (times - 1)
    )


def _renumbered_twice(case: _Case, start: int, end: int) -> Finding:
    extent = _extent(case.spans_with(start, end))
    predicate = (
        f"are in {case.evidence.datacenter}'s log ({phrases.addresses(*extent)}) although the producer "
        "gave them new numbers and sent them again"
    )
    return _finding(case, Status.DUPLICATED, "from", predicate, start, end, extent)


def _unclaimed(case: _Case, start: int, end: int, report: str) -> Finding:
    spans = case.spans_with(start, end)
    extent = _extent(spans)
    predicate = f"are in {case.evidence.datacenter}'s log {report} ({phrases.addresses(*extent)})"
    return _finding(case, _status_of_unreported(case, spans), "from", predicate, start, end, extent)


def _anonymous(case: _Case) -> Finding:
    count = sum(counted.span.record_count for counted in case.counted)
    extent = _extent(case.counted)
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
    )


def _status_of_unreported(case: _Case, spans: list[CountedSpan]) -> Status:
    age_ms = case.now_ms - max(counted.counted_ms for counted in spans)
    return Status.PENDING if age_ms < case.policy.delay_ms else Status.UNKNOWN


def _extent(spans: list[CountedSpan]) -> tuple[int, int]:
    low = min(counted.span.first_address for counted in spans)
    return low, max(counted.span.end_address for counted in spans)


def _finding(
    case: _Case,
    status: Status,
    verb: str,
    predicate: str,
    start: int,
    end: int,
    extent: tuple[int | None, int | None],
    record_count: int | None = None,
) -> Finding:
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
