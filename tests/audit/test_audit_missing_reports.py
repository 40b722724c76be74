"""Reports that publishers say arrived, and that the audit's topic lost."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

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
from headrace.audit.evidence import Evidence
from headrace.audit.evidence_of_reports import MissingReport
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.gathering.publishers import missing_reports
from headrace.audit.report.report import Report, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.records import ProducerReport, ReceivedRecord
from headrace.audit.topic.validity import check
from headrace.audit.verdicts.silence import _missing_reports

BATCH = Batch(0, 7, 0, 0, 5, HOUR_A)
FIRST_MS = HOUR_A + 60_000


def log_of(batch: Batch) -> dict[int, PartitionBytes]:
    log = PartitionBytes()
    log.append(batch.encode())
    return {0: log}


def said(number: int, arrived: int, *, time_ms: int = REPORTED_MS, tallied: bool = True) -> ReceivedRecord:
    """A report of the publisher, which names the last one that arrived."""
    made = report_of("web-1", [BATCH] if tallied else [], number=number)
    return received(replace(made, started_ms=HOUR_A, arrived_number=arrived), time_ms=time_ms)


def of_an_heir(made_ms: int | None) -> ReceivedRecord:
    """The last report of a publisher that was killed after its second one, two hours later."""
    heirs = said(3, 2, time_ms=FIRST_MS + 2 * HOUR_MS, tallied=False)
    assert isinstance(heirs.record, ProducerReport)
    return heirs._replace(record=replace(heirs.record, arrived_made_ms=made_ms, closed=True))


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


@pytest.mark.parametrize(
    ("made_ms", "hours"), [(None, [0, 1, 2]), (HOUR_A + HOUR_MS - 1, [0]), (HOUR_A + HOUR_MS, [0, 1])]
)
def test_of_a_publisher_that_was_killed_only_hours_before_its_last_report_are_unknown(
    made_ms: int | None, hours: list[int]
) -> None:
    """Its heir may name that report days after it: nothing was counted meanwhile."""
    missing = MissingReport("web-1", "frontend-2", "host-1", 2, FIRST_MS, FIRST_MS + 2 * HOUR_MS, made_ms)
    store = AuditStore("sqlite://")
    store.fold([said(1, 0, time_ms=FIRST_MS), *rest(), of_an_heir(made_ms)])
    with store.reading() as connection:
        assert missing_reports(connection, "page-view", DC) == (missing,)
    (verdict,) = judged(store).verdicts
    assert verdict.status is Status.UNKNOWN
    store.close()
    evidence = Evidence("page-view", DC, HOUR_A, missing_reports=(missing,))
    found = [
        number
        for number in range(3)
        if list(_missing_reports(replace(evidence, hour_ms=HOUR_A + number * HOUR_MS)))
    ]
    assert found == hours


def test_a_store_of_an_earlier_version_is_read_and_gets_the_column_that_it_lacks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    with sqlite3.connect(tmp_path / "audit.db") as earlier:
        earlier.execute("ALTER TABLE missing_reports DROP COLUMN made_ms")
        row = ("web-1", 7, DC, "frontend-2", "host-1", 1, 2)
        names = "publisher, report_number, datacenter, service, server, from_ms, until_ms"
        earlier.execute(f"INSERT INTO missing_reports ({names}) VALUES (?,?,?,?,?,?,?)", row)
        earlier.execute(
            "INSERT INTO handovers VALUES (?,?,0,1,'page-view',0,1,0,0,'[]','[]','[]')", (DC, "web-1")
        )
    earlier.close()
    for must_exist in (True, False, True):
        store = AuditStore(url, must_exist=must_exist)
        with store.reading() as connection:
            (found,) = missing_reports(connection, "page-view", DC)
            assert (found.report_number, found.until_ms, found.made_ms) == (7, 2, None)
        store.close()
    store = AuditStore(url)
    store.fold([said(1, 0), of_an_heir(5)])
    with store.reading() as connection:
        assert [each.made_ms for each in missing_reports(connection, "page-view", DC)] == [5, None]
    store.close()


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
    with pytest.raises(ImpossibleRecordError, match="the report that arrived was made at"):
        check(of_an_heir(2**62), NOW_MS)
