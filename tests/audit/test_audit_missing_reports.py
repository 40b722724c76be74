"""Reports that publishers say arrived, and that the audit's topic lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_audit_world import (
    BEAT_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from headrace.audit.evidence import PRODUCER_HOP, Status
from headrace.audit.report.report import Report, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import ProducerReport, ReceivedRecord
from headrace.audit.topic.validity import ImpossibleRecordError, check

BATCH = Batch(0, 7, 0, 0, 5, HOUR_A)


def log_of(batch: Batch) -> dict[int, PartitionBytes]:
    log = PartitionBytes()
    log.append(batch.encode())
    return {0: log}


def said(number: int, arrived: int, *, time_ms: int = REPORTED_MS, tallied: bool = True) -> ReceivedRecord:
    """A report of the publisher, which names the last one that arrived."""
    made = report_of("web-1", [BATCH] if tallied else [], number=number)
    return received(replace(made, started_ms=HOUR_A, arrived_number=arrived), time_ms=time_ms)


def rest() -> list[ReceivedRecord]:
    records = everything_reported([BATCH], log_of(BATCH))
    return [each for each in records if not isinstance(each.record, ProducerReport)]


def judged(store: AuditStore, now_ms: int = NOW_MS) -> Report:
    return report(store, now_ms=now_ms)


def status(records: list[ReceivedRecord]) -> Status:
    store = AuditStore("sqlite://")
    try:
        store.fold([*records, *rest()])
        store.fold(records)  # again, as after a restart
        (verdict,) = judged(store).verdicts
        return verdict.status
    finally:
        store.close()


def test_a_number_that_is_missing_says_nothing_by_itself() -> None:
    assert status([said(1, 0), said(4, 1)]) is Status.COMPLETE, "reports 2 and 3 failed"
    assert status([said(3, 0)]) is Status.COMPLETE


def test_an_hour_is_unknown_of_which_a_report_arrived_that_is_not_there() -> None:
    store = AuditStore("sqlite://")
    store.fold([said(1, 0), said(3, 2), *rest()])
    (verdict,) = judged(store).verdicts
    (finding,) = verdict.findings
    assert (verdict.status, finding.hop, finding.service) == (Status.UNKNOWN, PRODUCER_HOP, "frontend-2")
    assert finding.text.startswith(
        f"report 2 of service frontend-2 on host-1, {DC}, had arrived and is not in _audit"
    )
    store.fold([said(2, 1)])  # from another partition: it had been added since
    assert judged(store).status is Status.COMPLETE
    store.close()


@pytest.mark.parametrize("arrived", [1, 2])
def test_a_publisher_of_which_nothing_was_read_before_may_have_had_events_since_its_start(
    arrived: int,
) -> None:
    assert status([said(3, arrived)]) is Status.UNKNOWN


def test_hours_before_the_last_report_and_behind_the_next_one_are_known() -> None:
    before_ms, behind_ms = HOUR_A - 1, HOUR_A + HOUR_MS
    for first_ms, next_ms in ((behind_ms, behind_ms + 9), (before_ms - 9, before_ms)):
        assert status(around(first_ms, next_ms)) is Status.COMPLETE
    assert status(around(before_ms, behind_ms)) is Status.UNKNOWN
    assert status(around(behind_ms, before_ms)) is Status.UNKNOWN, "its clock was set back"


def around(first_ms: int, next_ms: int) -> list[ReceivedRecord]:
    """Reports of which one is missing between these times, and the one with the tally at the end."""
    missing = [said(1, 0, time_ms=first_ms, tallied=False), said(3, 2, time_ms=next_ms, tallied=False)]
    return [*missing, said(4, 3)]


def test_events_of_old_hours_that_are_published_anew_are_unknown_too() -> None:
    assert status([said(1, 0), said(3, 2, time_ms=REPORTED_MS + 9, tallied=False)]) is Status.UNKNOWN
    first = said(1, 0, time_ms=REPORTED_MS - 9, tallied=False)
    assert status([first, said(3, 2)]) is Status.UNKNOWN


def test_a_kept_verdict_is_forgotten() -> None:
    store = AuditStore("sqlite://")
    store.fold([said(1, 0), *rest()])
    assert Keeper().keep_some(store, NOW_MS) == 1
    store.fold([said(3, 2, time_ms=BEAT_MS, tallied=False)])
    assert judged(store).status is Status.UNKNOWN
    store.close()


def test_it_is_forgotten_with_its_hours() -> None:
    store = AuditStore("sqlite://")
    store.fold([said(1, 0), said(3, 2)])
    assert judged(store).status is not Status.COMPLETE
    forget(store, NOW_MS + HOUR_MS)
    with store.reading() as connection:
        assert connection.exec_driver_sql("select count(*) from missing_reports").scalar() == 0
    store.close()


@pytest.mark.parametrize(("number", "arrived"), [(3, 3), (3, 4), (3, -1)])
def test_an_impossible_number_is_refused(number: int, arrived: int) -> None:
    with pytest.raises(ImpossibleRecordError):
        check(said(number, arrived), NOW_MS)
    check(said(3, 2), NOW_MS)
