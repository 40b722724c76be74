"""What people accept stays in every report by name, and covers nothing but what they saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    damaged,
    everything_reported,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, Finding, Status
from headrace.audit.repair.repairing import judged
from headrace.audit.report.report import is_complete, report
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.acceptances import AcceptanceRecord, acceptable, digest_of, digests_of
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    HeartbeatRecord,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.validity import check

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(6)]
SAID_MS = NOW_MS - 1_000
DAY_MS = 24 * HOUR_MS
LOG = PartitionBytes()
LOG_WITHOUT_2 = PartitionBytes()
for batch in BATCHES:
    LOG.append(batch.encode())
    if batch is not BATCHES[2]:
        LOG_WITHOUT_2.append(batch.encode())
LOGS, LOGS_WITHOUT_2 = {0: LOG}, {0: LOG_WITHOUT_2}


def store_without(*lost: int) -> AuditStore:
    log = PartitionBytes()
    for index, batch in enumerate(BATCHES):
        if index not in lost:
            log.append(batch.encode())
    store = AuditStore("sqlite://")
    store.fold(everything_reported(BATCHES, {0: log}))
    return store


def acceptance(store: AuditStore, **changes: object) -> AcceptanceRecord:
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    found = acceptable(verdict)
    texts = tuple(finding.text for finding in found.values())
    record = AcceptanceRecord(TOPIC, HOUR_A, tuple(found), texts, "ada@host-1", "the disk died")
    return replace(record, **changes)  # type: ignore[arg-type]


def test_an_accepted_loss_is_in_every_later_report_and_proof() -> None:
    store = store_without(2)
    said = acceptance(store)
    check(received(said), NOW_MS)
    store.fold([received(said, time_ms=SAID_MS)] * 2)
    (verdict,) = report(store, now_ms=NOW_MS).verdicts
    assert (verdict.status, verdict.findings) == (Status.COMPLETE, ())
    ((finding, by),) = verdict.accepted
    assert finding.record_count == 10 and by == ("ada@host-1", SAID_MS, "the disk died")
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).to_json()
    assert proof["complete"] is True
    (named,) = proof["accepted"]
    assert (named["said_by"], named["reason"], named["record_count"]) == ("ada@host-1", "the disk died", 10)
    store.close()


def test_another_loss_in_the_same_hour_is_not_covered() -> None:
    store = store_without(2)
    store.fold([received(acceptance(store), time_ms=SAID_MS)])
    store.close()
    more = store_without(2, 4)
    more.fold([received(acceptance(store_without(2)), time_ms=SAID_MS)])
    (verdict,) = report(more, now_ms=NOW_MS).verdicts
    assert verdict.status is Status.LOST
    assert [finding.sequences for finding in verdict.findings] == [(40, 49)]
    assert len(verdict.accepted) == 1
    more.close()


def test_what_was_accepted_can_be_taken_back_in_any_order() -> None:
    for order in (1, -1):
        store = store_without(2)
        records = [
            received(acceptance(store), time_ms=SAID_MS),
            received(acceptance(store, withdrawn=True), time_ms=SAID_MS + 1),
        ]
        store.fold(records[::order])
        (verdict,) = report(store, now_ms=NOW_MS).verdicts
        assert (verdict.status, verdict.accepted) == (Status.LOST, ())
        store.close()


def test_what_an_auditor_or_a_load_may_still_tell_is_never_accepted() -> None:
    unread = AuditStore("sqlite://")
    records = everything_reported(BATCHES, LOGS)
    early_ms = HOUR_A + HOUR_MS - 1
    unread.fold([each._replace(time_ms=early_ms) if is_beat(each) else each for each in records])
    not_loaded = AuditStore("sqlite://")
    not_loaded.fold([each for each in records if not isinstance(each.record, LoadReport)])
    for store, words in (
        (unread, "auditor has not reported since"),
        (not_loaded, "no load of that partition"),
    ):
        ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
        assert [finding.status for finding in verdict.findings] == [Status.UNKNOWN]
        assert words in verdict.findings[0].text and acceptable(verdict, unknown=True) == {}
        assert said_of(store, verdict.findings) == (verdict.findings, ())
        store.close()


def test_what_is_pending_is_never_accepted() -> None:
    store = AuditStore("sqlite://")
    store.fold([received(report_of("p", BATCHES, closed=False))])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=REPORTED_MS + 1_000)
    assert {finding.status for finding in verdict.findings} == {Status.PENDING}
    assert said_of(store, verdict.findings, now_ms=REPORTED_MS + 1_000) == (verdict.findings, ())
    store.close()


def killed(publisher: str, batches: list[Batch], number: int = 1) -> ReceivedRecord:
    """The last report of a publisher that was killed on a host that never came back."""
    return received(report_of(publisher, batches, closed=False, number=number))


def test_what_a_host_that_is_gone_never_reported_is_accepted_as_unknown() -> None:
    """Nothing else ends it: such an hour was never sealed."""
    store = AuditStore("sqlite://")
    store.fold([*everything_reported(BATCHES, LOGS)[1:], killed("publisher-7", BATCHES)])
    early_ms = REPORTED_MS + HOUR_MS
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=early_ms)
    (finding,) = verdict.findings
    assert finding.status is Status.UNKNOWN and finding.text.endswith("11:00, it accepted"), finding
    assert not is_complete(store, TOPIC, HOUR_A, now_ms=early_ms).complete
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    (finding,) = verdict.findings
    command = f"`headrace audit accept {TOPIC} --hour 2015-05-17T11:00 --unknown --reason …`"
    assert finding.text.endswith(f". If host-1 is gone for good: {command}")
    assert acceptable(verdict) == {} and list(acceptable(verdict, unknown=True).values()) == [finding]
    assert said_of(store, verdict.findings) == ((), (finding,)), "the sentence is not in the digest"
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).to_json()
    assert proof["complete"] is True and [each["status"] for each in proof["accepted"]] == ["unknown"]
    # If it was not gone, and is silent again, it may have had more events.
    store.fold([killed("publisher-7", BATCHES, 2)._replace(time_ms=REPORTED_MS + 60_000)])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    assert (verdict.status, verdict.accepted) == (Status.UNKNOWN, ())
    store.close()


def test_each_publisher_that_is_gone_is_accepted_by_itself() -> None:
    others = [Batch(0, 8, 0, 0, 10, HOUR_A)]
    log = PartitionBytes()
    for batch in (*BATCHES, *others):
        log.append(batch.encode())
    store = AuditStore("sqlite://")
    counts = everything_reported([*BATCHES, *others], {0: log})[2:]
    store.fold([*counts, killed("publisher-7", BATCHES), killed("publisher-8", others)])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    first, second = verdict.findings
    assert (first.service, first.server) == (second.service, second.server)
    assert said_of(store, (first,)) == ((second,), (first,))
    store.close()


def test_an_unknown_number_that_turns_out_to_be_lost_is_lost() -> None:
    store = AuditStore("sqlite://")
    early = [each for each in everything_reported(BATCHES, LOGS_WITHOUT_2) if not is_beat(each)]
    store.fold([*early, received(heartbeat(DATACENTER_TIER, {}), time_ms=REPORTED_MS - HOUR_MS)])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    unknown = tuple(each for each in verdict.findings if each.status is Status.UNKNOWN)
    assert [finding.sequences for finding in unknown] == [(20, 29)]
    assert said_of(store, unknown)[1] == unknown
    store.fold([each for each in everything_reported(BATCHES, LOGS_WITHOUT_2) if is_beat(each)])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    assert (verdict.status, verdict.accepted) == (Status.LOST, ())
    store.close()


def is_beat(received: ReceivedRecord) -> bool:
    return isinstance(received.record, HeartbeatRecord)


def said_of(
    store: AuditStore, findings: tuple[Finding, ...], now_ms: int = NOW_MS
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Accepts findings by their digests; returns those that stand then, and those that are accepted."""
    digests = tuple(digest_of(TOPIC, DC, HOUR_A, finding) for finding in findings)
    said = AcceptanceRecord(TOPIC, HOUR_A, digests, ("",) * len(digests), "ada@host-1", "no")
    store.fold([received(said, time_ms=SAID_MS)])
    ((_, after),) = judged(store, TOPIC, [HOUR_A], now_ms=now_ms)
    return after.findings, tuple(each.finding for each in after.accepted)


