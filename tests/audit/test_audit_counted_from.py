"""Topics that declare `producers: any`, and publishers that report counts without sequence numbers."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Final
from uuid import UUID

import pytest
from rich.console import Console

from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    counted,
    everything_reported,
    heartbeat,
    received,
    report_of,
)
from headrace.audit.findings import PRODUCER_HOP, Policy, Status, Verdict
from headrace.audit.report.report import HourProof, Report, is_complete, report
from headrace.audit.report.view import print_report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import FROM_LOG, FROM_PRODUCERS, TopicDeclaration
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    HandoverTally,
    HeartbeatRecord,
    ProducerReport,
    ReceivedRecord,
)
from headrace.audit.topic.validity import check
from headrace.coordination.declared import ANY, REPORTING, Change

IN_HOUR_A = Batch(0, 99, 0, 0, 5, HOUR_A)
FIRST_ID, SECOND_ID = str(UUID(int=1)), str(UUID(int=2))


def log_of(*batches: Batch) -> dict[int, PartitionBytes]:
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return {0: log}


def unreported(*batches: Batch) -> list[ReceivedRecord]:
    """What all tiers report of these batches, except their producers."""
    records = everything_reported(list(batches), log_of(*batches))
    return [each for each in records if not isinstance(each.record, ProducerReport)]


def declared(
    *changes: Change, topic_id: str = FIRST_ID, said_ms: int = REPORTED_MS, partitions: int = 0
) -> ReceivedRecord:
    return received(TopicDeclaration(TOPIC, topic_id, changes, partitions=partitions), time_ms=said_ms)


def counts_of(
    count: int, *, publisher: str = "java", closed: bool = True, final: bool = False, number: int = 1
) -> ReceivedRecord:
    """The report of a publisher that handed over this many events of the first hour."""
    tally = HandoverTally(1, TOPIC, HOUR_A, count, final, ())
    made = ProducerReport(publisher, HOUR_A, number, closed, (tally,), counts_only=True)
    return received(made, service="checkout")


def judged(records: list[ReceivedRecord], now_ms: int = NOW_MS) -> tuple[Report, HourProof]:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        store.fold(reversed(records))  # in any order, any number of times
        proof = is_complete(store, TOPIC, HOUR_A, now_ms=now_ms)
        return report(store, TOPIC, now_ms=now_ms), proof
    finally:
        store.close()


def only(records: list[ReceivedRecord], now_ms: int = NOW_MS) -> Verdict:
    (verdict,) = judged(records, now_ms)[0].verdicts
    return verdict


@pytest.mark.parametrize(
    ("partitions", "said_ms", "status"),
    [
        (1, REPORTED_MS, Status.COMPLETE),
        (12, REPORTED_MS, Status.UNKNOWN),
        (12, NOW_MS - 1, Status.PENDING),
        (0, REPORTED_MS, Status.COMPLETE),
    ],
    ids=["it has one", "it has more", "it has more since now", "an earlier auditor does not say it"],
)
def test_a_log_that_nobody_could_ever_read_is_missed(partitions: int, said_ms: int, status: Status) -> None:
    """One that lost its leader before the first heartbeat about it was in no verdict: hours were complete."""
    declaration = declared(Change(ANY), topic_id="", said_ms=said_ms, partitions=partitions)
    verdict = only([*unreported(IN_HOUR_A), declaration])
    assert verdict.status is status
    if status is not Status.COMPLETE:
        (finding,) = verdict.findings
        assert "has never read partition 1, 2, 3, 4, 5, 6, 7, 8 and 3 more of" in finding.text
        assert not finding.about, "the topic is there, and may get a leader"


def test_what_a_deleted_topic_held_that_nobody_could_read_can_be_accepted() -> None:
    gone = received(TopicDeclaration(TOPIC, "", (), deleted=True), time_ms=NOW_MS - 1)
    verdict = only([*unreported(IN_HOUR_A), declared(Change(ANY), topic_id="", partitions=2), gone])
    assert verdict.status is Status.UNKNOWN
    assert [each.about for each in verdict.findings if "has never read partition 1 of" in each.text] != [""]


LATER: Final = Batch(0, 99, 0, 5, 5, HOUR_A + HOUR_MS)


@pytest.mark.parametrize(
    ("batches", "uncounted", "now_ms", "status"),
    [
        ((IN_HOUR_A,), 0, NOW_MS, Status.COMPLETE),
        ((IN_HOUR_A,), 100, HOUR_A + HOUR_MS, Status.PENDING),
        ((IN_HOUR_A,), 100, NOW_MS, Status.UNKNOWN),
        ((IN_HOUR_A, LATER), 100, NOW_MS, Status.COMPLETE),
    ],
    ids=["all counted", "the hour has just ended", "nobody knows", "the next hour is being counted"],
)
def test_of_what_is_not_counted_yet_nobody_knows_whether_it_is_of_the_hour(
    batches: tuple[Batch, ...], uncounted: int, now_ms: int, status: Status
) -> None:
    """The auditor lags: no producer claims what lies behind the address to which it has counted."""

    def lagging(each: ReceivedRecord) -> ReceivedRecord:
        beat = each.record
        if not isinstance(beat, HeartbeatRecord) or beat.tier != DATACENTER_TIER:
            return each
        positions = tuple(at._replace(end_address=at.end_address + uncounted) for at in beat.positions)
        return each._replace(record=replace(beat, positions=positions))

    told = [*map(lagging, unreported(*batches)), declared(Change(ANY))]
    store = AuditStore("sqlite://")
    store.fold(told)
    policy = Policy(hops=(PRODUCER_HOP,))
    verdict = report(store, TOPIC, policy=policy, now_ms=now_ms).verdicts[0]
    store.close()
    assert (verdict.hour_ms, verdict.status) == (HOUR_A, status)
    if status is not Status.COMPLETE:
        assert "has counted partition 0 up to address" in verdict.findings[0].text


@pytest.mark.parametrize(
    ("read_to_ms", "now_ms", "status"),
    [
        (HOUR_A + HOUR_MS, NOW_MS, Status.COMPLETE),
        (HOUR_A + HOUR_MS - 1, HOUR_A + HOUR_MS + 60_000, Status.PENDING),
        (HOUR_A + HOUR_MS - 1, NOW_MS, Status.UNKNOWN),
    ],
)
def test_of_a_log_that_the_auditor_cannot_read_nobody_knows_what_it_got(
    read_to_ms: int, now_ms: int, status: Status
) -> None:
    """Its leader answers producers, and not the auditor, which reads the topic's other log."""
    logs = {**log_of(IN_HOUR_A), 1: PartitionBytes()}

    def beat(partition: int, time_ms: int) -> ReceivedRecord:
        told = heartbeat(DATACENTER_TIER, {partition: logs[partition]})
        return received(replace(told, beat=time_ms), time_ms=time_ms)

    store = AuditStore("sqlite://")
    store.fold(map(received, counted(DATACENTER_TIER, {0: logs[0]})))
    store.fold([declared(Change(ANY)), beat(1, read_to_ms), beat(0, now_ms)])
    policy = Policy(hops=(PRODUCER_HOP,))
    (verdict,) = report(store, TOPIC, policy=policy, now_ms=now_ms).verdicts
    store.close()
    assert verdict.status is status
    if status is not Status.COMPLETE:
        assert "has not read partition 1 of page-view since 2015-05-17 11:59" in verdict.findings[0].text


