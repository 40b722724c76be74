"""How a drill's plants are scored: pure, with verdicts as they are. A blinded audit must score badly."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fix_audit_world import (
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Counts, Finding, Status, Verdict
from headrace.audit.gathering.drills import EndedDrill, ended_drills, forget_drills
from headrace.audit.report.drill_scores import false_events, outcome_of, score_of
from headrace.audit.report.naming import detection_times, name_findings
from headrace.audit.report.report import Report, report
from headrace.audit.report.view import print_report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.drills import CANARY_TOPIC, DrillPlant, DrillRecord, Outcome

SERVICE = "drill-x-east-0"
LOST = DrillPlant(
    "dropped",
    "east",
    SERVICE,
    HOUR_A,
    PRODUCER_HOP,
    statuses=("lost",),
    record_count=3,
    producer_id=12,
    producer_epoch=0,
    first_sequence=5,
    last_sequence=7,
)
SAID = replace(LOST, outcome="named", named_after_ms=41_000)
CONTROL = DrillPlant("nothing", "east", "drill-x-east-8", HOUR_A, PRODUCER_HOP)
KILLED = replace(LOST, statuses=("pending", "unknown"), record_count=0, producer_id=-1)
CLOCK = DrillPlant("clock", "east", SERVICE, HOUR_A, PRODUCER_HOP, note=f"the clock of service {SERVICE} on ")
SILENT = Finding(Status.PENDING, PRODUCER_HOP, "east's auditor has not reported")


def finding(status: Status = Status.LOST, first: int = 5, last: int = 7, **more: Any) -> Finding:
    values: dict[str, Any] = {
        "hop": PRODUCER_HOP,
        "service": SERVICE,
        "producer_id": 12,
        "producer_epoch": 0,
        "sequences": (first, last),
        "record_count": last - first + 1,
        **more,
    }
    return Finding(status, text="lost", **values)


def verdict(*findings: Finding, notes: tuple[str, ...] = (), hour_ms: int = HOUR_A) -> Verdict:
    status = findings[0].status if findings else Status.COMPLETE
    return Verdict(CANARY_TOPIC, "east", hour_ms, status, Counts(), {}, findings, notes=notes)


# --- one plant ---


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([finding()], Outcome.NAMED),
        ([finding(last=5), finding(first=6)], Outcome.NAMED),
        ([finding(first=6)], Outcome.WRONG_PLACE),  # not all of it
        ([finding(first=15, last=17)], Outcome.WRONG_PLACE),
        ([finding(producer_epoch=1)], Outcome.WRONG_PLACE),
        ([finding(hop=MIRROR_HOP)], Outcome.WRONG_PLACE),
        ([finding(Status.DUPLICATED)], Outcome.WRONG_PLACE),
        ([finding(Status.PENDING)], Outcome.UNKNOWN),
        ([SILENT], Outcome.UNKNOWN),
        ([replace(SILENT, hop=LOAD_HOP)], Outcome.MISSED),  # the load cannot know of it
        ([finding(service="another", producer_id=13)], Outcome.MISSED),
        ([], Outcome.MISSED),
    ],
)
def test_a_loss_is_named_by_its_numbers_alone(findings: list[Finding], outcome: Outcome) -> None:
    assert outcome_of(LOST, [verdict(*findings)]) is outcome


def test_an_hour_that_nobody_has_judged_is_unknown() -> None:
    assert outcome_of(LOST, []) is Outcome.UNKNOWN
    elsewhere = replace(verdict(finding()), datacenter="west")
    assert outcome_of(LOST, [verdict(finding(), hour_ms=HOUR_A - 3_600_000), elsewhere]) is Outcome.UNKNOWN


def test_events_without_numbers_are_named_by_their_count_and_a_silent_service_by_its_name() -> None:
    unsent = replace(LOST, producer_id=-1, producer_epoch=-1, first_sequence=-1, last_sequence=-1)
    nameless: dict[str, Any] = {"producer_id": None, "producer_epoch": None, "sequences": None}
    assert outcome_of(unsent, [verdict(finding(record_count=3, **nameless))]) is Outcome.NAMED
    assert outcome_of(unsent, [verdict(finding(record_count=4, **nameless))]) is Outcome.WRONG_PLACE
    silence = finding(Status.UNKNOWN, record_count=None, **nameless)
    assert outcome_of(KILLED, [verdict(silence)]) is Outcome.NAMED
    waiting = finding(Status.PENDING, record_count=3, **nameless)
    assert outcome_of(KILLED, [verdict(waiting)]) is Outcome.UNKNOWN
    assert outcome_of(KILLED, [verdict()]) is Outcome.MISSED


def test_a_clock_is_named_by_a_note_and_nothing_of_it_may_be_lost() -> None:
    note = f"the clock of service {SERVICE} on host-1 is ahead by 59 min"
    assert outcome_of(CLOCK, [verdict(notes=(note,))]) is Outcome.NAMED
    assert outcome_of(CLOCK, [verdict(notes=(note.replace("-0 ", "-1 "),))]) is Outcome.MISSED
    assert outcome_of(CLOCK, [verdict(finding(), notes=(note,))]) is Outcome.WRONG_PLACE


def test_of_a_control_nothing_may_be_said() -> None:
    about: dict[str, Any] = {"service": CONTROL.service, "producer_id": 40}
    assert outcome_of(CONTROL, [verdict(finding())]) is Outcome.NAMED
    assert outcome_of(CONTROL, [verdict(finding(**about))]) is Outcome.WRONG_PLACE
    assert outcome_of(CONTROL, [verdict(finding(Status.PENDING, **about))]) is Outcome.UNKNOWN
    assert outcome_of(CONTROL, [verdict(SILENT)]) is Outcome.UNKNOWN


def test_what_is_proven_and_was_not_planted_is_false() -> None:
    about: dict[str, Any] = {"service": CONTROL.service, "producer_id": 40}
    plants = [LOST, CONTROL]
    assert false_events(plants, [verdict(finding())]) == 0
    assert false_events(plants, [verdict(finding(), finding(first=8, last=9))]) == 2
    assert false_events(plants, [verdict(finding(Status.DUPLICATED))]) == 3
    assert false_events(plants, [verdict(finding(**about))]) == 3
    assert false_events(plants, [verdict(finding(Status.PENDING, **about))]) == 0
    # Another drill's plants in the same hour are that drill's.
    assert false_events(plants, [verdict(finding(service="drill-y-east-0", producer_id=99))]) == 0


# --- a day's drills ---


def ended(*plants: DrillPlant, said_ms: int = NOW_MS, false_count: int = 0) -> EndedDrill:
    return EndedDrill("x", "ops@host", said_ms, false_count, plants)


def test_a_score_is_borne_out_by_the_audits_own_verdicts() -> None:
    """A forged record may say that all was named: what the audit does not name now, it has missed."""
    drills = [ended(SAID, replace(CONTROL, outcome="named", named_after_ms=0))]
    score = score_of(drills, drills, [verdict(finding())])
    assert (score.found, score.plants, score.slowest_ms, score.is_good) == (2, 2, 41_000, True)
    assert "the audit found 2 of 2 planted failures in the last 24 hours, slowest 41 s" in score.sentence()
    blinded = score_of(drills, drills, [verdict()])
    assert (blinded.found, blinded.missed, blinded.doubted, blinded.is_good) == (1, 1, 1, False)
    assert "1 missed (1 that a drill called found, the audit does not name now)" in blinded.sentence()
    # What a drill itself calls missed is not put right by a verdict of today.
    missed = [ended(replace(LOST, outcome="missed"))]
    assert score_of(missed, missed, [verdict(finding())]).missed == 1


def test_a_false_alarm_and_a_day_without_drills_are_not_good() -> None:
    drills = [ended(SAID, false_count=3)]
    score = score_of(drills, drills, [verdict(finding())])
    assert not score.is_good and "3 events called lost or doubled by mistake" in score.sentence()
    older = score_of(drills, [], [])
    assert (
        not older.is_good and "there was none in the last 24 hours; the last one was at" in older.sentence()
    )


# --- in the store and the report ---

BATCHES = [Batch(0, 12, 0, first, 5, HOUR_A) for first in (0, 5, 10)]


def record(*plants: DrillPlant, run: str = "x") -> DrillRecord:
    return DrillRecord(run, "ops@host", NOW_MS - 60_000, 0, plants)


def store_of(*records: DrillRecord) -> AuditStore:
    """A store with a complete hour of page-view, and drills that say they ended a second ago."""
    log = PartitionBytes()
    for batch in BATCHES:
        log.append(batch.encode())
    store = AuditStore("sqlite://")
    store.fold(everything_reported(BATCHES, {0: log}))
    store.fold([received(each, time_ms=NOW_MS - 1_000) for each in records])
    return store


def test_the_report_has_the_score_of_the_last_24_hours() -> None:
    store = store_of(record(SAID))
    found = report(store, now_ms=NOW_MS)
    assert found.drill is not None and found.status is Status.COMPLETE
    # No tier has said anything of the canary topic: nothing bears the record out.
    assert (found.drill.found, found.drill.missed, found.drill.doubted) == (0, 1, 1)
    data = found.to_json()["drill"]
    assert (data["plants"], data["missed"], data["is_good"]) == (1, 1, False)
    assert "drill  the audit found 0 of 1 planted failures in the last 24 hours, 1 missed" in shown(found)
    later = report(store, now_ms=NOW_MS + 25 * 3_600_000)
    assert "drill  there was none in the last 24 hours" in shown(later)
    store.close()


def test_without_a_drill_the_report_says_nothing_of_drills() -> None:
    store = store_of()
    found = report(store, now_ms=NOW_MS)
    assert found.drill is None and found.to_json()["drill"] is None and "drill" not in shown(found)
    store.close()


def test_a_second_record_of_a_drill_changes_nothing_and_old_ones_are_forgotten() -> None:
    store = store_of(record(replace(LOST, outcome="missed")))
    store.fold([received(record(SAID), time_ms=NOW_MS)])
    with store.reading() as connection:
        assert [each.plants[0].outcome for each in ended_drills(connection)] == ["missed"]
    forget_drills(store, NOW_MS + 8 * 24 * 3_600_000)
    with store.reading() as connection:
        assert ended_drills(connection) == []
    store.close()


def test_the_canarys_hours_are_in_no_report_of_the_site_and_in_no_figure_of_its_detection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fix_audit_world.TOPIC", CANARY_TOPIC)
    log = PartitionBytes()
    log.append(BATCHES[0].encode())
    store = AuditStore("sqlite://")
    store.fold(everything_reported(BATCHES, {0: log}))
    assert report(store, now_ms=NOW_MS).verdicts == ()
    assert report(store, CANARY_TOPIC, now_ms=NOW_MS).status is Status.LOST
    assert name_findings(store, REPORTED_MS + 41_000, 0) == 0
    with store.reading() as connection:
        assert detection_times(connection, 0) == []
    store.close()


def shown(found: Report) -> str:
    out = io.StringIO()
    print_report(found, Console(file=out, width=200), empty="")
    return out.getvalue()
