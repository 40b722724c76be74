"""The demo's last words: the report, the latencies, rows against lines, and how to look at the data.

Owns the looks and the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table

from headrace.audit.evidence import Finding, Status
from headrace.audit.report import Report
from headrace.audit.report_view import print_report
from headrace.audit.wording import hour
from headrace.demo.access_log import HOUR_MS
from headrace.demo.loads import Sealing
from headrace.demo.outcome import differences
from headrace.demo.plan import TOPIC, DemoPlan
from headrace.demo.progress import Stage
from headrace.demo.run import Flow
from headrace.fleet.airflow_units import USER, airflow_password, airflow_url

PAPER_S: Final = 10.0
DIFFERENCES_SHOWN_MAX: Final = 10


def print_account(plan: DemoPlan, done: Flow, report: Report, news: list[Finding], stage: Stage) -> None:
    """The report, and what was lost on purpose."""
    print_report(report, stage.console, empty="no tier has reported anything", findings=news, indent=3)
    older = sum(len(verdict.findings) for verdict in report.verdicts) - len(news)
    if older:
        stage.warn(f"{_count(older, 'finding')} from before this run left out; `make clean` begins afresh")
    _print_dropped(plan, done, stage)


def print_ending(
    plan: DemoPlan,
    done: Flow,
    report: Report,
    news: list[Finding],
    sealing: Sealing,
    rows_in_hdfs: Mapping[int, tuple[int, int]],
    stage: Stage,
) -> int:
    """Prints the rest; returns the exit code: 0 only when this run is complete to the last event."""
    is_sealed = _print_seals(done, report, news, sealing, stage)
    stage.step("rows in HDFS against the input")
    is_equal = _print_rows(plan, done, rows_in_hdfs, stage)
    stage.step("latency, end to end")
    _print_latencies(done, stage)
    stage.step("look around")
    _print_hints(plan, stage)
    is_complete = bool(report.verdicts) and not news and is_equal and is_sealed
    took_s = stage.elapsed_s()
    if is_complete:
        stage.console.print(
            f"\n[bold green]complete[/]: {done.published:,} events published, {done.published:,} in HDFS, "
            f"none lost, none doubled ({took_s:.0f} s)"
        )
    else:
        lost = sum(finding.record_count or 0 for finding in news if finding.status is Status.LOST)
        stage.console.print(
            f"\n[bold red]not complete[/]: {done.published:,} events published, {lost:,} lost, "
            f"{_count(len(news), 'finding')} ({took_s:.0f} s)"
        )
    return 0 if is_complete else 1


def _print_dropped(plan: DemoPlan, done: Flow, stage: Stage) -> None:
    for batch in done.dropped:
        last = batch["base_sequence"] + batch["record_count"] - 1
        stage.say(
            f"planted: {batch['record_count']} events thrown away inside the client of producer "
            f"{batch['producer_id']}: sequences {batch['base_sequence']} to {last} "
            f"of partition {batch['partition']}, {hour(batch['base_timestamp_ms'] // HOUR_MS * HOUR_MS)}"
        )


def _print_seals(done: Flow, report: Report, news: list[Finding], sealing: Sealing, stage: Stage) -> bool:
    """Whether every hour is sealed, but for those that were spoilt before this run."""
    mine = done.published_hours.keys()
    unsealed = mine - sealing.hours_ms
    stage.say(f"{len(mine) - len(unsealed)} of {_count(len(mine), 'hour')} sealed")
    if sealing.refusal and unsealed:
        stage.warn(f"the run failed, in the audit's words: {sealing.refusal}")
    spoilt_before = {
        verdict.hour_ms
        for verdict in report.verdicts
        if any(finding not in news for finding in verdict.findings)
    }
    return not unsealed - spoilt_before


def _print_rows(
    plan: DemoPlan, done: Flow, rows_in_hdfs: Mapping[int, tuple[int, int]], stage: Stage
) -> bool:
    what = "lines in the access log" if plan.access_log else "events published"
    expected = plan.line_hours - done.aside_hours if plan.access_log else done.published_hours
    wrong = differences(expected, rows_in_hdfs)
    rows = sum(rows for rows, _ in rows_in_hdfs.values())
    files = sum(load.file_count for load in done.loads)
    stage.say(
        f"Spark wrote {files:,} Parquet files in {_count(len(done.loads), 'load')}; read back by pyarrow:"
    )
    stage.say(f"{sum(expected.values()):,} {what}, {rows:,} rows in HDFS, in {len(expected)} hours")
    if aside := done.aside_hours.total():
        stage.say(f"{aside:,} lines did not parse, and are kept in {plan.directory}/*.unparsable.log")
    if not wrong:
        stage.say("[green]the same in every hour, and no row twice[/]")
    for each in wrong[:DIFFERENCES_SHOWN_MAX]:
        found = f"{each.rows:,} rows ({each.distinct_rows:,} different)"
        stage.warn(f"{hour(each.hour_ms)}: {each.published:,} {what}, {found}")
    if len(wrong) > DIFFERENCES_SHOWN_MAX:
        stage.warn(f"… and {len(wrong) - DIFFERENCES_SHOWN_MAX} hours more")
    return not wrong


def _print_latencies(done: Flow, stage: Stage) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("hop")
    for column in ("p50", "p99", "events"):
        table.add_column(column, justify="right")
    for name, latencies in done.latencies.items():
        middle, high = latencies.quantile(0.5), latencies.quantile(0.99)
        table.add_row(name, _in_s(middle), _in_s(high), f"{len(latencies):,}")
    table.add_row("[dim]LinkedIn 2011, whole pipeline, on average[/]", f"[dim]{PAPER_S:.0f} s[/]", "", "")
    stage.console.print(Padding(table, (0, 0, 0, 3), expand=False))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _in_s(latency_ms: int | None) -> str:
    if latency_ms is None:
        return "-"
    return f"{latency_ms} ms" if latency_ms < 1000 else f"{latency_ms / 1000:.1f} s"


def _print_hints(plan: DemoPlan, stage: Stage) -> None:
    first = min(plan.line_hours, default=plan.from_ms)
    hour_name = datetime.fromtimestamp(first / 1000, UTC).strftime("%Y-%m-%dT%H")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for command, what in [
        ("status", "every process"),
        (f"consume {TOPIC} --from beginning -n 3", "events"),
        ("mirror status", "how far the copies are"),
        (f"warehouse ls {TOPIC}", "the hours in HDFS, and their seals"),
        (f"audit report -t {TOPIC} --from {hour_name}", "this report"),
        ("logs analysis-mirror-east", "a process's log"),
    ]:
        table.add_row(f".venv/bin/headrace {command}", what)
    table.add_row(plan.site.webhdfs_url, "HDFS in a browser")
    table.add_row(airflow_url(plan.site), f"Airflow: user {USER}, password {airflow_password(plan.site)}")
    table.add_row("make down", "stop; data stays")
    stage.console.print(Padding(table, (0, 0, 0, 3), expand=False))