# --- counted from the log on ---


def test_a_client_without_reports_is_unknown_for_good_unless_its_topic_is_declared() -> None:
    verdict = only(unreported(IN_HOUR_A))
    assert verdict.hops[PRODUCER_HOP] is Status.UNKNOWN
    assert verdict.counted_from == FROM_PRODUCERS
    assert "without any producer report" in verdict.findings[0].text

    found, proof = judged([*unreported(IN_HOUR_A), declared(Change(ANY))])
    assert [(v.status, v.counted_from) for v in found.verdicts] == [(Status.COMPLETE, FROM_LOG)]
    assert proof.complete, proof.problems
    assert proof.to_json()["counted_from"] == {DC: FROM_LOG}
    assert found.to_json()["verdicts"][0]["counted_from"] == FROM_LOG


def test_records_without_a_producer_id_are_accepted_then_too() -> None:
    anonymous = Batch(0, -1, -1, -1, 3, HOUR_A)
    assert only(unreported(anonymous)).status is Status.UNKNOWN
    assert only([*unreported(anonymous), declared(Change(ANY))]).status is Status.COMPLETE


def test_the_report_says_so() -> None:
    found, _ = judged([*unreported(IN_HOUR_A), declared(Change(ANY))])
    shown = io.StringIO()
    print_report(found, Console(file=shown, width=200), empty="")
    assert "page-view of west: counted from the log on (headrace.producers=any)" in shown.getvalue()
    found, _ = judged(unreported(IN_HOUR_A))
    shown = io.StringIO()
    print_report(found, Console(file=shown, width=200), empty="")
    assert "counted from the log on" not in shown.getvalue()