def test_an_acceptance_of_what_loads_lost_outlives_the_next_load() -> None:
    """Where the rows are that loads did not write, nobody knows: the finding has no addresses that grow."""
    log = PartitionBytes()
    for batch in BATCHES:
        log.append(batch.encode())
    whole = load_of({0: log}).partitions[0]
    hour = whole.hours[0]._replace(rows=59, distinct_offsets=59, content=None)
    first = LoadReport(WAREHOUSE, TOPIC, 0, REPORTED_MS, (whole._replace(hours=(hour,)),))
    store = AuditStore("sqlite://")
    store.fold(everything_reported(BATCHES, {0: log}, load=first))
    store.fold([received(acceptance(store), time_ms=SAID_MS)])
    end = log.end
    log.append(Batch(0, 7, 0, 60, 10, HOUR_A + HOUR_MS).encode())
    store.fold(received(log.tally(tier, 0, 6, 7)) for tier in (DATACENTER_TIER, ANALYSIS_TIER))
    store.fold([received(LoadReport(WAREHOUSE, TOPIC, 1, REPORTED_MS, (LoadedPartition(0, end, log.end),)))])
    verdict = report(store, now_ms=NOW_MS).verdicts[0]
    assert (verdict.status, len(verdict.accepted)) == (Status.COMPLETE, 1)
    store.close()


