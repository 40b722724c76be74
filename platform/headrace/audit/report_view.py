"""The audit report for people: a table of what each tier counted, then the findings, printed with `rich`.

Used by the command line and the demo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headrace.audit import phrases
from headrace.audit.declarations import FROM_LOG, FROM_LOG_TEXT
from headrace.audit.evidence import Finding, Status, Verdict
from headrace.audit.report import Report
from headrace.audit.times import is_named
from headrace.coordination.declared import ANY, PRODUCERS
from headrace.process.text import escaped

FINDINGS_SHOWN_MAX: Final = 40
OUTSIDE_CELL: Final = "year < 1, > 9999"

STYLES: Final = {
    Status.COMPLETE: "green",
    Status.PENDING: "yellow",
    Status.UNKNOWN: "yellow",
    Status.DUPLICATED: "red",
    Status.CORRUPT: "bold red",
    Status.LOST: "bold red",
}


def print_report(
    report: Report,
    console: Console,
    *,
    empty: str,
    findings: Sequence[Finding] | None = None,
    indent: int = 0,
) -> None:
    """Prints the table, the findings (by default all of the report's) and a summary.

    Prints `empty` instead if the report has no verdicts.
    """
    if not report.verdicts:
        print_indented(console, empty, indent)
        return
    console.print(Padding(_table(report.verdicts), (0, 0, 0, indent), expand=False))
    for topic, datacenter in sorted(
        {(verdict.topic, verdict.datacenter) for verdict in report.verdicts if is_from_log(verdict)}
    ):
        text = f"* {printable(topic)} of {printable(datacenter)}: {FROM_LOG_TEXT} ({PRODUCERS}={ANY})"
        print_indented(console, f"{text}; what its producers lost before is not known", indent)
    if findings is None:
        findings = [finding for verdict in report.verdicts for finding in verdict.findings]
    for finding in findings[:FINDINGS_SHOWN_MAX]:
        text = f"{_styled(finding.status)}  {finding.hop}: {printable(finding.text)}"
        print_indented(console, text, indent)
    if len(findings) > FINDINGS_SHOWN_MAX:
        hidden = len(findings) - FINDINGS_SHOWN_MAX
        print_indented(console, f"… and {hidden:,} findings more (--json has all)", indent)
    for each in report.set_aside:
        text = (
            f"[yellow]set aside[/]  {each.records:,} records of {printable(each.topic)}-{each.partition}, "
            f"offsets {each.first_offset} to {each.last_offset}, which are not audit records; the last one: "
            f"{printable(each.problem)}"
        )
        print_indented(console, text, indent)
    complete = sum(verdict.status is Status.COMPLETE for verdict in report.verdicts)
    print_indented(console, f"{complete:,} of {len(report.verdicts):,} rows are complete", indent)


def printable(text: str) -> str:
    """Returns text of any origin for the terminal: control characters as escapes, no markup."""
    return escape(escaped(text))


def is_from_log(verdict: Verdict) -> bool:
    return verdict.counted_from == FROM_LOG


def print_indented(console: Console, text: str, indent: int) -> None:
    """Prints one paragraph: wrapped at words on a terminal, as one line elsewhere."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(" " * indent + text, soft_wrap=True)


def _table(verdicts: Iterable[Verdict]) -> Table:
    """Returns one row per topic, datacenter and hour: what each tier counted, and the verdict."""
    # Fits into a terminal of 80 columns if the topics are no longer than `page-view`.
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("topic")
    for column in ("from", "hour (UTC)"):
        table.add_column(column, no_wrap=True)
    for column in ("producer", "datacenter", "analysis", "warehouse"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in verdicts:
        counts = verdict.counts
        dead = f" + {counts.dead_lettered:,} dead" if counts.dead_lettered else ""
        table.add_row(
            printable(verdict.topic),
            printable(verdict.datacenter),
            _hour(verdict.hour_ms),
            f"{counts.producer:,}*" if is_from_log(verdict) else f"{counts.producer:,}",
            f"{counts.datacenter:,}",
            f"{counts.analysis:,}",
            f"{counts.warehouse:,}{dead}",
            _styled(verdict.status),
        )
    return table


def _hour(hour_ms: int) -> str:
    return phrases.hour(hour_ms).removesuffix(":00") + "h" if is_named(hour_ms) else OUTSIDE_CELL


def _styled(status: Status) -> str:
    return f"[{STYLES[status]}]{status}[/]"
