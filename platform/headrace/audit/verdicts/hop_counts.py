"""Publishers that report counts without sequence numbers: their events against the log, by count. Pure.

A client of another make does not tell its application which sequence numbers its records got. What such
publishers counted of an hour is compared with the records of the log that no other publisher claims. Two
things keep a loss and a duplicate from cancelling: a repeated sequence number is a finding of its own
(`audit.verdicts.hop_producer`), and records without a producer id, in which a repetition cannot be seen, stay
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace.audit import phrases
from headrace.audit.evidence import Evidence, Handover
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.times import END_STALE_MAX_MS
from headrace.audit.topic.records import DATACENTER_TIER

SERVICES_SHOWN_MAX: Final = 5


def judge_counts(
    evidence: Evidence, unreported: Sequence[Finding], policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Yields what remains of `unreported`, the findings about records that no publisher's ranges mention.

    Nothing remains of a topic that is counted from the log on. A count that exceeds the log is a loss there,
    too.
    """
    counting = [each for each in evidence.handovers if is_counts_only(evidence, each)]
    logged = sum(finding.record_count or 0 for finding in unreported)
    counted = sum(handover.handed_over_count for handover in counting)
    if counted > logged:
        yield _missing(evidence, counting, (counted, logged), policy, now_ms)
    if evidence.is_counted_from_log:
        return
    if not counting:
        yield from unreported
        return
    for finding in unreported:
        if finding.producer_id is None:
            text = f"{finding.text}; counts cannot tell a loss and a duplicate of them apart: set"
            yield replace(finding, text=f"{text} enable.idempotence=true in the producer")
    if counted < logged:
        status = max((each.status for each in unreported), key=lambda status: status.severity)
        yield Finding(
            status,
            PRODUCER_HOP,
            f"{phrases.events(logged - counted, evidence)}, are in {evidence.datacenter}'s log beyond the "
            f"{counted} that {_services(evidence, counting)} counted",
            record_count=logged - counted,
            about="beyond the counts",
        )


def is_counts_only(evidence: Evidence, handover: Handover) -> bool:
    """Whether a publisher reports counts without sequence numbers."""
    publisher = evidence.publishers.get(handover.publisher)
    return publisher is not None and publisher.counts_only


def _missing(
    evidence: Evidence, counting: list[Handover], counts: tuple[int, int], policy: Policy, now_ms: int
) -> Finding:
    counted, logged = counts
    status, predicate = _status_of_missing(evidence, counting, policy, now_ms)
    numbers = f"they counted {counted}, the log holds {logged} that no other publisher claims"
    return Finding(
        status,
        PRODUCER_HOP,
        f"{phrases.events(counted - logged, evidence)}, handed over to {_services(evidence, counting)}, "
        f"{predicate} ({numbers})",
        record_count=counted - logged,
    )


def _status_of_missing(
    evidence: Evidence, counting: list[Handover], policy: Policy, now_ms: int
) -> tuple[Status, str]:
    """Returns the status and predicate of missing events; lost once they can no longer arrive.

    They cannot once every publisher has ended its count, and the whole log was counted after that.
    """
    datacenter = evidence.datacenter
    reported_ms = max(handover.reported_ms for handover in counting)
    is_recent = now_ms - reported_ms < policy.delay_ms
    if not is_recent and any(corrupt.tier == DATACENTER_TIER for corrupt in evidence.corrupt):
        return Status.CORRUPT, f"may lie in a corrupt place of {datacenter}'s log"
    if not is_recent and any(place.datacenter.gaps for place in evidence.partitions.values()):
        return Status.UNKNOWN, f"may lie in addresses that {datacenter}'s auditor could not count"
    open_since_ms = [
        evidence.publishers[handover.publisher].last_ms
        for handover in counting
        if not (handover.final or evidence.publishers[handover.publisher].closed)
    ]
    made_again_ms = evidence.made_again_ms
    if made_again_ms is not None and any(
        evidence.publishers[handover.publisher].started_ms < made_again_ms for handover in counting
    ):
        earlier = "may have been in the log of the topic that was deleted and made again under its name"
        return (Status.PENDING if is_recent else Status.UNKNOWN), earlier
    if open_since_ms:
        if now_ms - min(open_since_ms) < policy.delay_ms:
            return Status.PENDING, f"wait in the client, or have not been seen in {datacenter}'s log yet"
        return Status.UNKNOWN, "waited in the client when it last reported"
    if _is_counted_since(evidence, reported_ms):
        return Status.LOST, f"never reached {datacenter}'s log"
    if is_recent:
        return Status.PENDING, f"have not been seen in {datacenter}'s log yet"
    return Status.UNKNOWN, f"have not been seen: {datacenter}'s auditor has not counted the whole log since"


def _is_counted_since(evidence: Evidence, reported_ms: int) -> bool:
    """Whether every partition's log was counted to its end after the last report."""
    heartbeats = [place.datacenter.heartbeat for place in evidence.partitions.values()]
    return bool(heartbeats) and all(
        heartbeat is not None
        and heartbeat.at_ms >= reported_ms + END_STALE_MAX_MS
        and heartbeat.counted_to_address >= heartbeat.end_address
        for heartbeat in heartbeats
    )


def _services(evidence: Evidence, counting: list[Handover]) -> str:
    names = sorted({evidence.publishers[handover.publisher].service for handover in counting})
    shown = ", ".join(names[:SERVICES_SHOWN_MAX])
    more = f" and {len(names) - SERVICES_SHOWN_MAX} more" if len(names) > SERVICES_SHOWN_MAX else ""
    return f"service{'s' if len(names) > 1 else ''} {shown}{more}"
