"""Prints the result of a run: report, seals, rows in HDFS, latencies, and commands to look at the data.

Owns the layout and the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table

from headrace.agent.home import AgentHome, AgentRecord
from headrace.audit.findings import Finding, Status
from headrace.audit.phrases import hour
from headrace.audit.report.report import Report
from headrace.audit.report.view import print_report, printable
from headrace.demo.access_log import HOUR_MS
from headrace.demo.commands import as_typed, other_home
from headrace.demo.flow import FlowResult
from headrace.demo.loads import Sealing
from headrace.demo.outcome import MUCH_UNPARSABLE, differences, exit_code
from headrace.demo.plan import TOPIC, DemoPlan
from headrace.demo.repairing import repair_commands
from headrace.demo.screen import Screen
from headrace.fleet.airflow_units import USER, airflow_password, airflow_url

PAPER_S: Final = 10.0
DIFFERENCES_SHOWN_MAX: Final = 10


def print_report_of_run(result: FlowResult, report: Report, findings: list[Finding], screen: Screen) -> None:
    """Prints the audit's report with the findings of this run, and the batches dropped on purpose."""
    print_report(report, screen.console, empty="no tier has reported anything", findings=findings, indent=3)
    older = sum(len(verdict.findings) for verdict in report.verdicts) - len(findings)
    if older:
        screen.warn(
            f"{_count(older, 'finding')} of earlier runs not shown; `make clean` removes the earlier data"
        )
    for batch in result.dropped:
        last = batch["base_sequence"] + batch["record_count"] - 1
        screen.print(
            f"planted: {batch['record_count']} events thrown away inside the client of producer "
            f"{batch['producer_id']}: sequences {batch['base_sequence']} to {last} "
            f"of partition {batch['partition']}, {hour(batch['base_timestamp_ms'] // HOUR_MS * HOUR_MS)}"
        )


def print_ending(
    plan: DemoPlan,
    result: FlowResult,
    report: Report,
    findings: list[Finding],
    sealing: Sealing,
    rows_in_hdfs: Mapping[int, tuple[int, int]],
    screen: Screen,
) -> int:
    """Prints the rest; returns the exit code, which is 0 only if this run is complete to the last event, and
    the input's lines became events.
    """
    is_sealed = _print_seals(result, report, findings, sealing, screen)
    screen.step("rows in HDFS against the input")
    is_equal = _print_rows(plan, result, rows_in_hdfs, screen)
    screen.step("latency, end to end")
    _print_latencies(result, screen)
    screen.step("look around")
    _print_hints(plan, screen)
    is_complete = bool(report.verdicts) and not findings and is_equal and is_sealed
    commands = [as_typed(each, plan.site.home) for each in repair_commands(report, findings)]
    return print_last_line(result, findings, screen, is_complete=is_complete, commands=commands)


def print_last_line(
    result: FlowResult,
    findings: Sequence[Finding],
    screen: Screen,
    *,
    is_complete: bool,
    commands: Sequence[str] = (),
) -> int:
    """Prints the outcome in one line, then the commands that repair it; returns the exit code."""
    unparsable = result.aside_hours.total()
    lines = result.published + unparsable
    code = exit_code(is_complete=is_complete, lines=lines, unparsable=unparsable)
    took = f"({screen.elapsed_s():.0f} s)"
    aside = f" {unparsable:,} of {lines:,} lines did not parse;" if unparsable else ""
    if is_complete:
        word = "[bold yellow]complete, but[/]" if code == MUCH_UNPARSABLE else "[bold green]complete[/]:"
        screen.console.print(
            f"\n{word}{aside} {result.published:,} events published, {result.published:,} in HDFS,"
            f" none lost, no duplicates {took}"
        )
    else:
        lost = sum(finding.record_count or 0 for finding in findings if finding.status is Status.LOST)
        screen.console.print(
            f"\n[bold red]not complete[/]:{aside} {result.published:,} events published, {lost:,} lost, "
            f"{_count(len(findings), 'finding')} {took}"
        )
        for command in commands:
            screen.console.print(f"repair it:  {printable(command)}", soft_wrap=True)
    return code


