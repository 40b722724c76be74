"""Producer against datacenter: what was handed over, by identity, against what the log holds. Pure.

A loss is called one only when the missing numbers cannot come any more: the log already holds a later
number of the same producer and partition (the broker takes them in order), or the delay has passed and the
datacenter's auditor has counted since. Silence of publishers and auditors is judged in `audit.silence`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.audit import wording
from headrace.audit.evidence import (
    PRODUCER_HOP,
    Beat,
    Claim,
    Counted,
    Evidence,
    Finding,
    PartitionEvidence,
    Policy,
    Status,
)
from headrace.audit.intervals import Interval, covers, stretches, subtract, union
from headrace.audit.silence import judge_silence
from headrace.audit.tally import NO_PRODUCER

BEAT_STALE_MAX_MS: Final = 5_000  # how old an auditor's knowledge of a log's end may be when it beats

_NOWHERE = PartitionEvidence()


class Identity(NamedTuple):
    """Whose sequence numbers they are."""

    partition: int
    producer_id: int
    producer_epoch: int


class _Case(NamedTuple):
    """One identity's claims and counted spans in this hour, and what they are judged by."""

    identity: Identity
    claims: list[Claim]
    counted: list[Counted]
    evidence: Evidence
    policy: Policy
    now_ms: int

    @property
    def place(self) -> PartitionEvidence:
        return self.evidence.partitions.get(self.identity.partition, _NOWHERE)

    def claimed(self, *, withdrawn: bool) -> list[Interval]:
        return union(
            (each.first_sequence, each.last_sequence + 1)
            for each in self.claims
            if each.withdrawn is withdrawn
        )

    def spans_with(self, start: int, end: int) -> list[Counted]:
        return [
            each
            for each in self.counted
            if each.span.first_sequence < end and start <= each.span.last_sequence
        ]


class _Missing(NamedTuple):
    """Claimed numbers [start, end) that are not in the log, and the addresses between which they would be."""

    start: int
    end: int
    reported_ms: int
    after: int | None
    before: int | None


def judge_producer_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """What is wrong between the producers and their datacenter's log."""
    for case in _cases(evidence, policy, now_ms):
        if case.identity.producer_id == NO_PRODUCER:
            yield from _anonymous(case)
            continue
        withdrawn = case.claimed(withdrawn=True)
        live = subtract(case.claimed(withdrawn=False), withdrawn)
        logged = [(each.span.first_sequence, each.span.last_sequence + 1) for each in case.counted]
        unclaimed: list[Interval] = []
        for stretch in stretches(live, logged):
            if not stretch.right:
                yield _missing(case, stretch.start, stretch.end)
            if stretch.right > 1:
                yield _repeated(case, stretch.start, stretch.end, stretch.right)
            if not stretch.left:
                unclaimed.append((stretch.start, stretch.end))
        for stretch in stretches(union(unclaimed), withdrawn):
            if stretch.left and stretch.right:
                yield _both_numbers(case, stretch.start, stretch.end)
            elif stretch.left:
                yield from _unclaimed(case, stretch.start, stretch.end)
    yield from judge_silence(evidence, policy, now_ms)


