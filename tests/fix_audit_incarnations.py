"""What auditors say of topics that are deleted and made again, and the report on that."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from fix_audit_world import DC, NOW_MS, TOPIC, Batch, PartitionBytes, received
from headrace.audit.findings import Finding, Policy
from headrace.audit.report.report import Report, report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)

TIERS: Final = (DATACENTER_TIER, ANALYSIS_TIER)


def log_of(*batches: Batch) -> PartitionBytes:
    log = PartitionBytes()
    for each in batches:
        log.append(each.encode())
    return log


def said(
    log: PartitionBytes,
    topic_id: str,
    time_ms: int,
    tiers: tuple[str, ...] = TIERS,
    *,
    copy_id: str = "",
) -> list[ReceivedRecord]:
    """What auditors of these tiers say of a log that they have counted. `copy_id`: the id of the topic that
    holds the copy, where it is another one.
    """
    records: list[ReceivedRecord] = []
    for tier in tiers:
        tally = replace(log.tally(tier, 0, 0, len(log.cuts) - 1), topic_id=topic_id)
        here = copy_id if copy_id and tier == ANALYSIS_TIER else topic_id
        place = PartitionPosition(DC, TOPIC, 0, 0, log.end, log.end, here, source_topic_id=topic_id)
        beat = HeartbeatRecord(tier, time_ms, 0, 1, (place,))
        records += [received(tally, time_ms=time_ms), received(beat, time_ms=time_ms)]
    return records


def judged_by(policy: Policy, *records: list[ReceivedRecord], seed: int = 1) -> Report:
    """The report on these records, folded in any order."""
    store, every = AuditStore("sqlite://"), [each for some in records for each in some]
    random.Random(seed).shuffle(every)
    try:
        store.fold(every)
        return report(store, TOPIC, policy=policy, now_ms=NOW_MS)
    finally:
        store.close()


def findings_of(found: Report) -> list[Finding]:
    return [finding for verdict in found.verdicts for finding in verdict.findings]
