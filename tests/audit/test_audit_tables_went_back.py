"""Loads of a table that HDFS has lost, or that was restored from a backup: their numbers were used before."""

from __future__ import annotations

from functools import partial

import pytest

from fix_audit_incarnations import findings_of, judged_by, log_of, said
from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import Report, report
from headrace.audit.store.kept import last_load
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.records import ReceivedRecord

LOADS = Policy(hops=(PRODUCER_HOP, MIRROR_HOP, LOAD_HOP))
judged = partial(judged_by, LOADS)
BATCHES = [Batch(0, 7, 0, number * 5, 5, HOUR_A + number % 3 * BUCKET_MS) for number in range(6)]
LOG = log_of(*BATCHES)
BEFORE_MS, AFTER_MS = REPORTED_MS, REPORTED_MS + 86_400_000 // 2


def part_of(low: int, high: int) -> LoadedPartition:
    """What a right load of the batches from `low` to `high` says."""
    hours = tuple(log_of(*BATCHES[low:high]).hours()) if low < high else ()
    return LoadedPartition(0, LOG.cuts[low], LOG.cuts[high], hours)


def loaded(sequence: int, low: int, high: int, committed_ms: int) -> ReceivedRecord:
    at_ms = committed_ms + sequence
    whole = LoadReport(WAREHOUSE, TOPIC, sequence, at_ms, (part_of(low, high),), topic_id="copy")
    return received(whole, time_ms=at_ms)


def told(log: PartitionBytes = LOG) -> list[ReceivedRecord]:
    publisher = received(report_of("publisher-7", BATCHES), time_ms=BEAT_MS)
    return [publisher, *said(log, "source", BEAT_MS, copy_id="copy")]


BEFORE = [loaded(number, number, number + 1, BEFORE_MS) for number in range(4)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "again",
    [
        pytest.param([loaded(0, 0, 6, AFTER_MS)], id="HDFS is made again, and all is loaded again"),
        pytest.param([loaded(0, 0, 5, AFTER_MS), loaded(1, 5, 6, AFTER_MS)], id="in two loads"),
        pytest.param([loaded(2, 2, 6, AFTER_MS)], id="restored from a backup with two loads"),
        pytest.param([loaded(2, 2, 4, AFTER_MS), loaded(3, 4, 6, AFTER_MS)], id="and two loads since"),
        pytest.param([loaded(3, 2, 6, AFTER_MS)], id="a compaction, and a load"),
        pytest.param([loaded(9, 2, 6, AFTER_MS)], id="many compactions, and a load"),
    ],
)
def test_a_table_that_went_back_is_what_its_present_loads_say(again: list[ReceivedRecord], seed: int) -> None:
    found = judged(told(), BEFORE, again, seed=seed)
    assert found.status is Status.COMPLETE, findings_of(found)
    assert [verdict.counts.warehouse for verdict in found.verdicts] == [30]


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_the_table_lost_are_not_complete_for_what_it_once_had(seed: int) -> None:
    """HDFS was made again after retention had deleted the beginning of the copy."""
    found = judged(told(), BEFORE, [loaded(0, 2, 6, AFTER_MS)], seed=seed)
    [finding] = findings_of(found)
    assert (finding.status, finding.hop, finding.record_count) == (Status.LOST, LOAD_HOP, 10)


def test_kept_verdicts_and_the_last_load_are_those_of_the_present_table() -> None:
    store = AuditStore("sqlite://")

    def now() -> Report:
        return report(store, TOPIC, policy=LOADS, now_ms=NOW_MS)

    try:
        store.fold([*told(log_of(*BATCHES[:4])), *BEFORE])
        now()
        store.fold([*told(), loaded(0, 3, 6, AFTER_MS)])
        assert [finding.record_count for finding in findings_of(now())] == [15]
        with store.reading() as connection:
            assert last_load(connection, TOPIC) == 0
        # An audit topic is read again from its start.
        store.fold([*told(log_of(*BATCHES[:4])), *BEFORE])
        assert [finding.record_count for finding in findings_of(now())] == [15]
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(4))
def test_loads_in_a_row_take_nothing_from_each_other_whatever_the_clock_said(seed: int) -> None:
    """The host's clock was a day ahead for one of them, and a partition without news was read in vain."""
    loads = [loaded(0, 0, 2, BEFORE_MS), loaded(1, 2, 2, AFTER_MS), loaded(2, 2, 4, AFTER_MS)]
    found = judged(told(), loads, [loaded(3, 4, 6, BEFORE_MS)], seed=seed)
    assert found.status is Status.COMPLETE, findings_of(found)
