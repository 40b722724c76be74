"""The store: any order, repetition or cuts give the same reports; positions are stored with their records."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
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
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.gathering import publishers as gather_publishers
from headrace.audit.gathering import reported
from headrace.audit.intervals import stretches, subtract, union
from headrace.audit.report.report import is_complete, report, wait_until_resolved
from headrace.audit.store import upkeep
from headrace.audit.store.cover import Candidate, choose
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import AuditStore, StoreError
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.possible import ADDRESS_MAX
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, RangeTally, ReceivedRecord

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda i: i[0] < i[1]), max_size=8
)


def world(seed: int, lost: int = 1) -> tuple[list[Batch], dict[int, PartitionBytes]]:
    """Two publishers, two partitions, two hours; `lost` of the batches never arrive."""
    rng = random.Random(seed)
    next_sequence: dict[tuple[int, int], int] = {}
    batches = []
    for _ in range(rng.randint(6, 16)):
        key = (rng.randint(0, 1), rng.randint(20, 21))
        first = next_sequence.get(key, 0)
        count = rng.randint(1, 4)
        next_sequence[key] = first + count
        bucket_ms = HOUR_A + rng.randint(0, 11) * BUCKET_MS
        batches.append(Batch(key[0], key[1], 0, first, count, bucket_ms))
    missing = set(rng.sample(range(len(batches)), lost))
    logs = {0: PartitionBytes(), 1: PartitionBytes()}
    for index, batch in enumerate(batches):
        if index not in missing:
            logs[batch.partition].append(batch.encode())
    return batches, logs


def cut_anywhere(rng: random.Random, log: PartitionBytes, tier: str, partition: int) -> list[RangeTally]:
    """The tallies of several auditors of one log: each auditor covers it wholly, with its own cuts."""
    out = []
    last = len(log.cuts) - 1
    for _ in range(rng.randint(1, 3)):
        inner = rng.sample(range(1, last), rng.randint(0, last - 1)) if last > 1 else []
        cuts = sorted({0, last, *inner})
        out += [log.tally(tier, partition, low, high) for low, high in itertools.pairwise(cuts)]
    return out


def judged(store: AuditStore) -> Any:
    data = report(store, now_ms=NOW_MS).to_json()
    return json.loads(json.dumps(data))


def folded(records: list[ReceivedRecord]) -> Any:
    store = AuditStore("sqlite://")
    try:
        for each in records:
            store.fold([each])
        return judged(store)
    finally:
        store.close()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_any_order_any_repetition_any_cuts_give_the_same_report(seed: int) -> None:
    rng = random.Random(seed)
    batches, logs = world(seed)
    plain = everything_reported(batches, logs)
    expected = folded(plain)
    other = [each for each in plain if not isinstance(each.record, RangeTally)]
    for tier in (DATACENTER_TIER, ANALYSIS_TIER):
        for partition, log in logs.items():
            other += [received(tally) for tally in cut_anywhere(rng, log, tier, partition)]
    other += rng.sample(other, len(other) // 2)
    rng.shuffle(other)
    assert counts_of(folded(other)) == counts_of(expected)
    again = list(other)
    rng.shuffle(again)
    assert folded(again) == folded(other)


def counts_of(data: Any) -> Any:
    """A report without addresses, which depend on where the tallies were cut."""
    return [
        (
            each["topic"],
            each["hour"],
            each["status"],
            each["counts"],
            sorted((f["status"], f["hop"], f["partition"], str(f["sequences"])) for f in each["findings"]),
        )
        for each in data["verdicts"]
    ]


@given(numbers=st.permutations(range(1, 5)), closed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_newest_report_of_a_publisher_counts(numbers: list[int], closed: bool) -> None:
    """Growing reports in any order; the last one withdraws the batch that was renumbered."""
    batches = [Batch(0, 5, 0, 4 * index, 4, HOUR_A) for index in range(4)]
    renumbered = [*batches[:3], Batch(0, 5, 1, 0, 4, HOUR_A)]
    log = PartitionBytes()
    for batch in renumbered:
        log.append(batch.encode())
    records = everything_reported(batches, {0: log})[1:]
    for number in numbers:
        members = batches[:number] if number < 4 else renumbered
        last = closed and number == 4
        records.append(
            received(report_of("p", members, number=number, closed=last), time_ms=BEAT_MS + number)
        )
    records.append(received(report_of("p", batches, number=0, closed=False), time_ms=BEAT_MS))
    store = AuditStore("sqlite://")
    store.fold(records)
    (verdict,) = report(store, now_ms=BEAT_MS + 20_000).verdicts
    store.close()
    assert verdict.counts[:2] == (16, 16)
    assert verdict.hops[PRODUCER_HOP] is Status.COMPLETE


def test_a_renumbered_batch_that_arrived_both_times_is_a_duplicate() -> None:
    old, new = Batch(0, 5, 0, 0, 4, HOUR_A), Batch(0, 5, 1, 0, 4, HOUR_A)
    log = PartitionBytes()
    for batch in (old, new):
        log.append(batch.encode())
    records = everything_reported([old], {0: log})[1:]
    records += [received(report_of("p", [old], number=1)), received(report_of("p", [new], number=2))]
    store = AuditStore("sqlite://")
    store.fold(records)
    (verdict,) = report(store, now_ms=NOW_MS).verdicts
    store.close()
    assert verdict.status is Status.DUPLICATED
    assert [(f.producer_epoch, f.sequences) for f in verdict.findings] == [(0, (0, 3))]
    assert "gave them new numbers" in verdict.findings[0].text


def test_events_dropped_before_they_had_a_number_are_lost() -> None:
    batch = Batch(0, 5, 0, 0, 4, HOUR_A)
    log = PartitionBytes()
    log.append(batch.encode())
    records = [*everything_reported([batch], {0: log})[1:], received(report_of("p", [batch], extra=3))]
    store = AuditStore("sqlite://")
    store.fold(records)
    (verdict,) = report(store, now_ms=NOW_MS).verdicts
    store.close()
    assert (verdict.status, verdict.count(Status.LOST)) == (Status.LOST, 3)
    assert "service frontend-2" in verdict.findings[0].text


def test_contradictory_counts_of_one_range_are_a_finding() -> None:
    batch = Batch(0, 5, 0, 0, 4, HOUR_A)
    log = PartitionBytes()
    log.append(batch.encode())
    tally = log.tally(DATACENTER_TIER, 0, 0, 1)
    other = RangeTally(**{**{n: getattr(tally, n) for n in RangeTally.__slots__}, "spans": ()})
    store = AuditStore("sqlite://")
    store.fold([*everything_reported([batch], {0: log}), received(other)])
    (verdict,) = report(store, now_ms=NOW_MS).verdicts
    store.close()
    assert any("counted twice" in finding.text for finding in verdict.findings)
    assert verdict.status is not Status.COMPLETE


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_merging_old_tallies_changes_no_verdict(seed: int) -> None:
    batches, logs = world(seed)
    records = [
        each
        for each in everything_reported(batches, logs)
        if not (isinstance(each.record, RangeTally) and each.record.tier == DATACENTER_TIER)
    ]
    for partition, log in logs.items():
        pieces = (
            log.tally(DATACENTER_TIER, partition, index, index + 1) for index in range(len(log.cuts) - 1)
        )
        records += [received(piece) for piece in pieces]
    store = AuditStore("sqlite://")
    store.fold(records)
    before = counts_of(judged(store))
    removed = upkeep.merge(store, NOW_MS)
    assert removed == sum(max(0, len(log.cuts) - 2) for log in logs.values())
    assert counts_of(judged(store)) == before
    store.fold(records)
    assert counts_of(judged(store)) == before
    store.close()


def test_forgetting_old_hours_keeps_the_ranges_known() -> None:
    batches, logs = world(3, lost=0)
    store = AuditStore("sqlite://")
    records = everything_reported(batches, logs)
    store.fold(records)
    assert upkeep.forget(store, REPORTED_MS) == 0
    assert upkeep.forget(store, NOW_MS) == len({b.bucket_ms - b.bucket_ms % HOUR_MS for b in batches})
    assert report(store, now_ms=NOW_MS).verdicts == ()
    store.fold([each for each in records if isinstance(each.record, RangeTally)])
    with store.reading() as connection:
        assert reported.hours(connection, TOPIC, None, None) == []
    store.close()


@pytest.mark.parametrize(
    ("datacenter", "forgotten"), [("analysis", False), (DC, True)], ids=["another", "the-only-one"]
)
def test_one_clock_that_is_ahead_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch, datacenter: str, forgotten: bool
) -> None:
    """The auditor of `analysis` took its own clock's word that all hours are older than the store keeps."""
    batches, logs = world(3, lost=0)
    store = AuditStore("sqlite://")
    store.fold(everything_reported(batches, logs))
    loop = FoldLoop(StorePlace("sqlite://"), lambda _: pytest.fail("not run"), datacenter=datacenter)
    monkeypatch.setattr("headrace.audit.fold_loop.now_ms", lambda: NOW_MS + 2 * upkeep.KEEP_DEFAULT_MS)
    loop._run_upkeep(store)
    assert (report(store, now_ms=NOW_MS).verdicts == ()) is forgotten
    store.close()