def _print_seals(
    result: FlowResult, report: Report, findings: list[Finding], sealing: Sealing, screen: Screen
) -> bool:
    """Returns whether every hour is sealed, except hours in which earlier runs have findings."""
    hours_ms = result.published_hours.keys()
    unsealed = hours_ms - sealing.hours_ms
    screen.print(f"{len(hours_ms) - len(unsealed)} of {_count(len(hours_ms), 'hour')} sealed")
    if sealing.problem and unsealed:
        screen.warn(f"the run failed, in the audit's words: {sealing.problem}")
    incomplete_before = {
        verdict.hour_ms
        for verdict in report.verdicts
        if any(finding not in findings for finding in verdict.findings)
    }
    return not unsealed - incomplete_before


def _print_rows(
    plan: DemoPlan, result: FlowResult, rows_in_hdfs: Mapping[int, tuple[int, int]], screen: Screen
) -> bool:
    """Returns whether HDFS has each published event exactly once."""
    what = "lines in the access log" if plan.access_log else "events published"
    expected = plan.line_hours - result.aside_hours if plan.access_log else result.published_hours
    older = result.brought_back_hours
    wrong = differences(expected + older, rows_in_hdfs)
    rows = sum(rows for rows, _ in rows_in_hdfs.values())
    files = sum(load.file_count for load in result.loads)
    screen.print(
        f"Spark wrote {files:,} Parquet files in {_count(len(result.loads), 'load')}; read back by pyarrow:"
    )
    also = f", {older.total():,} of earlier runs brought back" if older else ""
    screen.print(f"{sum(expected.values()):,} {what}{also}, {rows:,} rows in HDFS, in {len(expected)} hours")
    if aside := result.aside_hours.total():
        screen.print(f"{aside:,} lines did not parse; they are in {plan.directory}/*.unparsable.log")
    if not wrong:
        screen.print("[green]published and stored counts agree in every hour; no duplicate rows[/]")
    for difference in wrong[:DIFFERENCES_SHOWN_MAX]:
        rows_text = f"{difference.rows:,} rows ({difference.distinct_rows:,} distinct)"
        screen.warn(f"{hour(difference.hour_ms)}: {difference.published:,} {what}, {rows_text}")
    if len(wrong) > DIFFERENCES_SHOWN_MAX:
        screen.warn(f"… and {len(wrong) - DIFFERENCES_SHOWN_MAX} more hours")
    return not wrong


def _print_latencies(result: FlowResult, screen: Screen) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("hop")
    for column in ("p50", "p99", "events"):
        table.add_column(column, justify="right")
    for name, latencies in result.latencies.items():
        middle, high = latencies.quantile(0.5), latencies.quantile(0.99)
        table.add_row(name, _in_s(middle), _in_s(high), f"{len(latencies):,}")
    table.add_row("[dim]LinkedIn 2011, whole pipeline, on average[/]", f"[dim]{PAPER_S:.0f} s[/]", "", "")
    screen.console.print(Padding(table, (0, 0, 0, 3), expand=False))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _in_s(latency_ms: int | None) -> str:
    if latency_ms is None:
        return "-"
    return f"{latency_ms} ms" if latency_ms < 1000 else f"{latency_ms / 1000:.1f} s"


def _print_hints(plan: DemoPlan, screen: Screen) -> None:
    first = min(plan.line_hours, default=plan.from_ms)
    hour_name = datetime.fromtimestamp(first / 1000, UTC).strftime("%Y-%m-%dT%H")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    if setting := other_home(plan.site.home):
        table.add_row(f"export {printable(setting)}", "the home of this site, for all that follows")
    for command, what in [
        ("status", "every process"),
        (f"consume {TOPIC} --from beginning -n 3", "events"),
        ("mirror status", "how far the mirrors have copied"),
        (f"warehouse ls {TOPIC}", "the hours in HDFS, and their seals"),
        (f"audit report -t {TOPIC} --from {hour_name}", "this report"),
        ("logs analysis-mirror-east", "a process's log"),
    ]:
        table.add_row(f".venv/bin/headrace {command}", what)
    login = f"user {USER}, password {airflow_password(plan.site)} (`headrace status` shows it, too)"
    table.add_row(airflow_url(plan.site), f"Airflow: {login}")
    paths = AgentHome(plan.site.home)
    if (agent := AgentRecord.read(paths.record)) is not None:
        login = f"any user name, its password is in {paths.read_token}"
        table.add_row(f"{agent.url}/", f"pages of every process: {login}")
    table.add_row("make down", "stop; data stays")
    screen.console.print(Padding(table, (0, 0, 0, 3), expand=False))
