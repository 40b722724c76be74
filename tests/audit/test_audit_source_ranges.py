"""Events in a gap of the copy: lost, until the warehouse has them from their datacenter's own log."""

from __future__ import annotations

from collections.abc import Iterable
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
    counted,
    everything_reported,
    heartbeat,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, Status, Verdict
from headrace.audit.gathering.source_ranges import SourceRange, source_ranges
from headrace.audit.repair.repairing import is_unwritten, judged
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.load_report import AcceptedGapRecord, LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, GapRecord, ReceivedRecord

BATCHES = [Batch(0, 12, 0, first, 5, HOUR_A + first // 10 * BUCKET_MS) for first in range(0, 30, 5)]


def log_of(batches: list[Batch]) -> PartitionBytes:
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return log


LOG = log_of(BATCHES)
LOW, HIGH = LOG.cuts[1], LOG.cuts[3]  # the second and the third batch: ten events of two buckets


def copied(low: int, high: int) -> list[object]:
    """What the analysis cluster's auditor counted between two cuts of the log."""
    return [LOG.tally(ANALYSIS_TIER, 0, low, high)] if low < high else []


def loaded(sequence: int, low: int, high: int, rows: int, *, from_source: bool = False) -> LoadReport:
    partition = LoadedPartition(0, low, high, (LoadedHour(HOUR_A, rows, rows),), from_source)
    return LoadReport(WAREHOUSE, TOPIC, sequence, REPORTED_MS, (partition,))


def taken(low: int, high: int, rows: int) -> LoadReport:
    return loaded(3, low, high, rows, from_source=True)


ONE_LOAD = (loaded(1, 0, LOG.end, 20),)
"""A load that began before the gap and ended behind it consumed one range; it read nothing in the gap."""
TWO_LOADS = (loaded(1, 0, LOW, 5), loaded(2, HIGH, LOG.end, 15))
by_one_load_or_two = pytest.mark.parametrize("loads", [ONE_LOAD, TWO_LOADS], ids=["one load", "two loads"])


def said(loads: Iterable[LoadReport], *more: object) -> list[ReceivedRecord]:
    """The copy has a gap of two batches, and all else is loaded."""
    records = [
        report_of("publisher-12", BATCHES),
        *counted(DATACENTER_TIER, {0: LOG}),
        heartbeat(DATACENTER_TIER, {0: LOG}),
        *copied(0, 1),
        *copied(3, 6),
        heartbeat(ANALYSIS_TIER, {0: LOG}),
        GapRecord(ANALYSIS_TIER, DC, TOPIC, 0, LOW, HIGH, "retention deleted them", accepted=True),
        *loads,
        *more,
    ]
    return [received(each) for each in records]


def judge(records: list[ReceivedRecord]) -> tuple[Verdict, list[SourceRange]]:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        ((evidence, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
        with store.reading() as connection:
            return verdict, list(source_ranges(connection, evidence, verdict.findings))
    finally:
        store.close()


@by_one_load_or_two
def test_what_lies_in_a_gap_of_the_copy_is_lost_and_can_be_taken_from_the_source(
    loads: Iterable[LoadReport],
) -> None:
    verdict, ranges = judge(said(loads))
    assert (verdict.hops[MIRROR_HOP], verdict.count(Status.LOST)) == (Status.LOST, 10)
    assert ranges == [SourceRange(0, 0, LOW, HIGH, 10)]


def test_two_gaps_within_the_ten_minutes_of_a_producer_are_both_lost() -> None:
    """Retention overtook the mirror twice; the source's events there are counted as one span."""
    log = log_of([Batch(0, 12, 0, first, 5, HOUR_A) for first in range(0, 30, 5)])
    gaps = [
        GapRecord(ANALYSIS_TIER, DC, TOPIC, 0, log.cuts[at], log.cuts[at + 1], "retention", accepted=True)
        for at in (1, 3)
    ]
    store = AuditStore("sqlite://")
    store.fold(map(received, [*counted(DATACENTER_TIER, {0: log}), heartbeat(DATACENTER_TIER, {0: log})]))
    store.fold(received(log.tally(ANALYSIS_TIER, 0, *each)) for each in ((0, 1), (2, 3), (4, 6)))
    store.fold(map(received, [*gaps, heartbeat(ANALYSIS_TIER, {0: log})]))
    ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    store.close()
    found = [(each.status, each.sequences) for each in verdict.findings if each.hop == MIRROR_HOP]
    assert found == [(Status.LOST, (5, 9)), (Status.LOST, (15, 19))]


@by_one_load_or_two
def test_once_the_warehouse_took_it_from_the_source_the_hour_is_complete_and_says_so(
    loads: Iterable[LoadReport],
) -> None:
    verdict, ranges = judge(said(loads, taken(LOW, HIGH, 10)))
    assert (verdict.status, verdict.findings, ranges) == (Status.COMPLETE, (), [])
    assert verdict.counts[:4] == (30, 30, 20, 30)
    (note,) = verdict.notes
    assert "10 events of page-view" in note and f"between addresses {LOW} and {HIGH}" in note
    assert "from west's own log" in note


@by_one_load_or_two
@pytest.mark.parametrize(("rows", "status"), [(9, Status.LOST), (11, Status.DUPLICATED)])
def test_rows_that_were_taken_too_few_or_too_often_are_named(
    loads: Iterable[LoadReport], rows: int, status: Status
) -> None:
    verdict, _ = judge(said(loads, taken(LOW, HIGH, rows)))
    assert (verdict.hops[LOAD_HOP], verdict.count(status)) == (status, 1)


@by_one_load_or_two
def test_of_a_gap_that_was_taken_in_part_the_rest_stays_lost(loads: Iterable[LoadReport]) -> None:
    middle = LOG.cuts[2]
    verdict, ranges = judge(said(loads, taken(middle, HIGH, 5)))
    assert (verdict.hops[MIRROR_HOP], verdict.count(Status.LOST)) == (Status.LOST, 5)
    assert ranges == [SourceRange(0, 0, LOW, middle, 5)]


def test_what_the_copy_dropped_before_a_load_is_taken_from_the_source_too() -> None:
    """The copy had it, and the audit counted it; the load was allowed to skip it."""
    records = everything_reported(BATCHES, {0: LOG}, load=loaded(1, 0, LOW, 5))
    skipped = (AcceptedGapRecord(0, LOW, HIGH, "retention at the brokers"),)
    records.append(received(replace(loaded(2, HIGH, LOG.end, 15), accepted_gaps=skipped)))
    verdict, ranges = judge(records)
    assert (verdict.hops[LOAD_HOP], verdict.count(Status.LOST)) == (Status.LOST, 10)
    assert ranges == [SourceRange(0, 0, LOW, HIGH, 10)]
    verdict, ranges = judge([*records, received(taken(LOW, HIGH, 10))])
    assert (verdict.status, verdict.notes, ranges) == (Status.COMPLETE, (), [])


def test_what_loads_read_and_did_not_write_is_refilled_and_what_they_skipped_is_not() -> None:
    def unwritten(records: list[ReceivedRecord]) -> list[bool]:
        store = AuditStore("sqlite://")
        try:
            store.fold(records)
            ((_, verdict),) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
            return [is_unwritten(each) for each in verdict.findings if each.hop == LOAD_HOP]
        finally:
            store.close()

    forgetful = everything_reported(BATCHES, {0: LOG}, load=loaded(1, 0, LOG.end, 29))
    assert unwritten(forgetful) == [True]
    skipped = (AcceptedGapRecord(0, LOW, HIGH, "retention at the brokers"),)
    skipping = everything_reported(BATCHES, {0: LOG}, load=loaded(1, 0, LOW, 5))
    skipping.append(received(replace(loaded(2, HIGH, LOG.end, 15), accepted_gaps=skipped)))
    assert unwritten(skipping) == [False]