def test_positions_and_rows_are_stored_together(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/audit.db"
    store = AuditStore(url)
    batches, logs = world(1)
    store.fold(everything_reported(batches, logs), {("_audit", 0): 100})

    class Unfoldable:
        tier = "datacenter"

    with pytest.raises(TypeError):
        store.fold([received(report_of("p", batches)), received(Unfoldable())], {("_audit", 0): 200})
    store.close()
    store = AuditStore(url)
    assert store.positions() == {("_audit", 0): 100}
    with store.reading() as connection:
        lives = gather_publishers.publishers(connection, DC)
    assert "p" not in lives
    store.close()


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditStore(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = '99'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="schema version 99"):
        AuditStore(f"sqlite:///{path}")
    (tmp_path / "text.db").write_text("this is not a database, but it is long enough to be read as one " * 20)
    with pytest.raises(StoreError, match="cannot open the audit store"):
        AuditStore(f"sqlite:///{tmp_path}/text.db")


def test_the_proof_of_an_hour() -> None:
    batches, logs = world(5, lost=0)
    store = AuditStore("sqlite://")
    empty = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS)
    assert not empty.complete and "no tier has ever reported" in empty.problems[0]
    store.fold(everything_reported(batches, logs))
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS)
    assert (proof.complete, proof.problems) == (True, ())
    in_hour = sum(b.count for b in batches if b.bucket_ms < HOUR_A + HOUR_MS)
    assert proof.counts[DC] == (in_hour,) * 4 + (0,)
    assert json.loads(json.dumps(proof.to_json()))["complete"] is True
    fresh = is_complete(store, TOPIC, HOUR_A, now_ms=REPORTED_MS + 1_000, quiet_ms=5_000)
    assert not fresh.complete and "still changing" in fresh.problems[-1]
    current = NOW_MS - NOW_MS % HOUR_MS
    assert "the hour is not over" in is_complete(store, TOPIC, current, now_ms=NOW_MS).problems[0]
    later = is_complete(store, TOPIC, current - HOUR_MS, now_ms=NOW_MS)
    assert not later.complete and "has not reported since" in later.problems[0]
    with pytest.raises(ValueError, match="not the start of an hour"):
        is_complete(store, TOPIC, HOUR_A + 1)
    store.close()


