"""The audit report as pages inside Airflow, for its logged-in users.

Owns `/headrace/audit` (every topic) and `/headrace/audit/TOPIC?from=…&to=…`: the report of
`headrace.audit.report.report` as HTML, or as JSON with `format=json`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.exc import SQLAlchemyError

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.hours import HourFormatError, window
from headrace.airflow.installation import ConnectionFieldError
from headrace.audit import phrases
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.report import Report, report
from headrace.audit.store.store import AuditStore, StoreError, problem_now
from headrace.audit.topic.declarations import FROM_LOG, FROM_LOG_TEXT
from headrace.process.page import FRAMED_HEADERS, ROWS_MAX, Cell, Lines, Mark, Page, Table, Tone, render

_COUNTED: Final = ("producer", "datacenter", "analysis", "warehouse")
_COLUMNS: Final = ("topic", "hour (UTC)", "from", *_COUNTED, "verdict")

app = FastAPI(title="headrace audit report", docs_url=None, redoc_url=None, openapi_url=None)


# Not async: FastAPI then runs it in a thread, because reading the store may be slow.
@app.get("/audit")
@app.get("/audit/{topic}")
def audit(
    user: GetUserDep,
    request: Request,
    topic: str | None = None,
    since: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    until: Annotated[str | None, Query(alias="to", max_length=40)] = None,
    form: Annotated[Literal["html", "json"], Query(alias="format")] = "html",
) -> Response:
    """Returns verdicts by topic, hour and datacenter; `from` and `to` are hours (ISO 8601)."""
    try:
        start, end = window(since, until)
        store = AuditStore(HeadraceHook().installation.audit_store, must_exist=True)
    except (HourFormatError, ConnectionFieldError, StoreError) as error:
        raise HTTPException(400, str(error)) from error
    try:
        audited = report(
            store,
            topic,
            round(start.timestamp() * 1000) if start else None,
            round(end.timestamp() * 1000) if end else None,
        )
    except SQLAlchemyError as error:
        raise HTTPException(503, problem_now(error)) from error
    finally:
        store.close()
    if form == "json":
        return JSONResponse(audited.to_json())
    shown = page(audited, topic, f"?{request.url.query}")
    return HTMLResponse(render(shown, audited.judged_ms), headers=dict(FRAMED_HEADERS))


def page(audited: Report, topic: str | None, path: str = "?") -> Page:
    """Returns the report as a page; if it has more than `ROWS_MAX` rows, only the worst of them."""
    verdicts: list[Verdict] = list(audited.verdicts)
    note = ""
    if len(verdicts) > ROWS_MAX:
        note = f"The worst {ROWS_MAX} of {len(verdicts):,} hours; narrow the window to see others."
        verdicts = sorted(verdicts, key=lambda verdict: -verdict.status.severity)[:ROWS_MAX]
    return Page(
        title=f"Audit of {topic}" if topic else "Audit",
        state=Mark(audited.status, _tone(audited.status)),
        about="What each tier counted, by hour of event time.",
        tables=(Table("Hours", _COLUMNS, [_row(verdict) for verdict in verdicts], note),),
        path=path,
    )


def _row(verdict: Verdict) -> tuple[Cell, ...]:
    counts = verdict.counts
    said = [Mark(verdict.status, _tone(verdict.status))]
    if verdict.counted_from == FROM_LOG:
        said.append(Mark(FROM_LOG_TEXT, Tone.PLAIN))
    said += [Mark(finding.text, Tone.PLAIN) for finding in verdict.findings]
    return (
        verdict.topic,
        phrases.hour(verdict.hour_ms),
        verdict.datacenter,
        *(counts.producer, counts.datacenter, counts.analysis, counts.warehouse),
        Lines(said),
    )


def _tone(status: Status) -> Tone:
    match status:
        case Status.COMPLETE:
            return Tone.GOOD
        case Status.PENDING | Status.UNKNOWN:
            return Tone.WARN
    return Tone.BAD
