"""The demo from end to end: what `headrace demo` calls."""

from __future__ import annotations

from pathlib import Path

from headrace.demo.ending import print_account, print_ending
from headrace.demo.outcome import new_findings
from headrace.demo.plan import (
    EVENT_COUNT,
    PUBLISHING_S,
    TOPIC,
    make_plan,
)
from headrace.demo.progress import Stage
from headrace.demo.recount import count_rows
from headrace.demo.run import (
    account,
    bring_up,
    flow,
    make_topics,
    report_before,
    seal,
)
from headrace.fleet.airflow_units import check_installed
from headrace.process.clock import now_ms
from headrace.site.site import Site


def run_demo(
    *,
    access_log: Path | None = None,
    drop: int = 0,
    event_count: int = EVENT_COUNT,
    publishing_s: float = PUBLISHING_S,
) -> int:
    """Runs the demo on the site of `$HEADRACE_HOME`; returns the exit code. Raises `SiteError`."""
    stage = Stage()
    site = Site.load().model_copy(update={"airflow": True})
    check_installed(site)
    plan = make_plan(
        site,
        access_log=access_log,
        drop=drop,
        event_count=event_count,
        publishing_s=publishing_s,
        now_ms=now_ms(),
    )
    bring_up(plan, stage)
    before = report_before(plan)
    start = make_topics(plan, stage)
    done = flow(plan, stage, start)
    report = account(plan, stage, done)
    news = new_findings(before, report)
    print_account(plan, done, report, news, stage)
    sealing = seal(plan, stage, done)
    rows = count_rows(plan.site.webhdfs_url, TOPIC, done.published_hours, start)
    return print_ending(plan, done, report, news, sealing, rows, stage)
