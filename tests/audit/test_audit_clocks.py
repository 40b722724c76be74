"""A publisher whose clock is off is said to be that: neither silent, nor late, nor complete too early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit_world import (
    DC,
    HOUR_A,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    counted,
    heartbeat,
    received,
    report_of,
)
from headrace.audit.findings import PRODUCER_HOP, Policy, Status, Verdict
from headrace.audit.gathering import gather
from headrace.audit.report.report import report
from headrace.audit.store.clocks import OFF_MIN_MS, skew_between
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import DATACENTER_TIER, ReceivedRecord

MINUTE_MS = 60_000
LOG_OF_REPORTS = ("_audit", 0)
BATCH = Batch(0, 12, 0, 0, 5, HOUR_A)
LOG = PartitionBytes()
LOG.append(BATCH.encode())


def beat(time_ms: int) -> ReceivedRecord:
    return received(replace(heartbeat(DATACENTER_TIER, {0: LOG}), beat=time_ms), time_ms=time_ms)


def said(number: int, time_ms: int, skew_ms: int) -> ReceivedRecord:
    report_now = report_of("p", [BATCH], number=number, closed=False)
    return received(replace(report_now, started_ms=REPORTED_MS + skew_ms), time_ms=time_ms + skew_ms)


def judged(skew_ms: int, silent_s: int) -> Verdict:
    """A publisher reports three times, between heartbeats; then it is silent, and the auditor is not."""
    records = [received(each) for each in counted(DATACENTER_TIER, {0: LOG})]
    for number in range(3):
        at_ms = REPORTED_MS + number * 10_000
        records += [beat(at_ms), said(number + 1, at_ms + 5_000, skew_ms)]
    last_ms = REPORTED_MS + 25_000
    now_ms = last_ms + silent_s * 1_000
    records += [beat(last_ms + 1_000), beat(now_ms)]
    store = AuditStore("sqlite://")
    try:
        for each in records:
            store.fold([each._replace(log=LOG_OF_REPORTS)])
        policy = Policy(hops=(PRODUCER_HOP,))
        (verdict,) = report(store, TOPIC, policy=policy, now_ms=now_ms).verdicts
    finally:
        store.close()
    return verdict


@pytest.mark.parametrize("skew_min", [59, -59, 6, -6])
def test_a_clock_that_is_off_is_named_and_changes_no_verdict(skew_min: int) -> None:
    for silent_s, status in ((2, Status.COMPLETE), (40, Status.PENDING), (320, Status.UNKNOWN)):
        verdict = judged(skew_min * MINUTE_MS, silent_s)
        assert verdict.status is status, (silent_s, verdict.findings)
        assert verdict.status is judged(0, silent_s).status
        (note,) = verdict.notes
        way = "ahead" if skew_min > 0 else "behind"
        off_min = abs(skew_min)
        minutes = {f"is {way} by {off_min} min", f"is {way} by {off_min - 1} min"}
        assert any(each in note for each in minutes), note
        assert "the clock of service frontend-2 on host-1" in note and f"{DC}'s auditor" in note


def test_a_clock_that_is_right_is_not_mentioned() -> None:
    assert judged(0, 2).notes == () and judged(4 * MINUTE_MS, 2).notes == ()


def test_a_clock_that_was_put_right_is_forgotten() -> None:
    store = AuditStore("sqlite://")
    records = [received(each) for each in counted(DATACENTER_TIER, {0: LOG})]
    for number, skew_ms in enumerate((59 * MINUTE_MS, 59 * MINUTE_MS, 0, 0)):
        at_ms = REPORTED_MS + number * 10_000
        records += [beat(at_ms), said(number + 1, at_ms + 5_000, skew_ms)]
    now_ms = REPORTED_MS + 50_000
    store.fold([each._replace(log=LOG_OF_REPORTS) for each in (*records, beat(now_ms))])
    (verdict,) = report(store, TOPIC, policy=Policy(hops=(PRODUCER_HOP,)), now_ms=now_ms).verdicts
    assert (verdict.status, verdict.notes) == (Status.COMPLETE, ())
    store.close()


@pytest.mark.parametrize("skew_ms", [59 * MINUTE_MS, 0])
def test_what_the_store_could_not_take_at_first_is_measured_when_it_does(skew_ms: int) -> None:
    """The store was locked, or refused another record of the same poll: the same records come again."""
    beats = [beat(REPORTED_MS + number * 10 * MINUTE_MS) for number in range(3)]
    records = [
        *(received(each) for each in counted(DATACENTER_TIER, {0: LOG})),
        beats[0],
        said(1, REPORTED_MS + MINUTE_MS, skew_ms),
        *beats[1:],
    ]
    in_log = [each._replace(log=LOG_OF_REPORTS) for each in records]  # the last three: a report, two beats
    refused = in_log[-1]._replace(record=replace(LOG.tally(DATACENTER_TIER, 0, 0, 1), to_address=2**63))
    now_ms = REPORTED_MS + 20 * MINUTE_MS
    store = AuditStore("sqlite://")
    before, again = in_log[:-3], in_log[-3:]
    store.fold(before)
    with pytest.raises(OverflowError):
        store.fold([*again, refused])
    store.fold(again)
    (verdict,) = report(store, TOPIC, policy=Policy(hops=(PRODUCER_HOP,)), now_ms=now_ms).verdicts
    store.close()
    assert ["is ahead by 50 min" in each for each in verdict.notes] == ([True] if skew_ms else [])


@pytest.mark.parametrize("behind_s", [0, 60, 299])
def test_what_a_publisher_with_a_clock_a_little_behind_said_last_is_not_lost_before_it_was_counted(
    behind_s: int,
) -> None:
    """It closes two seconds after a heartbeat, and says an earlier time: that heartbeat did not follow it."""
    empty = received(replace(heartbeat(DATACENTER_TIER, {0: PartitionBytes()}), beat=REPORTED_MS))
    closing = received(report_of("p", [BATCH]), time_ms=REPORTED_MS + 2_000 - behind_s * 1_000)
    store = AuditStore("sqlite://")
    policy = Policy(hops=(PRODUCER_HOP,))
    for records, status in (
        ([empty, closing], Status.PENDING),
        ([*map(received, counted(DATACENTER_TIER, {0: LOG})), beat(REPORTED_MS + 8_000)], Status.COMPLETE),
    ):
        store.fold([each._replace(log=LOG_OF_REPORTS) for each in records])
        (verdict,) = report(store, TOPIC, policy=policy, now_ms=REPORTED_MS + 3_000).verdicts
        assert (verdict.status, verdict.notes) == (status, ()), verdict.findings
    store.close()


@pytest.mark.parametrize("read", ["at once", "one by one", "each by another process"])
def test_heartbeats_count_once_an_auditors_clock_was_set_back(tmp_path: Path, read: str) -> None:
    """A host starts with its clock an hour ahead, which is put right. For an hour the heartbeats before that
    seemed to be the newest: what a publisher had just sent when it closed was lost at once.
    """
    empty = heartbeat(DATACENTER_TIER, {0: PartitionBytes()})

    def at(time_ms: int) -> ReceivedRecord:
        return received(replace(empty, beat=time_ms), time_ms=time_ms)

    ahead_ms = REPORTED_MS + 60 * MINUTE_MS
    records = [at(ahead_ms), at(ahead_ms + 5_000), at(REPORTED_MS), at(REPORTED_MS + 5_000)]
    records.append(received(report_of("p", [BATCH]), time_ms=REPORTED_MS + 6_000))
    in_log = [each._replace(log=LOG_OF_REPORTS) for each in records]
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    for some in [in_log] if read == "at once" else [[each] for each in in_log]:
        if read == "each by another process":
            store.close()
            store = AuditStore(url)
        store.fold(some)
    policy = Policy(hops=(PRODUCER_HOP,))
    (verdict,) = report(store, TOPIC, policy=policy, now_ms=REPORTED_MS + 7_000).verdicts
    assert verdict.status is Status.PENDING, verdict.findings
    with store.reading() as connection:
        (evidence,) = gather.evidence(connection, TOPIC, [HOUR_A])
    (place,) = evidence.partitions.values()
    assert place.datacenter.heartbeat == (REPORTED_MS + 5_000, 0, 0)
    store.close()


def test_how_much_a_clock_is_off_lies_between_two_heartbeats() -> None:
    assert skew_between(100, 50, 150) == 0
    assert skew_between(150 + OFF_MIN_MS, 50, 150) == 0
    assert skew_between(151 + OFF_MIN_MS, 50, 150) == OFF_MIN_MS + 1
    assert skew_between(49 - OFF_MIN_MS, 50, 150) == -OFF_MIN_MS - 1
    assert skew_between(-(10**9), None, 150) == 0


@pytest.mark.parametrize("skew_ms", [59 * MINUTE_MS, -59 * MINUTE_MS])
def test_an_auditor_that_starts_again_forgets_no_clock_and_learns_that_one_is_right(
    tmp_path: Path, skew_ms: int
) -> None:
    """The clock is off; the process that folds starts again; the clock is still off, and then put right."""
    url = f"sqlite:///{tmp_path}/audit.db"
    records = [received(each) for each in counted(DATACENTER_TIER, {0: LOG})]
    for number, now_skew_ms in enumerate((skew_ms, skew_ms, skew_ms, 0, 0)):
        at_ms = REPORTED_MS + number * 10_000
        records += [beat(at_ms), said(number + 1, at_ms + 5_000, now_skew_ms), beat(at_ms + 6_000)]
        store = AuditStore(url)
        store.fold([each._replace(log=LOG_OF_REPORTS) for each in records])
        policy = Policy(hops=(PRODUCER_HOP,))
        (verdict,) = report(store, TOPIC, policy=policy, now_ms=at_ms + 7_000).verdicts
        store.close()
        assert [len(verdict.notes), verdict.status] == [bool(now_skew_ms), Status.COMPLETE], number
        records = []


def test_behind_is_a_clock_only_if_the_heartbeat_before_is_known(tmp_path: Path) -> None:
    """The first heartbeat after a start says nothing of a clock that is behind: nor that it is right now."""
    url, behind_ms = f"sqlite:///{tmp_path}/audit.db", -59 * MINUTE_MS
    first = [beat(REPORTED_MS), said(1, REPORTED_MS + 5_000, behind_ms), beat(REPORTED_MS + 6_000)]
    second = [said(2, REPORTED_MS + 15_000, behind_ms), beat(REPORTED_MS + 16_000)]
    for records in ([*map(received, counted(DATACENTER_TIER, {0: LOG})), *first], second):
        store = AuditStore(url)
        store.fold([each._replace(log=LOG_OF_REPORTS) for each in records])
        (verdict,) = report(store, TOPIC, policy=Policy(hops=(PRODUCER_HOP,)), now_ms=REPORTED_MS).verdicts
        assert ["is behind by" in each for each in verdict.notes] == [True]
        store.close()


@pytest.mark.parametrize("behind_s", [303, 3_540])
@pytest.mark.parametrize("reports", [1, 2])
def test_what_a_publisher_far_behind_said_last_is_not_lost_before_it_was_counted(
    behind_s: int, reports: int
) -> None:
    """Nor if its auditor, whose clock may be the one that is ahead, dies before its next heartbeat."""
    empty = replace(heartbeat(DATACENTER_TIER, {0: PartitionBytes()}), beat=REPORTED_MS)
    records = [received(empty)]
    if reports == 2:  # nine seconds after a heartbeat, and then one second after the next
        first = received(report_of("p", [], closed=False), time_ms=REPORTED_MS - 1_000 - behind_s * 1_000)
        records = [received(replace(empty, beat=REPORTED_MS - 10_000), time_ms=REPORTED_MS - 10_000), first]
        records.append(received(empty))
    closing = replace(report_of("p", [BATCH]), report_number=2)
    records.append(received(closing, time_ms=REPORTED_MS + 1_000 - behind_s * 1_000))
    store = AuditStore("sqlite://")
    policy = Policy(hops=(PRODUCER_HOP,))
    store.fold([each._replace(log=LOG_OF_REPORTS) for each in records])
    for now_s, status in ((3, Status.PENDING), (600, Status.UNKNOWN)):
        (verdict,) = report(store, TOPIC, policy=policy, now_ms=REPORTED_MS + now_s * 1_000).verdicts
        assert verdict.status is status, verdict.findings
        assert "clock of service frontend-2 on host-1 is behind by" in verdict.notes[0]
    after = received(replace(empty, beat=REPORTED_MS + 8_000), time_ms=REPORTED_MS + 8_000)
    store.fold([after._replace(log=LOG_OF_REPORTS)])
    (verdict,) = report(store, TOPIC, policy=policy, now_ms=REPORTED_MS + 9_000).verdicts
    assert [each.status for each in verdict.findings] == [Status.LOST], "its auditor has counted all since"
    store.close()


@pytest.mark.parametrize("last_s", [5, 15, 25])
@pytest.mark.parametrize("read", ["at once", "one by one", "each by another process"])
def test_clocks_are_measured_anew_once_an_auditors_clock_was_set_back(
    tmp_path: Path, read: str, last_s: int
) -> None:
    """While the auditor's was an hour ahead, all others seemed to be behind. For an hour after it was put
    right that stayed so in the store: who was killed meanwhile was not missed.
    """
    ahead_ms = REPORTED_MS + 60 * MINUTE_MS
    records = [received(each) for each in counted(DATACENTER_TIER, {0: LOG})]
    records += [beat(ahead_ms), said(1, REPORTED_MS + 5_000, 0), beat(ahead_ms + 10_000)]
    records += [said(2, REPORTED_MS + 15_000, 0)] if last_s == 15 else []
    records += [beat(REPORTED_MS + 20_000)]
    records += [said(2, REPORTED_MS + 25_000, 0)] if last_s == 25 else []
    records += [beat(REPORTED_MS + 30_000)]
    now_ms = REPORTED_MS + 10 * MINUTE_MS
    records.append(beat(now_ms))
    in_log = [each._replace(log=LOG_OF_REPORTS) for each in records]
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    for some in [in_log] if read == "at once" else [[each] for each in in_log]:
        if read == "each by another process":
            store.close()
            store = AuditStore(url)
        store.fold(some)
    (verdict,) = report(store, TOPIC, policy=Policy(hops=(PRODUCER_HOP,)), now_ms=now_ms).verdicts
    store.close()
    assert (verdict.status, verdict.notes) == (Status.UNKNOWN, ())
    assert "never closed" in verdict.findings[0].text