def test_the_proof_of_an_hour_with_a_loss_names_the_problem() -> None:
    batches, logs = world(7)
    store = AuditStore("sqlite://")
    store.fold(everything_reported(batches, logs))
    proofs = [is_complete(store, TOPIC, HOUR_A + index * HOUR_MS, now_ms=NOW_MS) for index in range(2)]
    store.close()
    assert [proof.complete for proof in proofs].count(False) == 1
    (reason,) = next(proof.problems for proof in proofs if not proof.complete)
    assert "never reached west's log" in reason


def test_waiting_ends_when_everything_is_resolved_or_at_the_timeout() -> None:
    batches, logs = world(2, lost=0)
    steps = [everything_reported(batches, logs)[:2], everything_reported(batches, logs)]
    store = AuditStore("sqlite://")
    now = [0.0]
    seen: list[Status] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if steps:
            store.fold(steps.pop(0))

    def judge_now() -> Any:
        return report(store, now_ms=REPORTED_MS + 60_000)

    done = wait_until_resolved(
        judge_now, 30.0, clock=lambda: now[0], sleep=sleep, progress=lambda each: seen.append(each.status)
    )
    assert (done.status, now[0]) == (Status.COMPLETE, 2.0)
    assert seen == [Status.UNKNOWN, Status.PENDING, Status.COMPLETE]
    store.close()
    store = AuditStore("sqlite://")
    assert wait_until_resolved(judge_now, 3.0, clock=lambda: now[0], sleep=sleep).status is Status.UNKNOWN
    assert now[0] == 5.0
    store.close()


@given(left=INTERVALS, right=INTERVALS)
@settings(max_examples=100)
def test_intervals_are_multisets_of_numbers(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    def times(intervals: list[tuple[int, int]], number: int) -> int:
        return sum(low <= number < high for low, high in intervals)

    found = {n: (s.left, s.right) for s in stretches(left, right) for n in range(s.start, s.end)}
    assert found == {
        n: (times(left, n), times(right, n)) for n in range(31) if times(left, n) or times(right, n)
    }
    assert {n for low, high in union(left) for n in range(low, high)} == {
        n for n in range(31) if times(left, n)
    }
    assert {n for low, high in subtract(left, right) for n in range(low, high)} == {
        n for n in range(31) if times(left, n) and not times(right, n)
    }


@given(intervals=INTERVALS, order=st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_the_choice_among_overlapping_ranges_covers_most_in_any_order(
    intervals: list[tuple[int, int]], order: random.Random
) -> None:
    candidates = [Candidate(low, high, "", row) for row, (low, high) in enumerate(sorted(set(intervals)))]
    chosen = choose(candidates)
    assert all(a.end <= b.start for a, b in itertools.pairwise(chosen))
    shuffled = list(candidates)
    order.shuffle(shuffled)
    assert choose(shuffled) == chosen
    best = 0
    for mask in range(1 << len(candidates)):
        subset = sorted(c for i, c in enumerate(candidates) if mask >> i & 1)
        if all(a.end <= b.start for a, b in itertools.pairwise(subset)):
            best = max(best, sum(c.end - c.start for c in subset))
    assert sum(c.end - c.start for c in chosen) == best


def test_tallies_of_several_topics_of_a_name_are_not_added_beyond_64_bits() -> None:
    """Two possible records of a stranger; else each report on the topic ended with an error of the store."""
    store = AuditStore("sqlite://")
    store.fold(everything_reported(*world(1)))
    forged = RangeTally(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, ADDRESS_MAX, BUCKET_MS, ())
    store.fold(received(replace(forged, topic_id=each)) for each in ("a", "b"))
    assert report(store, now_ms=NOW_MS).verdicts
    store.close()
