"""The verdict on an hour: evidence and policy in, status and findings out. Pure: the time is an argument.

A tier that did not report is never taken for a tier without events. A loss and a duplicate never cancel: the
tiers are compared by sequence numbers, addresses and distinct offsets, not by totals.
"""

from __future__ import annotations

from headrace.audit.evidence import (
    HOPS,
    LOAD_HOP,
    MIRROR_HOP,
    PRODUCER_HOP,
    Counts,
    Evidence,
    Finding,
    Policy,
    Verdict,
    worst,
)
from headrace.audit.hop_load import judge_load_hop
from headrace.audit.hop_mirror import judge_mirror_hop
from headrace.audit.hop_producer import judge_producer_hop

_JUDGES = {PRODUCER_HOP: judge_producer_hop, MIRROR_HOP: judge_mirror_hop, LOAD_HOP: judge_load_hop}


def judge(evidence: Evidence, policy: Policy, now_ms: int) -> Verdict:
    """Returns the verdict at `now_ms` (wall clock, ms): the worst of the hops that the policy judges."""
    findings: list[Finding] = []
    for hop in HOPS:
        if hop in policy.hops:
            findings += _JUDGES[hop](evidence, policy, now_ms)
    findings.sort(key=lambda finding: (-finding.status.severity, HOPS.index(finding.hop)))
    return Verdict(
        topic=evidence.topic,
        datacenter=evidence.datacenter,
        hour_ms=evidence.hour_ms,
        status=worst(finding.status for finding in findings),
        counts=count(evidence),
        hops={
            hop: worst(finding.status for finding in findings if finding.hop == hop)
            for hop in HOPS
            if hop in policy.hops
        },
        findings=tuple(findings),
        counted_from=evidence.counted_from,
    )


def count(evidence: Evidence) -> Counts:
    """Returns what each tier counted of this hour."""
    written = evidence.rows.values()
    return Counts(
        producer=sum(handover.handed_over_count for handover in evidence.handovers),
        datacenter=sum(counted.span.record_count for counted in evidence.datacenter_spans),
        analysis=sum(counted.span.record_count for counted in evidence.analysis_spans),
        warehouse=sum(rows.rows for rows in written),
        dead_lettered=sum(rows.dead_lettered for rows in written),
    )
