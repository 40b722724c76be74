"""What publishers handed over, and their datacenter's log does not have: pending, lost, or unknown. Pure.

Missing records are lost only once they cannot arrive any more. There are three proofs: the log holds a later
sequence number of the same producer and partition (the broker accepts them in order) and the publisher has
had time to report new numbers; or the publisher has closed, and the whole log was counted after that; or the
delay has passed and the datacenter's auditor has counted since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from headrace.audit import phrases
from headrace.audit.evidence import Heartbeat
from headrace.audit.findings import Finding, Status
from headrace.audit.intervals import covers, union
from headrace.audit.times import END_STALE_MAX_MS
from headrace.audit.verdicts.corruption import nameless_between
from headrace.audit.verdicts.producer_case import Case, finding_of

STARTED_SLACK_MS: Final = 5 * 60_000  # clocks that are less off are not put right (`audit.store.clocks`)


class _Missing(NamedTuple):
    """Claimed sequences [start, end) that are not in the log; they would lie between `after` and `before`."""

    start: int
    end: int
    reported_ms: int
    after: int | None
    before: int | None


def judge_missing(case: Case, start: int, end: int) -> Finding:
    """Returns the finding on claimed sequences [start, end), which are in no batch that can be read."""
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
    found = finding_of(case, status, "handed over by", predicate, start, end, place)
    return replace(found, since_ms=reported_ms)


def _status_of_missing(case: Case, missing: _Missing) -> tuple[Status, str]:
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


def _lost(case: Case, missing: _Missing, heartbeat: Heartbeat) -> str:
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


def _uncounted(case: Case, missing: _Missing, heartbeat: Heartbeat) -> tuple[str, bool] | None:
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


def _place(case: Case, missing: _Missing, heartbeat: Heartbeat) -> tuple[int, int]:
    """Returns the addresses [low, high) between which missing records would lie."""
    low = _first_address(case) if missing.after is None else missing.after
    return low, heartbeat.counted_to_address if missing.before is None else missing.before


def _first_address(case: Case) -> int:
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


def _is_proven_overtaken(case: Case, missing: _Missing) -> bool:
    """Whether later sequences are logged, and the publisher has had time to report new numbers."""
    partition, producer_id, epoch = case.identity
    is_overtaken = case.evidence.latest.get((partition, producer_id), (-1, -1)) > (epoch, missing.end - 1)
    publisher = case.evidence.publisher_of(producer_id)
    is_closed = publisher is not None and publisher.closed and publisher.last_ms >= missing.reported_ms
    return is_overtaken and (is_closed or case.now_ms - missing.reported_ms >= case.policy.report_grace_ms)


def _is_counted_after_close(case: Case, missing: _Missing, heartbeat: Heartbeat) -> bool:
    """Whether the publisher has closed, and the whole log was counted after that."""
    publisher = case.evidence.publisher_of(case.identity.producer_id)
    if publisher is None or not publisher.closed or publisher.last_ms < missing.reported_ms:
        return False
    is_counted = heartbeat.counted_to_address >= heartbeat.end_address
    return is_counted and heartbeat.at_ms >= publisher.last_ms + END_STALE_MAX_MS


def _neighbours(case: Case, start: int) -> tuple[int | None, int | None]:
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
