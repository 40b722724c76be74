"""The report knows what verifications found, and how long its findings took to be named."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fix_audit_world import (
    BUCKET_MS,
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
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.report.naming import detection_times, forget_names, name_findings
from headrace.audit.report.remedies import command_of
from headrace.audit.report.report import Report, is_complete, report
from headrace.audit.report.view import print_report
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, ReceivedRecord
from headrace.audit.topic.said_of_tables import ALL, NO_HOUR_MS, TableProblem, VerifiedRecord

BATCHES = [Batch(0, 12, 0, first, 5, HOUR_A + first // 5 * BUCKET_MS) for first in (0, 5, 10)]


def log_of(batches: list[Batch]) -> PartitionBytes:
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return log


LOG = log_of(BATCHES)
COMPLETE = everything_reported(BATCHES, {0: LOG})
GONE = TableProblem(
    HOUR_A, "/data/page-view/x.parquet", 7, True, "/data/page-view/x.parquet is missing (7 rows)"
)
CUT = TableProblem(HOUR_A, "/data/page-view/y.parquet", 8, False, "/data/page-view/y.parquet has 3 bytes")
CHAIN = TableProblem(NO_HOUR_MS, "", 0, False, "/data/page-view/_log/0.json is missing")


def verified(
    *problems: TableProblem, time_ms: int = NOW_MS - 1_000, warehouse: str = WAREHOUSE
) -> ReceivedRecord:
    record = VerifiedRecord(warehouse, TOPIC, ALL, 3, 15, len(problems), problems)
    return received(record, time_ms=time_ms)


def judged(*more: ReceivedRecord) -> Report:
    store = AuditStore("sqlite://")
    try:
        store.fold([*COMPLETE, *more])
        return report(store, now_ms=NOW_MS)
    finally:
        store.close()


def shown(found: Report) -> str:
    out = io.StringIO()
    print_report(found, Console(file=out, width=200), empty="")
    return out.getvalue()


def test_a_file_that_a_verification_found_wrong_is_a_finding_of_its_hour_with_its_command() -> None:
    found = judged(verified(GONE, CUT))
    (verdict,) = found.verdicts
    assert [(each.status, each.hop, each.record_count) for each in verdict.findings] == [
        (Status.LOST, LOAD_HOP, 7),
        (Status.CORRUPT, LOAD_HOP, 8),
    ]
    assert all("a verification found it at 2023-11-15" in each.text for each in verdict.findings)
    assert GONE.path in verdict.findings[0].text and CUT.path in verdict.findings[1].text
    command = "headrace audit repair page-view --hour 2015-05-17T11:00"
    assert {command_of(verdict, each) for each in verdict.findings} == {command}
    assert "page-view: 2 problems" in shown(found)


def test_a_later_verification_replaces_what_was_said_and_an_older_one_does_not() -> None:
    found = judged(verified(GONE), verified(time_ms=NOW_MS), verified(CUT, time_ms=NOW_MS - 5_000))
    assert (found.status, found.verdicts[0].findings) == (Status.COMPLETE, ())
    assert "3 files of page-view with 15 rows were read again and are sound" in shown(found)
    # Of the table in another warehouse nothing follows for the one that loads report from.
    assert judged(verified(GONE, warehouse="hdfs://elsewhere/data")).verdicts[0].status is Status.COMPLETE


def test_a_problem_of_the_whole_table_makes_the_report_corrupt() -> None:
    found = judged(verified(CHAIN))
    assert (found.verdicts[0].status, found.status) == (Status.COMPLETE, Status.CORRUPT)
    assert CHAIN.text in shown(found)


def test_a_wrong_file_of_an_hour_of_which_the_audit_knows_nothing_else_is_in_the_report() -> None:
    """Of an hour that it had forgotten, or of an event's time that its record did not have: the report was
    complete.
    """
    other = GONE._replace(hour_ms=HOUR_A + 5 * HOUR_MS)
    found = judged(verified(other))
    assert [(each.hour_ms, each.status) for each in found.verdicts] == [
        (HOUR_A, Status.COMPLETE),
        (other.hour_ms, Status.LOST),
    ]
    assert found.status is Status.LOST
    store = AuditStore("sqlite://")
    store.fold(COMPLETE)
    assert forget(store, NOW_MS) == 1
    store.fold([verified(GONE)])
    (verdict,) = report(store, TOPIC, HOUR_A, HOUR_A + HOUR_MS, now_ms=NOW_MS).verdicts
    assert (verdict.status, verdict.findings[0].path) == (Status.LOST, GONE.path)
    assert not report(store, TOPIC, HOUR_A + HOUR_MS, now_ms=NOW_MS).verdicts
    assert not report(store, TOPIC, None, HOUR_A, now_ms=NOW_MS).verdicts
    store.close()


def test_an_hour_with_a_wrong_file_is_not_sealed() -> None:
    store = AuditStore("sqlite://")
    store.fold([*COMPLETE, verified(GONE)])
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS)
    assert not proof.complete and "x.parquet is missing" in proof.problems[0]
    store.fold([verified(time_ms=NOW_MS)])
    assert is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).complete
    store.close()


# --- how long findings take ---


def test_how_long_a_loss_took_to_be_named_is_kept_once_and_shown() -> None:
    lost = [Batch(0, 12, 0, 0, 5, HOUR_A), Batch(0, 12, 0, 5, 2, HOUR_A)]
    log = log_of(lost[1:])
    store = AuditStore("sqlite://")
    store.fold(everything_reported(lost, {0: log}))
    begun_ms = REPORTED_MS - 60_000
    for after_s in (41, 46, 51):
        name_findings(store, REPORTED_MS + after_s * 1_000, begun_ms)
    with store.reading() as connection:
        (times,) = detection_times(connection, REPORTED_MS)
    assert times == (PRODUCER_HOP, 1, 41_000, 41_000, 41_000)
    found = report(store, now_ms=REPORTED_MS + 60_000)
    assert found.detection == (times,)
    assert "producer → datacenter: 1 finding of the last 24 hours, p50 41 s, p99 41 s" in shown(found)
    # Nobody saw when an older loss was named: a store that is folded again has no times of it.
    again = AuditStore("sqlite://")
    again.fold(everything_reported(lost, {0: log}))
    assert name_findings(again, REPORTED_MS + 50_000, REPORTED_MS + 1) == 1
    with again.reading() as connection:
        assert detection_times(connection, 0) == []
    forget_names(store, REPORTED_MS + 8 * 24 * 3_600_000)
    with store.reading() as connection:
        assert detection_times(connection, 0) == []
    again.close()
    store.close()


def test_p50_and_p99_are_of_each_hop() -> None:
    from headrace.audit.store import measured_tables
    from headrace.audit.store.inserting import insert_new

    store = AuditStore("sqlite://")
    with store.writing() as connection:
        for number in range(100):
            took_ms = (number + 1) * 1_000
            row = {"digest": f"{number}", "hop": MIRROR_HOP, "took_ms": took_ms, "named_ms": REPORTED_MS}
            insert_new(connection, measured_tables.named, row)
        insert_new(
            connection,
            measured_tables.named,
            {"digest": "x", "hop": PRODUCER_HOP, "took_ms": 5, "named_ms": REPORTED_MS - 1},
        )
    with store.reading() as connection:
        assert detection_times(connection, REPORTED_MS) == [(MIRROR_HOP, 100, 51_000, 100_000, 100_000)]
        assert [each.hop for each in detection_times(connection, 0)] == [PRODUCER_HOP, MIRROR_HOP]
    store.close()


@pytest.mark.parametrize(
    ("age_s", "missing", "status", "says"),
    [
        (299, 0, Status.PENDING, "not been counted in the analysis cluster yet"),
        (301, 0, Status.LOST, "are overdue by 1 s, and the copy has gone on behind them"),
        (299, 1, Status.PENDING, "not been counted in the analysis cluster yet"),
        (301, 1, Status.UNKNOWN, "a tally of its auditor is missing"),
    ],
)
def test_a_copy_that_begins_behind_them_has_lost_them_and_a_missing_tally_leaves_them_unknown(
    age_s: int, missing: int, status: Status, says: str
) -> None:
    """Counting passes nothing over without a word: what a log does not have in its middle is a gap."""
    records = [
        report_of("publisher-12", BATCHES),
        *counted(DATACENTER_TIER, {0: LOG}),
        *(LOG.tally(ANALYSIS_TIER, 0, each, each + 1) for each in range(3) if each != missing),
    ]
    now_ms = REPORTED_MS + age_s * 1_000
    beats = [replace(heartbeat(tier, {0: LOG}), beat=now_ms) for tier in (DATACENTER_TIER, ANALYSIS_TIER)]
    store = AuditStore("sqlite://")
    store.fold([*map(received, records), *(received(each, time_ms=now_ms) for each in beats)])
    (verdict,) = report(store, TOPIC, policy=Policy(hops=(MIRROR_HOP,)), now_ms=now_ms).verdicts
    (finding,) = verdict.findings
    assert (finding.status, finding.sequences) == (status, (5 * missing, 5 * missing + 4))
    assert says in finding.text
    if status is Status.UNKNOWN:
        assert command_of(verdict, finding).startswith(f"headrace audit recount {TOPIC} --from 2015-05-17T")
    store.close()


@pytest.mark.parametrize(("age_s", "status"), [(299, Status.PENDING), (301, Status.LOST)])
def test_what_loads_went_on_behind_is_lost_at_once(age_s: int, status: Status) -> None:
    whole = load_of({0: LOG}).partitions[0]
    first = whole._replace(
        to_address=LOG.cuts[1], hours=(whole.hours[0]._replace(rows=5, distinct_offsets=5, content=None),)
    )
    last = first._replace(from_address=LOG.cuts[2], to_address=LOG.end)
    loads = [
        LoadReport(WAREHOUSE, TOPIC, sequence, REPORTED_MS, (part,))
        for sequence, part in enumerate((first, last))
    ]
    now_ms = REPORTED_MS + age_s * 1_000
    store = AuditStore("sqlite://")
    store.fold([*everything_reported(BATCHES, {0: LOG}, load=loads[0]), received(loads[1])])
    (verdict,) = report(store, TOPIC, policy=Policy(hops=(LOAD_HOP,)), now_ms=now_ms).verdicts
    (finding,) = verdict.findings
    assert (finding.status, finding.record_count) == (status, 5)
    if status is Status.LOST:
        assert "loads have gone on behind them" in finding.text
    store.close()
