"""The demo from end to end: what `headrace demo` calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.demo.ending import print_ending, print_report_of_run
from headrace.demo.flow import run_flow
from headrace.demo.outcome import brought_back, new_findings
from headrace.demo.plan import EVENT_COUNT, PUBLISHING_S, TOPIC, make_plan
from headrace.demo.recount import count_rows
from headrace.demo.repairing import repair
from headrace.demo.run import bring_up, make_topics, report_after, report_before, seal
from headrace.demo.screen import Screen
from headrace.fleet.airflow_units import check_installed
from headrace.fleet.paths import check_paths
from headrace.process.clock import now_ms
from headrace.site.site import Site


def run_demo(
    *,
    access_log: Path | None = None,
    drop: int = 0,
    kills: bool = False,
    repairs: bool = False,
    event_count: int = EVENT_COUNT,
    publishing_s: float = PUBLISHING_S,
) -> int:
    """Runs the demo on the site of `$HEADRACE_HOME`; returns the exit code. Raises `SiteError`.

    `repairs`: runs the commands that the report names, and reports again.
    """
    screen = Screen()
    site = Site.load().model_copy(update={"airflow": True})
    check_paths(site)
    check_installed(site)
    plan = make_plan(
        site,
        access_log=access_log,
        drop=drop,
        event_count=event_count,
        publishing_s=publishing_s,
        now_ms=now_ms(),
        kills=kills,
    )
    bring_up(plan, screen)
    before = report_before(plan)
    start = make_topics(plan, screen)
    result = run_flow(plan, screen, start)
    report = report_after(plan, screen, result)
    findings = new_findings(before, report)
    print_report_of_run(result, report, findings, screen)
    if repairs and (load := repair(plan, screen, report, findings)):
        result = replace(result, last_load=load)
        report = report_after(plan, screen, result)
        findings = new_findings(before, report)
        result = replace(result, brought_back_hours=brought_back(before, report, result.published_hours))
        print_report_of_run(result, report, findings, screen)
    sealing = seal(plan, screen, result)
    rows = count_rows(plan.site.webhdfs_url, TOPIC, result.published_hours, start)
    return print_ending(plan, result, report, findings, sealing, rows, screen)
