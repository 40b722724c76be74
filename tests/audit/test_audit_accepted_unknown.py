"""What is unknown, and accepted, stays accepted without news, and nothing else is covered by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fix_audit_incarnations import TIERS, log_of
from fix_audit_world import (
    BEAT_MS,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Status, Verdict
from headrace.audit.repair.repairing import judged
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.acceptances import AcceptanceRecord, acceptable
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, ReceivedRecord

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A) for index in range(6)]
LOG = log_of(*BATCHES)
SAID_MS = NOW_MS - 1_000


@pytest.fixture
def store() -> Iterator[AuditStore]:
    store = AuditStore("sqlite://")
    yield store
    store.close()


def verdict_of(store: AuditStore, now_ms: int = NOW_MS) -> Verdict:
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=now_ms)
    return verdict


def accept_unknown(store: AuditStore) -> Verdict:
    """Accepts what is unknown, as `headrace audit accept --unknown` does; returns the verdict then."""
    found = acceptable(verdict_of(store), unknown=True)
    texts = tuple(finding.text for finding in found.values())
    said = AcceptanceRecord(TOPIC, HOUR_A, tuple(found), texts, "ada@host-1", "it burned down")
    store.fold([received(said, time_ms=SAID_MS)])
    return verdict_of(store)


def counted(tier: str, log: PartitionBytes) -> list[ReceivedRecord]:
    """What an auditor says that counted a log batch by batch."""
    tallies = [log.tally(tier, 0, at, at + 1) for at in range(len(log.cuts) - 1)]
    return [*map(received, tallies), received(heartbeat(tier, {0: log}), time_ms=BEAT_MS)]


def stays_accepted(store: AuditStore) -> None:
    """Nothing is merged yet; then all is, an hour later; there is no news."""
    accept_unknown(store)
    for _ in range(2):
        verdict = verdict_of(store)
        assert (verdict.status, len(verdict.accepted)) == (Status.COMPLETE, 1), verdict.findings
        upkeep.merge(store, NOW_MS)


def test_numbers_that_no_report_mentions_stay_accepted_when_old_tallies_are_merged(store: AuditStore) -> None:
    reported = received(report_of("publisher-7", [*BATCHES[:2], *BATCHES[3:]]))
    tallies = [each for tier in TIERS for each in counted(tier, LOG)]
    store.fold([reported, *tallies, received(load_of({0: LOG}))])
    (finding,) = verdict_of(store).findings
    assert (finding.status, finding.hop, finding.sequences) == (Status.UNKNOWN, PRODUCER_HOP, (20, 29))
    stays_accepted(store)


def test_what_was_never_copied_stays_accepted_when_old_tallies_are_merged(store: AuditStore) -> None:
    """Its datacenter, with the mirror's source, is gone for good."""
    half = log_of(*BATCHES[:3])
    told = [*counted(DATACENTER_TIER, LOG), *counted(ANALYSIS_TIER, half), received(load_of({0: half}))]
    store.fold([received(report_of("publisher-7", BATCHES)), *told])
    (finding,) = verdict_of(store).findings
    assert (finding.status, finding.hop, finding.sequences) == (Status.UNKNOWN, MIRROR_HOP, (30, 59))
    stays_accepted(store)
