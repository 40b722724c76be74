"""What is unknown, and accepted, stays accepted without news, and nothing else is covered by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fix_audit_incarnations import TIERS, log_of
from fix_audit_world import (
    BEAT_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    everything_reported,
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
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HandoverTally,
    ProducerReport,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord, asked_by

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


def waiting(publisher: str, *, closed: bool = False) -> list[ReceivedRecord]:
    """A publisher that says for long that five events wait in its client, and is then heard no more."""
    waits = HandoverTally(0, TOPIC, HOUR_A, 5, False, (), ())
    first = ProducerReport(publisher, REPORTED_MS, 1, False, (waits,))
    last = ProducerReport(publisher, REPORTED_MS, 2, closed, ())
    return [received(first), received(last, time_ms=BEAT_MS)]


@pytest.mark.parametrize(("closed", "status"), [(False, Status.UNKNOWN), (True, Status.LOST)])
def test_as_many_events_of_another_publisher_are_not_covered(
    store: AuditStore, closed: bool, status: Status
) -> None:
    """Two processes of one service on one host, or one that was started again."""
    store.fold([*everything_reported(BATCHES, {0: LOG}), *waiting("p-1", closed=closed)])
    assert verdict_of(store).status is status
    assert accept_unknown(store).status is Status.COMPLETE
    store.fold(waiting("p-2", closed=closed))
    verdict = verdict_of(store)
    assert (verdict.status, len(verdict.findings), len(verdict.accepted)) == (status, 1, 1)


def counting(publisher: str, count: int, *, closed: bool = False) -> ReceivedRecord:
    """A publisher that does not know the numbers of its events, and says how many it had."""
    counts = HandoverTally(0, TOPIC, HOUR_A, count, closed, (), ())
    return received(ProducerReport(publisher, REPORTED_MS, 1, closed, (counts,), counts_only=True))


def test_as_many_events_beyond_the_counts_are_not_covered_by_those_that_waited(store: AuditStore) -> None:
    store.fold([*everything_reported(BATCHES, {0: LOG})[1:], counting("p-1", 70)])
    store.fold([received(ProducerReport("p-1", REPORTED_MS, 2, False, (), True), time_ms=BEAT_MS)])
    (finding,) = verdict_of(store).findings
    assert (finding.status, finding.record_count) == (Status.UNKNOWN, 10)
    assert accept_unknown(store).status is Status.COMPLETE
    # Another program publishes 20, some perhaps once more, and reports nothing.
    more = log_of(*BATCHES, Batch(0, 8, 0, 0, 20, HOUR_A))
    tallies = [received(more.tally(tier, 0, 6, 7)) for tier in TIERS]
    beats = [received(replace(heartbeat(tier, {0: more}), beat=2), time_ms=BEAT_MS) for tier in TIERS]
    part = LoadedPartition(0, LOG.end, more.end, tuple(log_of(Batch(0, 8, 0, 0, 20, HOUR_A)).hours()))
    store.fold([*tallies, *beats, received(LoadReport(WAREHOUSE, TOPIC, 2, REPORTED_MS, (part,)))])
    (beyond,) = verdict_of(store).findings
    assert (beyond.status, beyond.record_count) == (Status.UNKNOWN, 10) and "beyond the 70" in beyond.text


def test_what_only_the_copy_has_is_not_covered_by_what_it_once_lacked(store: AuditStore) -> None:
    half = log_of(*BATCHES[:3])
    told = [*counted(DATACENTER_TIER, LOG), *counted(ANALYSIS_TIER, half), received(load_of({0: half}))]
    store.fold([received(report_of("publisher-7", [])), *told])
    accept_unknown(store)
    # The copy has them now; the source was to count again, and is gone.
    again = RecountRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, half.end, LOG.end, asked_by("me@host"))
    store.fold([received(again, time_ms=BEAT_MS), *counted(ANALYSIS_TIER, LOG)])
    found = [each for each in verdict_of(store).findings if each.hop == MIRROR_HOP]
    assert [(each.status, each.sequences) for each in found] == [(Status.UNKNOWN, (30, 59))], found
