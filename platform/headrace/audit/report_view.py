"""The audit report as people see it: a table of four tiers and a verdict, and what was found in plain words.

Owns the looks, for the command line and the demo. Draws values that `headrace.audit` made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headrace.audit.evidence import Finding, Status, Verdict
from headrace.audit.report import Report
from headrace.audit.wording import hour

FINDINGS_SHOWN_MAX: Final = 40

STYLES: Final = {
    Status.COMPLETE: "green",
    Status.PENDING: "yellow",
    Status.UNKNOWN: "yellow",
    Status.DUPLICATED: "red",
    Status.LOST: "bold red",
}


def print_indented(console: Console, text: str, indent: int) -> None:
    """One paragraph; folded at words in a terminal, and left whole elsewhere."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(" " * indent + text, soft_wrap=True)


def report_table(verdicts: Iterable[Verdict]) -> Table:
    """One row a topic, datacenter and hour: what each tier counted, and the verdict."""
    # As wide as a terminal of 80 columns, with topics as long as `page-view`.
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("topic")
    for column in ("from", "hour (UTC)"):
        table.add_column(column, no_wrap=True)
    for column in ("producer", "datacenter", "analysis", "warehouse"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for each in verdicts:
        counts = each.counts
        warehouse = f"{counts.warehouse:,}"
        if counts.dead_lettered:
            warehouse += f" + {counts.dead_lettered:,} dead"
        table.add_row(
            each.topic,
            each.datacenter,
            hour(each.hour_ms).removesuffix(":00") + "h",
            *(f"{count:,}" for count in (counts.producer, counts.datacenter, counts.analysis)),
            warehouse,
            f"[{STYLES[each.status]}]{each.status}[/]",
        )
    return table


def print_report(
    report: Report,
    console: Console,
    *,
    empty: str,
    findings: Sequence[Finding] | None = None,
    indent: int = 0,
) -> None:
    """The table, then the findings (by default all of the report's), then one line that sums up."""

    def say(text: str) -> None:
        print_indented(console, text, indent)

    if not report.verdicts:
        say(empty)
        return
    console.print(Padding(report_table(report.verdicts), (0, 0, 0, indent), expand=False))
    if findings is None:
        findings = [finding for verdict in report.verdicts for finding in verdict.findings]
    for finding in findings[:FINDINGS_SHOWN_MAX]:
        style = STYLES[finding.status]
        say(f"[{style}]{finding.status}[/]  {finding.hop}: {escape(finding.text)}")
    if len(findings) > FINDINGS_SHOWN_MAX:
        say(f"… and {len(findings) - FINDINGS_SHOWN_MAX:,} findings more (--json has all)")
    complete = sum(verdict.status is Status.COMPLETE for verdict in report.verdicts)
    say(f"{complete:,} of {len(report.verdicts):,} rows are complete")
