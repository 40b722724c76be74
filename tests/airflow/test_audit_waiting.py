"""Waiting for the audit: proofs from a real store, the sensor, its trigger, the report page."""

import asyncio
import json
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow.triggers.base import TriggerEvent
from fastapi import HTTPException, Request

from fix_audit_world import HOUR_A, TOPIC, Batch, PartitionBytes, everything_reported, received
from headrace.airflow.links import AuditReportLink, report_url
from headrace.airflow.proofs import Proof, _proof, proofs_of, refused, undecided
from headrace.airflow.report_page import audit
from headrace.airflow.sensors import AuditCompleteSensor
from headrace.airflow.triggers import AuditDecidedTrigger
from headrace.audit.findings import Counts
from headrace.audit.report.report import HourProof, Report, report
from headrace.audit.store.store import AuditStore, StoreMissingError
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.records import ProducerReport
from headrace.coordination.declared import ANY, Change
from headrace.process.page import render

HOUR = "2015-05-17T11:00:00"
OTHER_HOUR = "2015-05-17T12:00:00"
HANDED_OVER = [Batch(0, 7, 0, first, 10, HOUR_A) for first in range(0, 100, 10)]


@pytest.fixture
def store(connection: dict[str, str]) -> AuditStore:
    return AuditStore(connection["audit_store"])


def fill(store: AuditStore, *, lost: int = 0, loaded: bool = True) -> None:
    """Makes all tiers report a hundred events of `HOUR`; the first `lost` batches of ten never arrived."""
    log = PartitionBytes()
    for batch in HANDED_OVER[lost:]:
        log.append(batch.encode())
    reports = everything_reported(HANDED_OVER, {0: log})
    store.fold(reports if loaded else reports[:-1])


def test_a_complete_hour_is_proven_with_its_counts_and_addresses(
    store: AuditStore, connection: dict[str, str]
) -> None:
    fill(store)
    (proof,) = proofs_of(connection["audit_store"], TOPIC, ["2015-05-17T11:30"])
    assert (proof.topic, proof.hour, proof.status, proof.problem_text) == (TOPIC, HOUR, "complete", "")
    assert (proof.handed_over, proof.arrived) == (100, 100)
    assert proof.proof_document["counts"]["west"]["warehouse"] == 100
    assert proof.proof_document["address_ranges"]["west"][0][1] == 0
    assert Proof.from_json(proof.to_json()) == proof
    assert undecided([proof]) == refused([proof], 1.0) == []


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(connection: dict[str, str]) -> None:
    """A wrong URL in the connection made an empty store: each hour was unknown, and no message named it."""
    path = Path(connection["audit_store"].removeprefix("sqlite:///"))
    with pytest.raises(StoreMissingError, match=re.escape(f"there is no audit store at {path}")):
        proofs_of(connection["audit_store"], TOPIC, [HOUR])
    with pytest.raises(HTTPException, match=re.escape(str(path))):
        audit(None, Request({"type": "http", "query_string": b""}), TOPIC)
    assert not path.exists()


def test_a_loss_has_the_audits_problem_text(store: AuditStore, connection: dict[str, str]) -> None:
    fill(store, lost=1)
    (proof,) = proofs_of(connection["audit_store"], TOPIC, [HOUR])
    assert proof.status == "lost"
    assert "10 events of page-view, west, 2015-05-17 11:00" in proof.problem_text
    assert "sequences 0 to 9" in proof.problem_text
    assert (proof.handed_over, proof.arrived) == (100, 90)
    assert undecided([proof]) == []


@pytest.mark.parametrize(
    ("completeness", "may_be_sealed"), [(1.0, False), (0.91, False), (0.9, True), (0.5, True)]
)
def test_a_loss_within_the_threshold_may_be_sealed(
    store: AuditStore, connection: dict[str, str], completeness: float, may_be_sealed: bool
) -> None:
    fill(store, lost=1)
    proofs = proofs_of(connection["audit_store"], TOPIC, [HOUR])
    assert (refused(proofs, completeness) == []) is may_be_sealed


def test_only_a_loss_can_be_within_a_threshold() -> None:
    for status in ("pending", "unknown", "duplicated"):
        assert not Proof(TOPIC, HOUR, status, 100, 100, "", {}).may_be_sealed(0.01)
    assert not Proof(TOPIC, HOUR, "lost", 0, 0, "", {}).may_be_sealed(0.01)