def _cases(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[_Case]:
    claims: defaultdict[Identity, list[Claim]] = defaultdict(list)
    counted: defaultdict[Identity, list[Counted]] = defaultdict(list)
    for claim in evidence.claims:
        claims[Identity(claim.partition, claim.producer_id, claim.producer_epoch)].append(claim)
    for each in evidence.datacenter_spans:
        counted[Identity(each.partition, each.span.producer_id, each.span.producer_epoch)].append(each)
    for identity in sorted(claims.keys() | counted.keys()):
        yield _Case(identity, claims[identity], counted[identity], evidence, policy, now_ms)


def _missing(case: _Case, start: int, end: int) -> Finding:
    reported_ms = max(
        each.reported_ms
        for each in case.claims
        if each.first_sequence < end and start <= each.last_sequence and not each.withdrawn
    )
    missing = _Missing(start, end, reported_ms, *_neighbours(case, start))
    status, why = _why_missing(case, missing)
    where = wording.addresses(missing.after, missing.before)
    why += f" ({where})" if where else " (nothing of this producer and hour is there)"
    return _finding(case, status, "handed over by", why, start, end, (missing.after, missing.before))


def _why_missing(case: _Case, missing: _Missing) -> tuple[Status, str]:
    """The verdict on missing numbers: first whether all was looked at, then whether they can still come."""
    dc, beat = case.evidence.datacenter, case.place.datacenter_beat
    young = case.now_ms - missing.reported_ms < case.policy.delay_ms
    pending = (Status.PENDING, f"have not been seen in {dc}'s log yet")
    if beat is None:
        if young:
            return pending
        why = f"{dc}'s auditor has said nothing about that partition; is it running?"
        return Status.UNKNOWN, f"were never counted: {why}"
    unseen = _unseen(case, missing, beat)
    if unseen is not None:
        return pending if young and not unseen[1] else (Status.UNKNOWN, unseen[0])
    if _is_passed(case, missing) or _is_over(case, missing, beat):
        return Status.LOST, f"never reached {dc}'s log"
    if young:
        return pending
    if beat.at_ms < missing.reported_ms + case.policy.delay_ms:
        return (
            Status.UNKNOWN,
            f"have not been seen: {dc}'s auditor is silent since {wording.instant(beat.at_ms)}",
        )
    if beat.counted_to_address < beat.end_address:
        progress = f"has counted to address {beat.counted_to_address} of {beat.end_address}"
        return Status.UNKNOWN, f"have not been seen: {dc}'s auditor {progress}"
    return Status.LOST, f"never reached {dc}'s log"


def _unseen(case: _Case, missing: _Missing, beat: Beat) -> tuple[str, bool] | None:
    """Why the place where they would be was not wholly looked at, and whether it never will be."""
    place, dc = case.place, case.evidence.datacenter
    low = missing.after
    if low is None:
        low = place.datacenter_cover[0][0] if place.datacenter_cover else 0
    high = beat.counted_to_address if missing.before is None else missing.before
    for gap in place.datacenter_gaps:
        if gap.start < high and low < gap.end:
            where = f"addresses {gap.start} to {gap.end}, which {dc}'s auditor could not count"
            return f"may lie in {where}: {gap.reason}", True
    if low < high and not covers(place.datacenter_cover, low, high):
        why = f"not all of addresses {low} to {high} is counted"
        return f"may lie where a tally of {dc}'s auditor is missing: {why}", False
    return None


def _is_passed(case: _Case, missing: _Missing) -> bool:
    """Whether the log goes on behind them, and their publisher has had its time to say that it renumbered
    them.
    """
    partition, producer_id, epoch = case.identity
    passed = case.evidence.latest.get((partition, producer_id), (-1, -1)) > (epoch, missing.end - 1)
    life = case.evidence.life_of(producer_id)
    said_all = life is not None and life.closed and life.last_ms >= missing.reported_ms
    return passed and (said_all or case.now_ms - missing.reported_ms >= case.policy.report_grace_ms)


def _is_over(case: _Case, missing: _Missing, beat: Beat) -> bool:
    """Whether their publisher has ended in order, and all of the log was counted after that."""
    life = case.evidence.life_of(case.identity.producer_id)
    if life is None or not life.closed or life.last_ms < missing.reported_ms:
        return False
    counted_all = beat.counted_to_address >= beat.end_address
    return counted_all and beat.at_ms >= life.last_ms + BEAT_STALE_MAX_MS


def _neighbours(case: _Case, start: int) -> tuple[int | None, int | None]:
    """The end address of what precedes the missing numbers in the log, and the start of what follows them."""
    here = (case.identity.producer_epoch, start)
    before: list[int] = []
    following: list[int] = []
    for each in case.evidence.datacenter_spans:
        span = each.span
        if (each.partition, span.producer_id) != case.identity[:2]:
            continue
        if (span.producer_epoch, span.first_sequence) < here:
            before.append(span.end_address)
        else:
            following.append(span.first_address)
    return max(before, default=None), min(following, default=None)


def _repeated(case: _Case, start: int, end: int, times: int) -> Finding:
    spans = case.spans_with(start, end)
    extent = _extent(spans)
    why = f"are {times} times in {case.evidence.datacenter}'s log ({wording.addresses(*extent)})"
    return _finding(case, Status.DUPLICATED, "from", why, start, end, extent, (end - start) * (times - 1))


def _both_numbers(case: _Case, start: int, end: int) -> Finding:
    extent = _extent(case.spans_with(start, end))
    why = (
        f"are in {case.evidence.datacenter}'s log ({wording.addresses(*extent)}) although the producer "
        "gave them "
        "new numbers and sent them again"
    )
    return _finding(case, Status.DUPLICATED, "from", why, start, end, extent)


def _unclaimed(case: _Case, start: int, end: int) -> Iterator[Finding]:
    reporting = case.evidence.life_of(case.identity.producer_id) is not None
    if not reporting and case.policy.accepts_foreign(case.evidence.topic):
        return
    spans = case.spans_with(start, end)
    extent = _extent(spans)
    report = "that its reports do not mention" if reporting else "without any producer report"
    why = f"are in {case.evidence.datacenter}'s log {report} ({wording.addresses(*extent)})"
    yield _finding(case, _status_of_unreported(case, spans), "from", why, start, end, extent)


def _anonymous(case: _Case) -> Iterator[Finding]:
    if case.policy.accepts_foreign(case.evidence.topic):
        return
    count = sum(each.span.record_count for each in case.counted)
    extent = _extent(case.counted)
    yield Finding(
        _status_of_unreported(case, case.counted),
        PRODUCER_HOP,
        f"{wording.events(count, case.evidence)}, from producers without an id, are in partition "
        f"{case.identity.partition} of {case.evidence.datacenter}'s log without any producer report "
        f"({wording.addresses(*extent)})",
        record_count=count,
        partition=case.identity.partition,
        after_address=extent[0],
        before_address=extent[1],
    )


def _status_of_unreported(case: _Case, spans: list[Counted]) -> Status:
    age_ms = case.now_ms - max(each.counted_ms for each in spans)
    return Status.PENDING if age_ms < case.policy.delay_ms else Status.UNKNOWN


def _extent(spans: list[Counted]) -> tuple[int, int]:
    return min(each.span.first_address for each in spans), max(each.span.end_address for each in spans)


def _finding(
    case: _Case,
    status: Status,
    verb: str,
    why: str,
    start: int,
    end: int,
    extent: tuple[int | None, int | None],
    record_count: int | None = None,
) -> Finding:
    partition, producer_id, epoch = case.identity
    life = case.evidence.life_of(producer_id)
    count = end - start if record_count is None else record_count
    who = wording.producer(case.evidence, producer_id)
    which = wording.sequences(start, end - 1, partition)
    return Finding(
        status,
        PRODUCER_HOP,
        f"{wording.events(count, case.evidence)}, {verb} {who}, {which}, {why}",
        record_count=count,
        partition=partition,
        producer_id=producer_id,
        producer_epoch=epoch,
        service=life.service if life else None,
        server=life.server if life else None,
        sequences=(start, end - 1),
        after_address=extent[0],
        before_address=extent[1],
    )
