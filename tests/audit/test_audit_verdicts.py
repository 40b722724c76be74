"""For any mix of planted losses and duplicates the verdicts name exactly these, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

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
    counted,
    damaged,
    everything_reported,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Policy, Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    GapRecord,
    HeartbeatRecord,
    RangeTally,
    ReceivedRecord,
)

Numbers = Counter[tuple[int, int, int]]  # (partition, producer id, sequence) -> how often


class Plan(NamedTuple):
    """Batches in the order they were sent, and how often each is in the log."""

    batches: list[Batch]
    times: list[int]


@st.composite
def plans(draw: st.DrawFn, times: st.SearchStrategy[int] | None = None) -> Plan:
    """Up to three publishers that write to two partitions over two hours."""
    next_sequence: Counter[tuple[int, int]] = Counter()
    batches = []
    for _ in range(draw(st.integers(1, 14))):
        producer_id, partition = draw(st.integers(10, 12)), draw(st.integers(0, 1))
        count = draw(st.integers(1, 5))
        first = next_sequence[producer_id, partition]
        next_sequence[producer_id, partition] += count
        bucket_ms = HOUR_A + draw(st.integers(0, 11)) * BUCKET_MS
        batches.append(Batch(partition, producer_id, 0, first, count, bucket_ms))
    how_often = times if times is not None else st.sampled_from([1, 1, 1, 0, 2, 3])
    return Plan(batches, [draw(how_often) for _ in batches])


def logs_of(plan: Plan) -> dict[int, PartitionBytes]:
    logs: dict[int, PartitionBytes] = {}
    for batch, times in zip(plan.batches, plan.times, strict=True):
        for _ in range(times):
            logs.setdefault(batch.partition, PartitionBytes()).append(batch.encode())
    for batch in plan.batches:
        logs.setdefault(batch.partition, PartitionBytes())
    return logs


def numbers(batches: list[tuple[Batch, int]]) -> Numbers:
    out: Numbers = Counter()
    for batch, times in batches:
        for sequence in range(batch.first, batch.last + 1):
            out[batch.partition, batch.producer_id, sequence] += times
    return +out


def named(verdicts: tuple[Verdict, ...], status: Status, hop: str) -> Numbers:
    """The sequence numbers in findings of this status and hop, as often as they report."""
    out: Numbers = Counter()
    for verdict in verdicts:
        for finding in verdict.findings:
            if (finding.status, finding.hop) == (status, hop):
                assert finding.sequences is not None and finding.record_count is not None
                first, last = finding.sequences
                times = finding.record_count // (last - first + 1)
                assert times * (last - first + 1) == finding.record_count
                for sequence in range(first, last + 1):
                    out[finding.partition or 0, finding.producer_id or 0, sequence] += times
    return out


def judged(
    records: list[ReceivedRecord], policy: Policy | None = None, now_ms: int = NOW_MS
) -> tuple[Verdict, ...]:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        return report(store, TOPIC, policy=policy, now_ms=now_ms).verdicts
    finally:
        store.close()


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_losses_and_duplicates_before_the_log_are_named_exactly(plan: Plan) -> None:
    verdicts = judged(everything_reported(plan.batches, logs_of(plan)))
    pairs = list(zip(plan.batches, plan.times, strict=True))
    assert named(verdicts, Status.LOST, PRODUCER_HOP) == numbers([(b, int(n == 0)) for b, n in pairs])
    assert named(verdicts, Status.DUPLICATED, PRODUCER_HOP) == numbers([(b, max(0, n - 1)) for b, n in pairs])
    statuses = {finding.status for verdict in verdicts for finding in verdict.findings}
    assert statuses <= {Status.LOST, Status.DUPLICATED}
    for verdict in verdicts:
        assert verdict.hops[MIRROR_HOP] is verdict.hops[LOAD_HOP] is Status.COMPLETE
        wrong = [n for b, n in pairs if n != 1 and b.bucket_ms - b.bucket_ms % HOUR_MS == verdict.hour_ms]
        assert (verdict.status is Status.COMPLETE) == (not wrong)


@given(plan=plans(st.just(1)), data=st.data())
@settings(max_examples=30, deadline=None)
def test_damage_in_the_copy_is_named_even_when_totals_agree(plan: Plan, data: st.DataObject) -> None:
    logs = logs_of(plan)
    partition = plan.batches[0].partition
    members = [batch for batch in plan.batches if batch.partition == partition]
    victim = data.draw(st.integers(0, len(members) - 1))
    lost = members[victim]
    same_size = [i for i, b in enumerate(members) if b.count == lost.count and i != victim]
    twin = data.draw(st.sampled_from([None, *same_size]))
    copies = {**logs, partition: damaged(logs[partition], victim, twin)}
    verdicts = judged(everything_reported(plan.batches, logs, copies, load_of(copies)))
    assert named(verdicts, Status.LOST, MIRROR_HOP) == numbers([(lost, 1)])
    doubled = [] if twin is None else [(members[twin], 1)]
    assert named(verdicts, Status.DUPLICATED, MIRROR_HOP) == numbers(doubled)
    assert {v.hops[PRODUCER_HOP] for v in verdicts} == {Status.COMPLETE}


@given(
    plan=plans(st.just(1)),
    missing=st.integers(0, 3),
    duplicate_rows=st.integers(0, 3),
    dead=st.integers(0, 2),
)
@settings(max_examples=30, deadline=None)
def test_missing_and_duplicate_rows_do_not_cancel(
    plan: Plan, missing: int, duplicate_rows: int, dead: int
) -> None:
    logs = logs_of(plan)
    partition = next(number for number, log in logs.items() if log.end)
    hours = logs[partition].hours()
    count = hours[0].rows
    missing = min(missing, count)
    dead = min(dead, count - missing)
    duplicate_rows = min(duplicate_rows, count - missing - dead)
    distinct = count - missing - dead
    hours[0] = LoadedHour(hours[0].hour_ms, distinct + duplicate_rows, distinct, dead)
    honest = load_of({number: log for number, log in logs.items() if number != partition})
    loaded = LoadedPartition(partition, 0, logs[partition].end, tuple(hours))
    load = LoadReport(WAREHOUSE, TOPIC, 1, REPORTED_MS, (*honest.partitions, loaded))
    verdicts = judged(everything_reported(plan.batches, logs, load=load))
    found = {
        status: sum(f.record_count or 0 for v in verdicts for f in v.findings if f.status is status)
        for status in (Status.LOST, Status.DUPLICATED)
    }
    assert found == {Status.LOST: missing, Status.DUPLICATED: duplicate_rows}
    assert {f.hop for v in verdicts for f in v.findings} <= {LOAD_HOP}
    assert sum(v.counts.dead_lettered for v in verdicts) == dead


@given(plan=plans())
@settings(max_examples=12, deadline=None)
def test_missing_reports_never_look_complete(plan: Plan) -> None:
    """Without the reports of any one tier no hour with events is complete."""
    records = everything_reported(plan.batches, logs_of(plan))
    for kind in ("ProducerReport", "datacenter", "analysis", "LoadReport"):
        left = [
            each
            for each in records
            if type(each.record).__name__ != kind and getattr(each.record, "tier", None) != kind
        ]
        for verdict in judged(left):
            if verdict.counts.producer or verdict.counts.datacenter:
                assert verdict.status is not Status.COMPLETE, kind


def test_an_auditor_that_stops_within_the_hour_leaves_it_pending_then_unknown() -> None:
    """A datacenter that is cut off: its last reports were complete, but they are no longer recent."""
    policy = Policy(silence_ms=30_000, delay_ms=300_000)
    batch = Batch(0, 12, 0, 0, 5, HOUR_A)
    log = PartitionBytes()
    log.append(batch.encode())
    report_ms = HOUR_A + HOUR_MS // 2
    records = [each._replace(time_ms=report_ms) for each in everything_reported([batch], {0: log})]
    for age_ms, status in ((29_000, Status.COMPLETE), (31_000, Status.PENDING), (301_000, Status.UNKNOWN)):
        (verdict,) = judged(records, policy, now_ms=report_ms + age_ms)
        assert verdict.status is status
        for finding in verdict.findings:
            assert re.search(r"auditor has not reported since .* it is not known what", finding.text)
        assert bool(verdict.findings) == (status is not Status.COMPLETE)
    later = [each._replace(time_ms=HOUR_A + HOUR_MS) for each in records]
    (verdict,) = judged(later, policy, now_ms=NOW_MS)
    assert verdict.status is Status.COMPLETE


def test_a_finding_names_producer_events_hour_and_place() -> None:
    batches = [Batch(3, 12, 0, first, 50, HOUR_A) for first in (0, 50)]
    lost = Batch(3, 12, 0, 100, 7, HOUR_A)
    after = Batch(3, 12, 0, 107, 9, HOUR_A)
    log = PartitionBytes()
    for batch in (*batches, after):
        log.append(batch.encode())
    (verdict,) = judged(everything_reported([*batches, lost, after], {3: log}))
    (finding,) = verdict.findings
    assert finding.text == (
        "7 events of page-view, west, 2015-05-17 11:00, handed over by producer 12 (service frontend-2), "
        "sequences "
        "100 to 106 of partition 3, never reached west's log "
        f"(at address {log.cuts[2]})"
    )
    assert verdict.counts == (116, 109, 109, 109, 0)
    assert (finding.service, finding.sequences) == ("frontend-2", (100, 106))


def test_missing_records_are_pending_within_the_delay() -> None:
    batches = [Batch(0, 12, 0, 0, 5, HOUR_A)]
    records = everything_reported(batches, {0: PartitionBytes()})
    silent = [each for each in records if not isinstance(each.record, HeartbeatRecord)]
    (verdict,) = judged(silent, now_ms=REPORTED_MS + 60_000)
    assert verdict.status is Status.PENDING
    (verdict,) = judged(silent, now_ms=NOW_MS)
    assert (verdict.status, "is it running" in verdict.findings[0].text) == (Status.UNKNOWN, True)
    early = [each._replace(time_ms=REPORTED_MS + 1) for each in records]
    (verdict,) = judged(early, now_ms=REPORTED_MS + 60_000)
    assert verdict.status is Status.PENDING
    (verdict,) = judged(early, now_ms=NOW_MS)
    assert (verdict.status, "has not reported since" in verdict.findings[0].text) == (Status.UNKNOWN, True)
    (verdict,) = judged(records, now_ms=NOW_MS)
    assert verdict.status is Status.LOST


def test_numbers_that_began_again_at_0_prove_nothing_of_what_is_not_counted_yet() -> None:
    """After 2**31 events of one producer in a partition, which a busy one has in a month, the highest number
    seemed later than all that came: what an auditor that lags had not counted yet was lost, and a repair
    would have brought it twice.
    """
    before = Batch(0, 12, 0, 2**31 - 5, 5, HOUR_A - 2 * HOUR_MS)
    after = Batch(0, 12, 0, 0, 7, HOUR_A)
    log = PartitionBytes()
    log.append(before.encode())
    beat = received(heartbeat(DATACENTER_TIER, {0: log}), time_ms=REPORTED_MS + 1)
    records = [received(report_of("publisher-12", [before, after], closed=False)), beat]
    records += map(received, counted(DATACENTER_TIER, {0: log}))
    for now_ms, status in ((REPORTED_MS + 60_000, Status.PENDING), (NOW_MS, Status.UNKNOWN)):
        (finding,) = [
            each
            for verdict in judged(records, now_ms=now_ms)
            for each in verdict.findings
            if each.hop == PRODUCER_HOP and each.sequences == (0, 6)
        ]
        assert finding.status is status


def test_the_last_records_are_lost_once_the_publisher_closed_and_all_was_counted() -> None:
    batches = [Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 12, 0, 5, 2, HOUR_A)]
    log = PartitionBytes()
    log.append(batches[0].encode())
    records = everything_reported(batches, {0: log})
    beaten = [
        each._replace(time_ms=REPORTED_MS + 10_000) if isinstance(each.record, HeartbeatRecord) else each
        for each in records
    ]
    (verdict,) = judged(beaten, now_ms=REPORTED_MS + 11_000)
    assert (verdict.status, verdict.count(Status.LOST)) == (Status.LOST, 2)


def test_rows_of_an_hour_that_no_tier_counted_are_a_finding() -> None:
    batch = Batch(0, 12, 0, 0, 5, HOUR_A)
    log = PartitionBytes()
    log.append(batch.encode())
    rows = (LoadedHour(HOUR_A, 4, 4), LoadedHour(HOUR_A + 5 * HOUR_MS, 1, 1))
    load = LoadReport(WAREHOUSE, TOPIC, 1, REPORTED_MS, (LoadedPartition(0, 0, log.end, rows),))
    verdicts = judged(everything_reported([batch], {0: log}, load=load))
    assert [(v.hour_ms, v.status) for v in verdicts] == [
        (HOUR_A, Status.LOST),
        (HOUR_A + 5 * HOUR_MS, Status.DUPLICATED),
    ]


def test_missing_records_are_lost_at_once_if_later_sequences_are_logged() -> None:
    lost, after = Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 12, 0, 5, 1, HOUR_A)
    log = PartitionBytes()
    log.append(after.encode())
    (verdict,) = judged(everything_reported([lost, after], {0: log}), now_ms=REPORTED_MS + 1)
    assert verdict.status is Status.LOST
    assert verdict.count(Status.LOST) == 5


def test_the_first_events_of_a_log_are_not_lost_because_its_first_tally_is() -> None:
    batches = [Batch(0, 12, 0, first, 5, HOUR_A) for first in (0, 5, 10)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    records = everything_reported(batches, {0: log})
    rest = log.tally(DATACENTER_TIER, 0, 1, 3)
    records = [
        each._replace(record=rest)
        if isinstance(each.record, RangeTally) and each.record.tier == DATACENTER_TIER
        else each
        for each in records
    ]
    (verdict,) = judged(records)
    assert verdict.hops[PRODUCER_HOP] is Status.UNKNOWN, verdict.findings


def test_of_neighbours_only_those_in_the_gap_can_no_longer_be_copied() -> None:
    """Retention deleted the first batch before it was copied; the second waits for a mirror that halts."""
    batches = [Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 12, 0, 5, 3, HOUR_A + BUCKET_MS)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    policy = Policy(hops=(MIRROR_HOP,))
    records = everything_reported(batches, {0: log}, {0: PartitionBytes()})
    gap = GapRecord(ANALYSIS_TIER, DC, TOPIC, 0, 0, log.cuts[1], "retention deleted them")
    (verdict,) = judged([*records, received(gap)], policy)
    found = [(each.status, each.sequences) for each in verdict.findings]
    assert found == [(Status.LOST, (0, 4)), (Status.UNKNOWN, (5, 7))]


def test_an_open_publisher_that_falls_silent_is_pending_then_unknown() -> None:
    """It may have died with events that it did not report: complete for five minutes was a wrong word."""
    batch = Batch(0, 12, 0, 0, 5, HOUR_A)
    log = PartitionBytes()
    log.append(batch.encode())
    policy, statuses = Policy(hops=(PRODUCER_HOP,)), []
    for silent_s in (1, 29, 31, 299, 301):
        now = REPORTED_MS + silent_s * 1_000
        beat = replace(heartbeat(DATACENTER_TIER, {0: log}), beat=now)
        records: list[object] = [report_of("p", [batch], closed=False), *counted(DATACENTER_TIER, {0: log})]
        store = AuditStore("sqlite://")
        store.fold([*map(received, records), received(beat, time_ms=now)])
        statuses.append(report(store, TOPIC, policy=policy, now_ms=now).status)
        store.close()
    pending, unknown = Status.PENDING, Status.UNKNOWN
    assert statuses == [Status.COMPLETE, Status.COMPLETE, pending, pending, unknown]


def test_a_gap_that_was_counted_past_before_a_publisher_began_hides_no_loss_of_its() -> None:
    """Its events cannot lie there; else each loss of a publisher's first events was unknown, for years."""
    old = [Batch(0, 10, 0, first, 5, HOUR_A) for first in (0, 5, 10)]
    sent = [Batch(0, 12, 0, first, 5, HOUR_A + HOUR_MS) for first in (0, 5)]
    log = PartitionBytes()
    for batch in (*old, sent[1]):
        log.append(batch.encode())
    gap = GapRecord(DATACENTER_TIER, DC, TOPIC, 0, log.cuts[1], log.cuts[2], "retention deleted them")
    long_ago: list[object] = [gap, *(log.tally(DATACENTER_TIER, 0, at, at + 1) for at in (0, 2))]
    records: list[object] = [log.tally(DATACENTER_TIER, 0, 3, 4), report_of("p", sent)]
    beat = received(heartbeat(DATACENTER_TIER, {0: log}), time_ms=BEAT_MS)
    for told_ms, status in ((REPORTED_MS - 10 * HOUR_MS, Status.LOST), (REPORTED_MS, Status.UNKNOWN)):
        told = [received(each, time_ms=told_ms) for each in long_ago]
        verdicts = judged([*told, *map(received, records), beat], Policy(hops=(PRODUCER_HOP,)))
        found = [(each.status, each.sequences) for each in verdicts[-1].findings]
        assert (verdicts[-1].hour_ms, found) == (HOUR_A + HOUR_MS, [(status, (0, 4))])
