"""The verdict on an hour: evidence and policy in, status and findings out. Pure: the time is an argument.

A tier that did not report is never taken for a tier without events. A loss and a duplicate never cancel: the
tiers are compared by sequence numbers, addresses and distinct offsets, not by totals; and where these agree,
by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.audit import phrases
from headrace.audit.evidence import Evidence
from headrace.audit.findings import (
    HOPS,
    LOAD_HOP,
    MIRROR_HOP,
    PRODUCER_HOP,
    Counts,
    Finding,
    Policy,
    Verdict,
    worst,
)
from headrace.audit.incarnations import judge_between, of_earlier_topic
from headrace.audit.topic.acceptances import sort_out
from headrace.audit.topic.doubled import removed_count
from headrace.audit.verdicts.hop_content import judge_copied, judge_loaded, judge_sent
from headrace.audit.verdicts.hop_files import judge_files
from headrace.audit.verdicts.hop_load import judge_load_hop
from headrace.audit.verdicts.hop_mirror import judge_mirror_hop, taken_counts
from headrace.audit.verdicts.hop_producer import judge_producer_hop

_JUDGES = {PRODUCER_HOP: judge_producer_hop, MIRROR_HOP: judge_mirror_hop, LOAD_HOP: judge_load_hop}
_CONTENT_JUDGES = {PRODUCER_HOP: judge_sent, MIRROR_HOP: judge_copied, LOAD_HOP: judge_loaded}


def judge(evidence: Evidence, policy: Policy, now_ms: int) -> Verdict:
    """Returns the verdict at `now_ms` (wall clock, ms): the worst of the hops that the policy judges."""
    findings = _findings(evidence, policy, now_ms)
    for earlier in evidence.earlier:
        findings += (of_earlier_topic(each, earlier) for each in _findings(earlier, policy, now_ms))
    if PRODUCER_HOP in policy.hops:
        findings += judge_between(evidence, policy, now_ms)
    if LOAD_HOP in policy.hops:
        findings += judge_files(evidence)
    place = (evidence.topic, evidence.datacenter, evidence.hour_ms)
    findings, accepted = sort_out(findings, evidence.acceptances, *place)
    findings = [replace(each, text=phrases.agreeing(each.text)) for each in findings]
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
        accepted=tuple(accepted),
        notes=tuple(dict.fromkeys(phrases.agreeing(each) for each in _notes(evidence))),
    )


def _findings(evidence: Evidence, policy: Policy, now_ms: int) -> list[Finding]:
    findings: list[Finding] = []
    for hop in HOPS:
        if hop in policy.hops:
            findings += _JUDGES[hop](evidence, policy, now_ms)
            findings += _CONTENT_JUDGES[hop](evidence)
    return findings


def _notes(evidence: Evidence) -> Iterator[str]:
    """Yields what explains the counts of an hour and is no problem."""
    for partition, count in sorted(taken_counts(evidence).items()):
        taken = evidence.partition(partition).taken_from_source()
        where = phrases.addresses(taken[0][0], taken[-1][1])
        yield (
            f"{phrases.events(count, evidence)}, partition {partition}, lie in a gap of the copy ({where}); "
            f"the warehouse has them from {evidence.datacenter}'s own log"
        )
    if count := removed_count(evidence):
        yield (
            f"{phrases.events(count, evidence)}, were sent again as other events, by their guids; the "
            "warehouse has each once"
        )
    for handover in evidence.handovers:
        publisher = evidence.publishers.get(handover.publisher)
        if publisher is not None and publisher.skew_ms:
            way = "ahead" if publisher.skew_ms > 0 else "behind"
            events = phrases.events(handover.handed_over_count, evidence)
            yield (
                f"the clock of service {publisher.service} on {publisher.server} is {way} by "
                f"{phrases.duration(abs(publisher.skew_ms))}, compared with that of {evidence.datacenter}'s "
                f"auditor: its {events}, may have wrong times"
            )


def count(evidence: Evidence) -> Counts:
    """Returns what each tier counted of this hour, deleted topics of the name included."""
    logs = (*evidence.earlier, evidence)
    written = [rows for each in logs for rows in each.rows.values()]
    return Counts(
        producer=sum(handover.handed_over_count for handover in evidence.handovers),
        datacenter=sum(counted.span.record_count for each in logs for counted in each.datacenter_spans),
        analysis=sum(counted.span.record_count for each in logs for counted in each.analysis_spans),
        warehouse=sum(rows.rows for rows in written),
        dead_lettered=sum(rows.dead_lettered for rows in written),
    )