@pytest.mark.parametrize("changes", [(Change(ANY),), (Change(REPORTING), Change(ANY, HOUR_A))])
def test_a_loss_that_a_producer_proves_stays_a_loss(changes: tuple[Change, ...]) -> None:
    lost, there = Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 12, 0, 5, 1, HOUR_A)
    records = [*everything_reported([lost, there], log_of(there)), declared(*changes)]
    verdict = only(records)
    assert (verdict.status, verdict.counted_from) == (Status.LOST, FROM_LOG)
    assert verdict.count(Status.LOST) == 5


def test_a_loss_in_mirror_or_warehouse_stays_one() -> None:
    log = log_of(IN_HOUR_A)
    records = everything_reported([IN_HOUR_A], log, copies={0: PartitionBytes()})
    kept = [each for each in records if not isinstance(each.record, ProducerReport)]
    assert only([*kept, declared(Change(ANY))]).status is not Status.COMPLETE


def test_events_that_a_client_dropped_are_lost_but_its_silence_is_no_problem() -> None:
    batch = Batch(0, 12, 0, 0, 5, HOUR_A)
    rest = unreported(batch)
    open_ = received(report_of("p", [batch], closed=False), time_ms=HOUR_A + 1)
    assert only([*rest, open_]).status is Status.UNKNOWN, "it never closed"
    assert only([*rest, open_, declared(Change(ANY))]).status is Status.COMPLETE
    dropped = received(report_of("p", [batch], extra=2))
    assert only([*rest, dropped, declared(Change(ANY))]).status is Status.LOST


# --- when a declaration applies ---


@pytest.mark.parametrize(
    ("changes", "counted_from"),
    [
        ((Change(REPORTING),), FROM_PRODUCERS),
        ((Change(REPORTING), Change(ANY, HOUR_A)), FROM_LOG),
        ((Change(REPORTING), Change(ANY, HOUR_A + HOUR_MS)), FROM_PRODUCERS),
        ((Change(ANY), Change(REPORTING, HOUR_A)), FROM_PRODUCERS),
        ((Change(ANY), Change(REPORTING, HOUR_A + HOUR_MS)), FROM_LOG),
    ],
)
def test_a_change_applies_to_the_hours_that_begin_afterwards(
    changes: tuple[Change, ...], counted_from: str
) -> None:
    verdict = only([*unreported(IN_HOUR_A), declared(*changes)])
    assert verdict.counted_from == counted_from
    assert (verdict.status is Status.COMPLETE) == (counted_from == FROM_LOG)


def test_a_topic_that_is_made_again_changes_no_earlier_hour() -> None:
    reporting = declared(Change(REPORTING), said_ms=HOUR_A - HOUR_MS)
    again = declared(Change(ANY), topic_id=SECOND_ID, said_ms=HOUR_A + 1)
    assert only([*unreported(IN_HOUR_A), reporting, again]).status is Status.UNKNOWN
    earlier = declared(Change(ANY), topic_id=SECOND_ID, said_ms=HOUR_A - 1)
    assert only([*unreported(IN_HOUR_A), reporting, earlier]).status is Status.COMPLETE


def test_saying_it_again_later_moves_nothing() -> None:
    first = declared(Change(REPORTING), said_ms=HOUR_A - 2 * HOUR_MS)
    made = declared(Change(ANY), topic_id=SECOND_ID, said_ms=HOUR_A - HOUR_MS)
    repeated = declared(Change(ANY), topic_id=SECOND_ID, said_ms=REPORTED_MS)
    assert only([*unreported(IN_HOUR_A), first, made, repeated]).counted_from == FROM_LOG


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ((), "0 changes"),
        ((Change("nobody"),), "'nobody'"),
        ((Change(ANY, HOUR_A),), "first declaration"),
        ((Change(ANY), Change(REPORTING)), "order of the hours"),
        ((Change(ANY), Change(REPORTING, HOUR_A + 1)), "order of the hours"),
        ((Change(ANY), Change(REPORTING, HOUR_A), Change(ANY, HOUR_A)), "order of the hours"),
    ],
)
def test_an_impossible_declaration_is_not_believed(changes: tuple[Change, ...], problem: str) -> None:
    with pytest.raises(ImpossibleRecordError, match=problem):
        check(declared(*changes), NOW_MS)
    check(declared(Change(ANY), Change(REPORTING, HOUR_A)), NOW_MS, source=DC)
    with pytest.raises(ImpossibleRecordError, match="speaks for datacenter"):
        check(declared(Change(ANY)), NOW_MS, source="east")


