"""What retention deleted before it was counted, of a topic that is counted from the log on: nobody claims it,
so the hours that may have had events there are unknown.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

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
    heartbeat,
    received,
)
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import merge
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    GapRecord,
    HeartbeatRecord,
    ReceivedRecord,
)
from headrace.coordination.declared import ANY, REPORTING, Change

CAUSE = "retention deleted them before the auditor counted them"
HOURS = range(6)
"""One batch in each hour; those of hours 2 and 3 are deleted, uncounted."""
LOG = PartitionBytes()
for each_hour in HOURS:
    LOG.append(Batch(0, 7, 0, 5 * each_hour, 5, HOUR_A + each_hour * HOUR_MS).encode())
LOW, HIGH = LOG.cuts[2], LOG.cuts[4]


def load(sequence: int, start: int, end: int) -> LoadReport:
    rows = tuple(LoadedHour(HOUR_A + number * HOUR_MS, 5, 5, 0) for number in range(start, end))
    partition = LoadedPartition(0, LOG.cuts[start], LOG.cuts[end], rows)
    return LoadReport(WAREHOUSE, TOPIC, sequence, REPORTED_MS, (partition,))


def told(
    *, producers: str = ANY, gap_ms: int = REPORTED_MS, end: int = 6, is_copied: bool = False
) -> list[ReceivedRecord]:
    """All that is said of the log up to hour `end`. `gap_ms`: when the gap is told."""
    log = PartitionBytes(LOG.data[: LOG.cuts[end]], LOG.cuts[: end + 1])
    records: list[object] = [TopicDeclaration(TOPIC, str(UUID(int=1)), (Change(producers),))]
    for tier in (DATACENTER_TIER, ANALYSIS_TIER):
        cuts = [(0, 1), (1, 2), *((at, at + 1) for at in range(4, end))]
        if is_copied and tier == ANALYSIS_TIER:
            cuts.append((2, 4))
        records += (log.tally(tier, 0, *each) for each in cuts)
        records.append(heartbeat(tier, {0: log}))
    records += [load(1, 0, 2), load(2, 4, end)]
    said = [
        received(each, time_ms=BEAT_MS if isinstance(each, HeartbeatRecord) else REPORTED_MS)
        for each in records
    ]
    gap = (DC, TOPIC, 0, LOW, HIGH, CAUSE)
    tiers = [DATACENTER_TIER] if is_copied else [DATACENTER_TIER, ANALYSIS_TIER]
    said += (received(GapRecord(tier, *gap), time_ms=gap_ms) for tier in tiers)
    return said


def verdicts(store: AuditStore) -> dict[int, Verdict]:
    """By the number of the hour."""
    found = report(store, TOPIC, now_ms=NOW_MS).verdicts
    return {(each.hour_ms - HOUR_A) // HOUR_MS: each for each in found}


def unknown_hours(records: list[ReceivedRecord], *, merged: bool = False) -> list[int]:
    store = AuditStore("sqlite://")
    store.fold(records)
    if merged:
        merge(store, NOW_MS)
    found = verdicts(store)
    store.close()
    assert {each.status for each in found.values()} <= {Status.COMPLETE, Status.UNKNOWN}
    return [hour for hour, each in sorted(found.items()) if each.status is Status.UNKNOWN]


@pytest.mark.parametrize("merged", [False, True])
def test_hours_from_before_the_gap_to_behind_it_are_unknown(merged: bool) -> None:
    records = told()
    assert unknown_hours(records, merged=merged) == [1, 4]
    store = AuditStore("sqlite://")
    store.fold(records)
    [finding] = verdicts(store)[1].findings
    store.close()
    assert finding.text.startswith(f"{DC}'s auditor could not count addresses {LOW} to {HIGH} of {TOPIC}")
    assert CAUSE in finding.text
    assert (finding.after_address, finding.before_address) == (LOW, HIGH)


def test_no_event_is_of_later_than_when_the_gap_was_told() -> None:
    """Nothing was counted behind the gap since: hours that begin later are not held up by it."""
    store = AuditStore("sqlite://")
    store.fold(told(end=4, gap_ms=HOUR_A + 4 * HOUR_MS + 1))
    log = PartitionBytes()
    for hour in (4, 5):
        log.append(Batch(1, 8, 0, 5 * hour, 5, HOUR_A + hour * HOUR_MS).encode())
    for tier in (DATACENTER_TIER, ANALYSIS_TIER):
        store.fold([received(log.tally(tier, 1, 0, 2))])
        store.fold([received(heartbeat(tier, {1: log}), time_ms=BEAT_MS)])
    rows = tuple(LoadedHour(HOUR_A + hour * HOUR_MS, 5, 5, 0) for hour in (4, 5))
    partition = LoadedPartition(1, 0, log.end, rows)
    store.fold([received(LoadReport(WAREHOUSE, TOPIC, 3, REPORTED_MS, (partition,)))])
    found = {hour: each.status for hour, each in verdicts(store).items()}
    store.close()
    assert found == {
        0: Status.COMPLETE,
        1: Status.UNKNOWN,
        4: Status.UNKNOWN,
        5: Status.COMPLETE,
    }


def test_producers_that_report_say_themselves_what_is_missing() -> None:
    store = AuditStore("sqlite://")
    store.fold(told(producers=REPORTING))
    texts = [each.text for verdict in verdicts(store).values() for each in verdict.findings]
    store.close()
    assert texts and not any("could not count" in text for text in texts)


def test_what_the_copy_has_is_counted_there() -> None:
    store = AuditStore("sqlite://")
    store.fold(told(is_copied=True))
    found = verdicts(store)
    store.close()
    assert [hour for hour, each in found.items() if each.status is not Status.COMPLETE] == [2, 3]
    assert not any("could not count" in each.text for hour in (2, 3) for each in found[hour].findings)


def test_a_store_of_an_earlier_version_is_read_and_gets_the_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    store = AuditStore(f"sqlite:///{path}")
    store.fold(told())
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE gaps DROP COLUMN said_ms")
    for must_exist in (True, False):
        store = AuditStore(f"sqlite:///{path}", must_exist=must_exist)
        assert verdicts(store)[1].status is Status.UNKNOWN
        store.close()
    with sqlite3.connect(path) as connection:
        assert [row[0] for row in connection.execute("SELECT said_ms FROM gaps")] == [None, None]


@pytest.mark.parametrize("at", [1, 4], ids=["before", "behind"])
@pytest.mark.parametrize("years", [-10, 10])
def test_an_event_from_far_ahead_or_behind_next_to_the_gap_bounds_nothing(at: int, years: int) -> None:
    log = PartitionBytes()
    for hour in HOURS:
        far_ms = years * 365 * 24 * HOUR_MS if hour == at else 0
        log.append(Batch(0, 7, 0, 5 * hour, 5, HOUR_A + hour * HOUR_MS + far_ms).encode())
    store = AuditStore("sqlite://")
    store.fold([received(TopicDeclaration(TOPIC, str(UUID(int=1)), (Change(ANY),)))])
    for tier in (DATACENTER_TIER, ANALYSIS_TIER):
        store.fold([received(log.tally(tier, 0, *each)) for each in ((0, 2), (4, 6))])
        store.fold([received(heartbeat(tier, {0: log}), time_ms=BEAT_MS)])
        gap_ms = HOUR_A + 5 * HOUR_MS
        store.fold([received(GapRecord(tier, DC, TOPIC, 0, LOW, HIGH, CAUSE), time_ms=gap_ms)])
    found = verdicts(store)
    store.close()
    unknown = [
        hour for hour, each in found.items() if any("could not count" in f.text for f in each.findings)
    ]
    beside = {1, 4} - {at}
    assert beside <= set(unknown), "what is next to the gap, and of its time, is not known"
