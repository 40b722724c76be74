"""What is unknown, and accepted, stays accepted without news, and nothing else is covered by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from fix_audit_incarnations import TIERS, log_of, said
from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
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
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Status, Verdict
from headrace.audit.repair.repairing import judged
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.acceptances import AcceptanceRecord, acceptable
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.logs_read import LastRead, LogsRead
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HandoverTally,
    HeartbeatRecord,
    PartitionPosition,
    ProducerReport,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord, asked_by
from headrace.coordination.declared import ANY, Change

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A) for index in range(6)]
LOG = log_of(*BATCHES)
SAID_MS = NOW_MS - 1_000
COPY_ID = str(UUID(int=1))


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


IN_LOG = ("_audit", 0)


def beat_at(time_ms: int, datacenter: str = DC, topic: str = TOPIC) -> ReceivedRecord:
    place = PartitionPosition(datacenter, topic, 0, 0, LOG.end, LOG.end, source_topic_id=COPY_ID)
    beat = HeartbeatRecord(DATACENTER_TIER, time_ms, 0, 1, (place,))
    return received(beat, time_ms=time_ms, datacenter=datacenter)._replace(log=IN_LOG)


def test_a_publisher_that_died_stays_accepted_when_its_auditors_clock_is_set_back(store: AuditStore) -> None:
    """Its own clock seemed to be behind, as long as the auditor's was ahead."""
    ahead_ms, last = REPORTED_MS + HOUR_MS, received(report_of("publisher-7", BATCHES, closed=False))
    store.fold(everything_reported(BATCHES, {0: LOG})[1:])
    for each in (beat_at(ahead_ms), last._replace(log=IN_LOG), beat_at(ahead_ms + 10_000)):
        store.fold([each])
    assert "never closed" in verdict_of(store).findings[0].text
    assert accept_unknown(store).status is Status.COMPLETE
    store.fold([beat_at(REPORTED_MS + 20_000)])
    assert verdict_of(store).status is Status.COMPLETE


def test_a_deleted_audit_topic_stays_accepted_when_the_present_one_is_heard(store: AuditStore) -> None:
    heard_ms, seen_ms = HOUR_A + BUCKET_MS, HOUR_A + 2 * BUCKET_MS
    old, new = ({IN_LOG: LastRead(name, 8, "")} for name in ("old", "new"))
    store.fold(everything_reported(BATCHES, {0: LOG}))
    store.fold([beat_at(heard_ms)], {IN_LOG: 9}, logs=LogsRead(old), seen_ms=heard_ms)
    store.fold([], {IN_LOG: 9}, logs=LogsRead(new), seen_ms=seen_ms)
    assert "was deleted and made again" in verdict_of(store).findings[0].text
    assert accept_unknown(store).status is Status.COMPLETE
    store.fold([beat_at(heard_ms + 60_000)], {IN_LOG: 20}, logs=LogsRead(new), seen_ms=seen_ms)
    assert verdict_of(store).status is Status.COMPLETE


def test_a_deleted_topic_stays_accepted_when_its_auditors_clock_turns_out_to_be_ahead(
    store: AuditStore,
) -> None:
    last_ms = HOUR_A + BUCKET_MS
    beat = beat_at(last_ms)
    deleted = TopicDeclaration(TOPIC, COPY_ID, (Change(ANY),), deleted=True)
    store.fold([beat, received(TopicDeclaration(TOPIC, COPY_ID, (Change(ANY),)), time_ms=HOUR_A)])
    store.fold([received(deleted, time_ms=last_ms + 60_000)], seen_ms=NOW_MS)
    tally = replace(LOG.tally(DATACENTER_TIER, 0, 0, 1), topic_id=COPY_ID)
    store.fold([received(tally, time_ms=last_ms)], seen_ms=NOW_MS)
    before = [each.about for each in verdict_of(store).findings if "was deleted" in each.text]
    store.fold([beat_at(NOW_MS + HOUR_MS, topic="other")], seen_ms=NOW_MS)
    after = [each.about for each in verdict_of(store).findings if "was deleted" in each.text]
    assert before == after and len(before) == 1


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_nobody_will_count_any_more_of_a_deleted_topic_can_be_accepted(
    store: AuditStore, partitions: int
) -> None:
    """A datacenter is gone whose auditor lagged in one partition, or could not read it. The hour waited for
    that auditor, and was never sealed.
    """
    last_ms = HOUR_A + BUCKET_MS
    lags = PartitionPosition(DC, TOPIC, 0, 0, LOG.cuts[4], LOG.end, source_topic_id=COPY_ID)
    other = PartitionPosition(DC, TOPIC, 1, 1, 0, 0, source_topic_id=COPY_ID)
    told: list[tuple[int, object]] = [
        (HOUR_A, TopicDeclaration(TOPIC, COPY_ID, (Change(ANY),))),
        (last_ms, replace(LOG.tally(DATACENTER_TIER, 0, 0, 4), topic_id=COPY_ID)),
        (last_ms, HeartbeatRecord(DATACENTER_TIER, 1, 0, 1, (lags,))),
        (HOUR_A + 2 * HOUR_MS, HeartbeatRecord(DATACENTER_TIER, 2, 0, 1, (other,) * (partitions - 1))),
    ]
    store.fold([received(each, time_ms=time_ms) for time_ms, each in told])

    def standing() -> list[str]:
        return [each.text for each in verdict_of(store).findings if each.hop == PRODUCER_HOP]

    assert standing()
    accept_unknown(store)
    assert standing(), "its auditor may come back"
    store.fold([received(TopicDeclaration(TOPIC, COPY_ID, (), deleted=True), time_ms=HOUR_A + 3 * HOUR_MS)])
    assert standing()
    accept_unknown(store)
    assert standing() == []
    # It comes back, after all.
    store.fold([received(HeartbeatRecord(DATACENTER_TIER, 3, 0, 1, (lags,)), time_ms=HOUR_A + 4 * HOUR_MS)])
    assert len(standing()) == 1


def test_as_many_events_in_a_topic_that_was_made_again_are_not_covered(store: AuditStore) -> None:
    """The same file was published again, by a producer without an id: to the same addresses."""
    log = log_of(Batch(0, -1, -1, -1, 10, HOUR_A))
    store.fold(said(log, "first", REPORTED_MS))
    accept_unknown(store)
    store.fold(said(log, "second", BEAT_MS))
    (found,) = (each for each in verdict_of(store).findings if each.hop == PRODUCER_HOP)
    assert found.record_count == 10 and len(verdict_of(store).accepted) == 1
    verdict = accept_unknown(store)
    assert len(verdict.accepted) == 2 and all(each.hop == LOAD_HOP for each in verdict.findings)
    store.fold(said(log, "third", BEAT_MS + HOUR_MS))
    later = {each.finding.about for each in verdict_of(store).accepted}
    assert later == {each.finding.about for each in verdict.accepted}, "what was accepted stays so"