# --- counts without sequence numbers ---


def test_counts_that_agree_with_the_log_are_complete() -> None:
    other = Batch(0, 7, 0, 0, 4, HOUR_A + BUCKET_MS)
    records = everything_reported([IN_HOUR_A, other], log_of(IN_HOUR_A, other))
    own = [each for each in records if getattr(each.record, "publisher", "") != "publisher-99"]
    found, proof = judged([*own, counts_of(5)])
    assert found.status is Status.COMPLETE, found.to_json()
    assert found.verdicts[0].counts.producer == 9
    assert proof.complete


def test_counts_beyond_the_log_are_lost_once_the_publisher_has_closed() -> None:
    verdict = only([*unreported(IN_HOUR_A), counts_of(8)])
    assert (verdict.status, verdict.count(Status.LOST)) == (Status.LOST, 3)
    assert "service checkout, never reached west's log (they counted 8, the log holds 5" in (
        verdict.findings[0].text
    )


@pytest.mark.parametrize("from_log", [False, True])
def test_they_are_lost_also_where_the_log_is_what_counts(from_log: bool) -> None:
    declaration = [declared(Change(ANY))] if from_log else []
    assert only([*unreported(IN_HOUR_A), counts_of(8), *declaration]).status is Status.LOST


def test_counts_wait_while_the_publisher_lives_and_are_unknown_once_it_is_silent() -> None:
    open_ = counts_of(8, closed=False)
    assert only([*unreported(IN_HOUR_A), open_], now_ms=REPORTED_MS + 1).status is Status.PENDING
    assert only([*unreported(IN_HOUR_A), open_]).status is Status.UNKNOWN
    final = counts_of(8, closed=False, final=True)
    assert only([*unreported(IN_HOUR_A), final]).status is Status.LOST


def test_they_are_not_lost_before_the_log_was_counted() -> None:
    records = [each for each in unreported(IN_HOUR_A) if not isinstance(each.record, HeartbeatRecord)]
    beats = [
        replace(each.record, beat=0)
        for each in unreported(IN_HOUR_A)
        if isinstance(each.record, HeartbeatRecord)
    ]
    early = [received(beat, time_ms=REPORTED_MS) for beat in beats]
    verdict = only([*records, *early, counts_of(8)], now_ms=REPORTED_MS + 1)
    assert {finding.status for finding in verdict.findings} == {Status.PENDING}


def test_more_events_than_were_counted_are_unknown() -> None:
    verdict = only([*unreported(IN_HOUR_A), counts_of(3)])
    assert verdict.status is Status.UNKNOWN
    assert "2 events of page-view, west" in verdict.findings[0].text
    assert "beyond the 3 that service checkout counted" in verdict.findings[0].text
    assert only([*unreported(IN_HOUR_A), counts_of(3), declared(Change(ANY))]).status is Status.COMPLETE


def test_a_loss_and_a_duplicate_do_not_cancel() -> None:
    log = log_of(IN_HOUR_A, IN_HOUR_A)
    records = everything_reported([], log)
    verdict = only([*records, counts_of(10)])
    assert verdict.status is Status.LOST
    assert {finding.status for finding in verdict.findings} == {Status.LOST, Status.DUPLICATED}
    # Without a producer id a duplicate cannot be seen: such records stay unknown, whatever was counted.
    verdict = only([*unreported(Batch(0, -1, -1, -1, 5, HOUR_A)), counts_of(5)])
    assert verdict.status is Status.UNKNOWN
    assert "enable.idempotence=true" in verdict.findings[0].text


def test_a_newer_count_replaces_the_older_one() -> None:
    assert only([*unreported(IN_HOUR_A), counts_of(5, number=2), counts_of(2)]).status is Status.COMPLETE


def test_a_report_of_counts_has_no_ranges() -> None:
    wrong = replace(report_of("p", [IN_HOUR_A]), counts_only=True)
    with pytest.raises(ImpossibleRecordError, match="it counts only"):
        check(received(wrong), NOW_MS)


def test_a_shorter_policy_changes_nothing_about_a_count_that_agrees() -> None:
    store = AuditStore("sqlite://")
    store.fold([*unreported(IN_HOUR_A), counts_of(5)])
    assert report(store, TOPIC, policy=Policy(delay_ms=1), now_ms=BEAT_MS).status is Status.COMPLETE
    store.close()