def test_missing_reports_are_unknown_and_late_events_are_pending(
    store: AuditStore, connection: dict[str, str]
) -> None:
    (unheard,) = proofs_of(connection["audit_store"], TOPIC, [HOUR])
    assert unheard.status == "unknown"
    assert "no tier has ever reported" in unheard.problem_text
    fill(store, loaded=False)
    (late,) = proofs_of(
        connection["audit_store"], TOPIC, [HOUR], delay=timedelta(days=36500), now_ms=1_700_000_060_000
    )
    assert late.status == "pending"
    assert undecided([unheard, late]) == [unheard, late]


def sensor(**more: Any) -> AuditCompleteSensor:
    return AuditCompleteSensor(
        **{"task_id": "wait", "topic": TOPIC, "hours": [HOUR], "deferrable": False, **more}
    )


def test_the_sensor_finishes_without_deferring_if_the_hour_is_proven(store: AuditStore) -> None:
    fill(store)
    (proof,) = sensor(deferrable=True).execute({})
    assert (proof["hour"], proof["status"]) == (HOUR, "complete")


def test_the_sensor_fails_at_once_on_a_loss_with_the_audits_problems(store: AuditStore) -> None:
    fill(store, lost=1)
    with pytest.raises(AirflowFailException, match=f"page-view: {HOUR} is lost: 10 events of"):
        sensor().execute({})
    (proof,) = sensor(until="decided").execute({})
    assert proof["status"] == "lost"
    (proof,) = sensor(completeness=0.9).execute({})
    assert proof["arrived"] == 90


def test_the_sensor_times_out_and_names_the_pending_hours(store: AuditStore) -> None:
    with pytest.raises(AirflowSensorTimeout, match=f"page-view: {HOUR} is unknown: .*{OTHER_HOUR}"):
        sensor(hours=[HOUR, OTHER_HOUR], timeout=0.3, poke_interval=0.05).execute({})


def test_an_hour_without_events_is_complete_when_every_tier_reports_it(store: AuditStore) -> None:
    fill(store)
    (proof,) = sensor(hours=OTHER_HOUR).execute({})
    assert (proof["status"], proof["handed_over"], proof["arrived"]) == ("complete", 0, 0)


def test_a_deferred_sensor_ends_with_its_triggers_event(store: AuditStore) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(deferrable=True, poke_interval=0.02, timeout=20).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "headrace.airflow.triggers.AuditDecidedTrigger"
    trigger = AuditDecidedTrigger(**arguments)
    assert trigger.serialize() == (path, arguments)

    async def first_event() -> TriggerEvent:
        async for event in trigger.run():
            return event
        raise AssertionError("the trigger ended without an event")

    async def fill_later() -> TriggerEvent:
        waiting = asyncio.create_task(first_event())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await asyncio.to_thread(fill, store)
        return await asyncio.wait_for(waiting, 10)

    event = asyncio.run(fill_later())
    assert event.payload["decided"] is True
    (proof,) = sensor().execute_complete({}, event.payload)
    assert (proof["status"], proof["arrived"]) == ("complete", 100)


def test_a_trigger_stops_at_its_deadline(store: AuditStore, connection: dict[str, str]) -> None:
    trigger = AuditDecidedTrigger(
        topic=TOPIC,
        hours=[HOUR],
        audit_store=connection["audit_store"],
        delay_s=300,
        poll_interval_s=0.02,
        deadline_s=time.time() + 0.1,
    )

    async def events() -> list[TriggerEvent]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(events())
    assert event.payload["decided"] is False
    with pytest.raises(AirflowSensorTimeout, match="no tier has ever reported anything about this topic"):
        sensor().execute_complete({}, event.payload)


def test_the_proofs_of_a_day_with_thousands_of_losses_fit_into_an_xcom() -> None:
    problems = tuple(f"1 event of page-view, east, is nowhere: {number} " * 5 for number in range(9_000))
    counts = {"east": Counts(9_000, 0, 0, 0)}
    hour = HourProof(TOPIC, HOUR_A, False, problems, counts, {"east": {}}, 1, {"east": "producers"})
    proof = _proof(HOUR, hour, Report(1, ()))
    assert proof.problem_text.endswith("; and 8995 more problems")
    assert proof.proof_document["reasons"][-1] == "and 8900 more problems"
    assert len(json.dumps([proof.to_json()] * 24)) < 1 << 20


