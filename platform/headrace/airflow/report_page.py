"""The audit report as pages inside Airflow, for its logged-in users.

Owns `/headrace/audit` (every topic) and `/headrace/audit/TOPIC?from=…&to=…`: the report of
`headrace.audit.report` as HTML, or as JSON with `format=json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Annotated, Any, Final, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query, Response
from fastapi.responses import HTMLResponse, JSONResponse

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.hours import HourFormatError, window
from headrace.airflow.installation import ConnectionFieldError
from headrace.audit import phrases
from headrace.audit.declarations import FROM_LOG, FROM_LOG_TEXT
from headrace.audit.evidence import Verdict
from headrace.audit.report import Report, report
from headrace.audit.store import AuditStore, StoreError

ROWS_MAX: Final = 2_000

_STYLE: Final = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222 }
table { border-collapse: collapse } th, td { padding: .3em .8em; text-align: left; vertical-align: top }
th { border-bottom: 2px solid #999 } td { border-bottom: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.complete { color: #17652b } .pending, .unknown { color: #8a6100 }
.lost, .corrupt, .duplicated { color: #b00020 }
"""

app = FastAPI(title="headrace audit report", docs_url=None, redoc_url=None, openapi_url=None)


# Not async: FastAPI then runs it in a thread, because reading the store may be slow.
@app.get("/audit")
@app.get("/audit/{topic}")
def audit(
    user: GetUserDep,
    topic: str | None = None,
    since: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    until: Annotated[str | None, Query(alias="to", max_length=40)] = None,
    form: Annotated[Literal["html", "json"], Query(alias="format")] = "html",
) -> Response:
    """Returns verdicts by topic, hour and datacenter; `from` and `to` are hours (ISO 8601)."""
    try:
        start, end = window(since, until)
        store = AuditStore(HeadraceHook().installation.audit_store)
    except (HourFormatError, ConnectionFieldError, StoreError) as error:
        raise HTTPException(400, str(error)) from error
    try:
        audited = report(
            store,
            topic,
            round(start.timestamp() * 1000) if start else None,
            round(end.timestamp() * 1000) if end else None,
        )
    finally:
        store.close()
    if form == "json":
        return JSONResponse(audited.to_json())
    return HTMLResponse(page(audited, topic))


def page(audited: Report, topic: str | None) -> str:
    """Returns the report as an HTML page; if it has more than `ROWS_MAX` rows, only the worst of them."""
    verdicts: list[Verdict] = list(audited.verdicts)
    note = ""
    if len(verdicts) > ROWS_MAX:
        note = f"<p>The worst {ROWS_MAX} of {len(verdicts)} hours; narrow the window to see others.</p>"
        verdicts = sorted(verdicts, key=lambda verdict: -verdict.status.severity)[:ROWS_MAX]
    title = f"Audit of {topic}" if topic else "Audit"
    rows = "\n".join(_row(verdict) for verdict in verdicts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>As of {phrases.instant(audited.judged_ms)} UTC: <b class="{audited.status}">{audited.status}</b></p>{note}
<table><tr><th>topic<th>hour (UTC)<th>datacenter<th>producer<th>datacenter<th>analysis<th>warehouse<th>verdict
</tr>
{rows}
</table></body></html>
"""


def _row(verdict: Verdict) -> str:
    counts = verdict.counts
    numbers: Iterable[int] = (counts.producer, counts.datacenter, counts.analysis, counts.warehouse)
    cells: list[Any] = [verdict.topic, phrases.hour(verdict.hour_ms), verdict.datacenter]
    text = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    text += "".join(f'<td class="n">{number}</td>' for number in numbers)
    findings = "<br>".join(escape(finding.text) for finding in verdict.findings)
    origin = f" <i>{FROM_LOG_TEXT}</i>" if verdict.counted_from == FROM_LOG else ""
    return f'<tr>{text}<td class="{verdict.status}"><b>{verdict.status}</b>{origin}<br>{findings}</td></tr>'
