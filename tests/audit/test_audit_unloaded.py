"""What no reported load has consumed: skipped, passed by, told by nobody, or simply not loaded yet."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fix_audit_world import (
    BUCKET_MS,
    HOUR_A,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.findings import LOAD_HOP, Policy, Status
from headrace.audit.gathering.loads import unreported_between
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import AcceptedGapRecord, LoadedHour, LoadedPartition, LoadReport

BATCHES = [Batch(0, 12, 0, first, 5, HOUR_A + first // 5 * BUCKET_MS) for first in range(0, 25, 5)]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
CUTS = LOG.cuts


def load(number: int, start: int, end: int, rows: int, *skipped: tuple[int, int]) -> LoadReport:
    """The report of change `number`: a load of these addresses, with rows of the first hour."""
    hours = (LoadedHour(HOUR_A, rows, rows, 0),) if rows else ()
    gaps = tuple(AcceptedGapRecord(0, *gap, "retention") for gap in skipped)
    return LoadReport(WAREHOUSE, TOPIC, number, REPORTED_MS, (LoadedPartition(0, start, end, hours),), gaps)


def found_of(
    loads: Iterable[LoadReport], age_ms: int, batches: list[Batch] = BATCHES, log: PartitionBytes = LOG
) -> list[tuple[int, Status, int | None]]:
    """What is said of the load hop: the hour's number, the status and how many events."""
    first, *more = loads
    store = AuditStore("sqlite://")
    store.fold([*everything_reported(batches, {0: log}, load=first), *map(received, more)])
    policy = Policy(hops=(LOAD_HOP,))
    verdicts = report(store, TOPIC, policy=policy, now_ms=REPORTED_MS + age_ms).verdicts
    store.close()
    found = [((v.hour_ms - HOUR_A) // HOUR_MS, each) for v in verdicts for each in v.findings]
    return [(hour, each.status, each.record_count) for hour, each in found]


@pytest.mark.parametrize(
    ("age_ms", "between", "says"),
    [
        (HOUR_MS, [], (0, Status.PENDING, 5)),
        (3 * HOUR_MS, [], (0, Status.UNKNOWN, 5)),
        (3 * HOUR_MS, [load(2, 0, 0, 0)], (0, Status.LOST, 5)),
        (3 * HOUR_MS, [load(2, CUTS[1], CUTS[2], 5)], None),
    ],
    ids=["it may come", "nobody told", "a change that loads nothing", "told at last"],
)
def test_events_are_not_lost_while_the_report_of_a_load_is_missing(
    age_ms: int, between: list[LoadReport], says: tuple[int, Status, int] | None
) -> None:
    """The table was changed between two loads: by a load whose report the audit does not have, perhaps."""
    loads = [load(1, 0, CUTS[1], 5), load(3, CUTS[2], LOG.end, 15), *between]
    assert found_of(loads, age_ms) == ([] if says is None else [says])


def test_what_waits_for_the_next_load_is_not_lost_with_what_a_load_skipped() -> None:
    loads = [load(0, 0, CUTS[1], 5), load(1, CUTS[2], CUTS[3], 5, (CUTS[1], CUTS[2]))]
    expected = [(0, Status.LOST, 5), (0, Status.PENDING, 10)]
    assert found_of(loads, HOUR_MS) == expected
    assert found_of([*loads, load(2, CUTS[3], LOG.end, 10)], HOUR_MS) == expected[:1]


def test_a_skipped_gap_without_events_of_an_hour_makes_none_of_it_lost() -> None:
    """Another producer's events, of the next hour, lie between two of this hour's that are counted as one."""
    batches = [Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 13, 0, 0, 5, HOUR_A + HOUR_MS)]
    batches.append(Batch(0, 12, 0, 5, 5, HOUR_A))
    log = PartitionBytes()
    for each in batches:
        log.append(each.encode())
    gap = (log.cuts[1], log.cuts[2])
    loads = [load(0, 0, gap[0], 5), load(1, gap[1], log.end, 5, gap)]
    assert found_of(loads, 3 * HOUR_MS, batches, log) == [(1, Status.LOST, 5)]


def test_which_addresses_a_load_without_a_report_may_have_consumed() -> None:
    loads = [(0, 0, 10), (3, 20, 30), (4, 40, 50), (7, 50, 60), (9, 70, 80)]
    assert list(unreported_between(loads, [0, 3, 4, 7, 9])) == [(10, 20), (60, 70)]
    assert list(unreported_between(loads, [0, 1, 2, 3, 4, 7, 9])) == [(60, 70)]
    assert list(unreported_between(loads, list(range(10)))) == []
    assert list(unreported_between([(5, 30, 40)], [5])) == [], "nothing was loaded before the first load"
    assert list(unreported_between([(2**40, 20, 30), (0, 0, 10)], [0, 2**40])) == [(10, 20)]