def test_the_link_leads_to_the_hours_of_the_task() -> None:
    task = sensor(hours=[OTHER_HOUR, HOUR])
    assert task.operator_extra_links == (AuditReportLink(),)
    assert AuditReportLink().get_link(task, ti_key=None) == (
        "http://127.108.9.1:8080/headrace/audit/page-view?from=2015-05-17T11%3A00%3A00&to=2015-05-17T13%3A00%3A00"
    )
    assert report_url("http://a/", "a b", []) == "http://a/headrace/audit/a%20b"
    assert report_url("http://a", "t", ["{{ a template }}"]) == "http://a/headrace/audit/t"


def test_a_store_that_cannot_be_read_is_an_error_of_the_page(store: AuditStore) -> None:
    """It was an internal error, without a word."""
    with store.writing() as connection:
        connection.exec_driver_sql("DROP TABLE beats")
    request = Request({"type": "http", "query_string": b"", "headers": [], "path": "/audit", "method": "GET"})
    with pytest.raises(
        HTTPException, match="the audit store cannot be read now: no such table: beats"
    ) as caught:
        audit(None, request, TOPIC)
    assert caught.value.status_code == 503


def test_the_page_shows_counts_verdict_and_findings(store: AuditStore) -> None:
    from headrace.airflow.report_page import page

    fill(store, lost=1)
    shown = page(report(store, TOPIC), TOPIC)
    [row] = shown.tables[0].rows
    assert row[3:7] == (100, 90, 90, 90)
    html = render(shown, 0).decode()
    assert '<span class="bad">lost</span><br>' in html
    assert "10 events of page-view, west, 2015-05-17 11:00" in html
    assert "&lt;script&gt;" in render(page(report(store, TOPIC), "<script>"), 0).decode()


def test_an_hour_that_is_counted_from_the_log_on_says_so(
    store: AuditStore, connection: dict[str, str]
) -> None:
    from headrace.airflow.report_page import page

    log = PartitionBytes()
    for batch in HANDED_OVER:
        log.append(batch.encode())
    records = everything_reported(HANDED_OVER, {0: log})
    store.fold(each for each in records if not isinstance(each.record, ProducerReport))
    declaration = TopicDeclaration(TOPIC, "an-id", (Change(ANY),))
    store.fold([received(declaration)])
    (proof,) = proofs_of(connection["audit_store"], TOPIC, [HOUR])
    assert (proof.status, proof.handed_over, proof.arrived) == ("complete", 100, 100)
    assert proof.proof_document["counted_from"] == {"west": "log"}
    html = render(page(report(store, TOPIC), TOPIC), 0).decode()
    assert '<span class="good">complete</span><br><span class="">counted from the log on</span>' in html


def test_the_page_requires_a_login(airflow_database: Path, store: AuditStore) -> None:
    from airflow.api_fastapi.app import create_app

    fill(store)
    password = json.loads((airflow_database / "passwords.json").read_text())["admin"]

    async def visit() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test", trust_env=False) as http:
            stranger = await http.get("/headrace/audit/page-view")
            login = await http.post("/auth/token", json={"username": "admin", "password": password})
            http.headers["Authorization"] = f"Bearer {login.json()['access_token']}"
            window = {"from": HOUR, "to": OTHER_HOUR}
            return [
                stranger,
                await http.get("/headrace/audit/page-view", params=window),
                await http.get("/headrace/audit", params={"format": "json"}),
                await http.get("/headrace/audit", params={"from": "soon"}),
            ]

    stranger, page, plain, bad = asyncio.run(visit())
    assert stranger.status_code == 401
    assert page.status_code == 200
    assert '<span class="good">complete</span>' in page.text
    assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"], "Airflow shows it in a frame"
    assert [verdict["counts"]["warehouse"] for verdict in plain.json()["verdicts"]] == [100]
    assert bad.status_code == 400
    assert "is not a time such as" in bad.text
