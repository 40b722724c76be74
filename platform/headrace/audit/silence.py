"""No word is not a good word: what publishers and auditors have not said about an hour. Pure.

Events that wait in a client or were dropped there before they had a number, publishers that stopped without
closing, tallies that have not arrived, auditors that went silent, counts that contradict each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.audit import wording
from headrace.audit.evidence import (
    PRODUCER_HOP,
    Evidence,
    Finding,
    Handover,
    PartitionEvidence,
    Policy,
    Status,
)
from headrace.audit.intervals import subtract, union


def judge_silence(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Findings of the first hop that are about words missing, not about records missing."""
    for handover in evidence.handovers:
        if handover.handed_over_count > handover.sequenced_count:
            yield _unsequenced(handover, evidence, policy, now_ms)
    yield from _vanished_publishers(evidence, policy, now_ms)
    for partition, place in sorted(evidence.partitions.items()):
        for conflict in place.conflicts:
            yield Finding(Status.UNKNOWN, PRODUCER_HOP, conflict, partition=partition)
        yield from _tallies_missing(partition, place, evidence, policy, now_ms)
    yield from _silent_auditor(evidence, policy, now_ms)


def _unsequenced(handover: Handover, evidence: Evidence, policy: Policy, now_ms: int) -> Finding:
    count = handover.handed_over_count - handover.sequenced_count
    life = evidence.publishers.get(handover.publisher)
    service, server = (life.service, life.server) if life else (None, None)
    if handover.final or (life is not None and life.closed):
        status, why = Status.LOST, "were dropped in the client before they had a sequence number"
    elif life is not None and now_ms - life.last_ms < policy.delay_ms:
        status, why = Status.PENDING, "wait in the client"
    else:
        status, why = Status.UNKNOWN, "waited in the client when it was last heard of"
    return Finding(
        status,
        PRODUCER_HOP,
        f"{wording.events(count, evidence)}, handed over to service {service} on {server}, {why}",
        record_count=count,
        service=service,
        server=server,
    )


def _vanished_publishers(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Publishers that stopped without closing while they were at work on this hour."""
    last_at_work_ms: defaultdict[str, int] = defaultdict(int)
    for handover in evidence.handovers:
        at_ms = max(last_at_work_ms[handover.publisher], handover.reported_ms)
        last_at_work_ms[handover.publisher] = at_ms
    for publisher, at_ms in sorted(last_at_work_ms.items()):
        life = evidence.publishers.get(publisher)
        if life is None or life.closed or now_ms - life.last_ms < policy.delay_ms:
            continue
        died_in_this_hour = evidence.hour_ms <= life.last_ms < evidence.end_ms
        died_at_work_on_it = at_ms > life.last_ms - policy.report_grace_ms
        if died_in_this_hour or died_at_work_on_it:
            yield Finding(
                Status.UNKNOWN,
                PRODUCER_HOP,
                f"service {life.service} on {life.server}, {evidence.datacenter}, last reported at "
                f"{wording.instant(life.last_ms)} and never closed: what else it took over for "
                f"{evidence.topic}, {wording.hour(evidence.hour_ms)}, is not known",
                service=life.service,
                server=life.server,
            )


def _tallies_missing(
    partition: int, place: PartitionEvidence, evidence: Evidence, policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Tallies that should be there, behind the first record of this hour."""
    first = min(
        (each.span.first_address for each in evidence.datacenter_spans if each.partition == partition),
        default=None,
    )
    beat = place.datacenter_beat
    if first is None or beat is None:
        return
    known = union((*place.datacenter_cover, *((hole.start, hole.end) for hole in place.datacenter_gaps)))
    for low, high in subtract([(first, beat.counted_to_address)], known):
        yield Finding(
            Status.UNKNOWN if now_ms - beat.at_ms >= policy.delay_ms else Status.PENDING,
            PRODUCER_HOP,
            f"{evidence.datacenter}'s tally of {evidence.topic}, partition {partition}, addresses {low} to "
            f"{high}, "
            "has not arrived",
            partition=partition,
            after_address=low,
            before_address=high,
        )


def _silent_auditor(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    beats = [each.datacenter_beat for each in evidence.partitions.values() if each.datacenter_beat]
    last_ms = max((beat.at_ms for beat in beats), default=None)
    silence_ms = min(policy.silence_ms, policy.delay_ms)
    if last_ms is None or last_ms >= min(now_ms - silence_ms, evidence.end_ms):
        return
    yield Finding(
        Status.UNKNOWN if last_ms < now_ms - policy.delay_ms else Status.PENDING,
        PRODUCER_HOP,
        f"{evidence.datacenter}'s auditor has said nothing since {wording.instant(last_ms)}, so nobody "
        "knows what "
        f"{evidence.topic}, {wording.hour(evidence.hour_ms)}, holds; is it running, and is _audit mirrored?",
    )