def test_an_acceptance_outlives_the_merging_of_old_tallies() -> None:
    log = PartitionBytes()
    batches = [replace(batch, bucket_ms=HOUR_A) for batch in BATCHES]
    for batch in batches:
        log.append(batch.encode())
    store = AuditStore("sqlite://")
    everything = everything_reported(batches, {0: log})
    store.fold(each for each in everything if not isinstance(each.record, RangeTally))
    for tier, held in ((DATACENTER_TIER, log), (ANALYSIS_TIER, damaged(log, 2))):
        store.fold(received(held.tally(tier, 0, at, at + 1)) for at in range(6))
    said = acceptance(store)
    assert ["sequences 20 to 29" in text for text in said.texts] == [True, False]
    store.fold([received(said, time_ms=SAID_MS)])
    for _ in range(2):
        (verdict,) = report(store, now_ms=NOW_MS).verdicts
        assert (verdict.status, len(verdict.accepted)) == (Status.COMPLETE, 2), verdict.findings
        upkeep.merge(store, NOW_MS)
    store.close()


def test_files_with_as_many_rows_are_accepted_one_by_one() -> None:
    files = [Finding(Status.LOST, LOAD_HOP, "gone", 7, path=f"/data/{name}") for name in "ab"]
    assert len({digest_of(TOPIC, DC, HOUR_A, each) for each in files}) == 2


def test_what_an_earlier_version_accepted_stays_so_and_can_be_withdrawn() -> None:
    store = store_without(2)
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    earlier = [digests_of(TOPIC, DC, HOUR_A, each)[-1] for each in verdict.findings]
    assert set(earlier).isdisjoint(acceptable(verdict))
    store.fold([received(acceptance(store, digests=tuple(earlier)), time_ms=SAID_MS)])
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    assert (verdict.status, len(verdict.accepted)) == (Status.COMPLETE, 1)
    store.close()


@pytest.mark.parametrize(
    "changes",
    [{"reason": " "}, {"digests": ()}, {"digests": ("0" * 63,)}, {"said_by": "a\nb"}, {"hour_ms": 1}],
)
def test_an_impossible_acceptance_is_not_believed(changes: dict[str, object]) -> None:
    store = store_without(2)
    with pytest.raises(ImpossibleRecordError):
        check(received(acceptance(store, **changes)), NOW_MS)
    store.close()


def resent(**changes: object) -> ResentRecord:
    made = ResentRecord(DC, TOPIC, BATCHES[2].bucket_ms, "p-1", 0, 99, 0, 0, 9, 7, 0, 20, "ada@host-1")
    return replace(made, **changes)  # type: ignore[arg-type]


def test_events_that_came_again_are_complete_under_their_new_numbers_and_no_others() -> None:
    log = PartitionBytes()
    for index, batch in enumerate(BATCHES):
        if index != 2:
            log.append(batch.encode())
    log.append(Batch(0, 99, 0, 0, 10, BATCHES[2].bucket_ms).encode())
    records = everything_reported(BATCHES, {0: log})
    store = AuditStore("sqlite://")
    store.fold(records)
    (before,) = report(store, now_ms=NOW_MS).verdicts
    assert before.status is Status.LOST
    for order in (1, -1):
        again = AuditStore("sqlite://")
        again.fold([*records, received(resent())][::order])
        (verdict,) = report(again, now_ms=NOW_MS).verdicts
        assert verdict.findings == () and verdict.counts.producer == verdict.counts.warehouse == 60
        again.close()
    # Said, and not there: lost under the new numbers.
    missing = store_without(2)
    missing.fold([received(resent())])
    (verdict,) = report(missing, now_ms=NOW_MS).verdicts
    assert [finding.producer_id for finding in verdict.findings] == [99]
    # The old numbers turn up after all.
    both = AuditStore("sqlite://")
    log.append(BATCHES[2].encode())
    both.fold([*everything_reported(BATCHES, {0: log}), received(resent())])
    (verdict,) = report(both, now_ms=NOW_MS).verdicts
    assert [finding.status for finding in verdict.findings] == [Status.DUPLICATED]
    for each in (store, missing, both):
        each.close()
