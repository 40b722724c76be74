"""The audit report for people, printed with `rich`: totals, then what is not complete, with its evidence and
the commands that repair it.

Used by the command line and the demo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table

from headrace.audit import phrases
from headrace.audit.findings import Accepted, Counts, Finding, Status, Verdict
from headrace.audit.report.remedies import commands_of
from headrace.audit.report.report import Report
from headrace.audit.report.tested_view import tested_lines
from headrace.audit.report.totals import Totals, totals_of
from headrace.audit.times import is_named
from headrace.audit.topic.declarations import FROM_LOG, FROM_LOG_TEXT
from headrace.coordination.declared import ANY, PRODUCERS
from headrace.process.text import escaped

FINDINGS_SHOWN_MAX: Final = 40
ROWS_SHOWN_MAX: Final = 100
COMMANDS_SHOWN_MAX: Final = 20
RECOUNTS_SHOWN_MAX: Final = 10
TABLE_COLUMNS: Final = 80
"""What a table needs: all columns whole, but for the topic, whose name is folded."""
OUTSIDE_CELL: Final = "year < 1, > 9999"

STYLES: Final = {
    Status.COMPLETE: "green",
    Status.PENDING: "yellow",
    Status.UNKNOWN: "yellow",
    Status.DUPLICATED: "red",
    Status.ALTERED: "bold red",
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
    """Prints the totals, then what is not complete: rows, findings (by default all of the report's), and the
    commands that repair them.

    Prints `empty` instead if the report has no verdicts.
    """
    if not report.verdicts:
        print_indented(console, empty, indent)
        return
    _print_table(console, _totals_table(totals_of(report.verdicts)), indent)
    for topic, datacenter in sorted(
        {(verdict.topic, verdict.datacenter) for verdict in report.verdicts if is_from_log(verdict)}
    ):
        text = f"* {printable(topic)} of {printable(datacenter)}: {FROM_LOG_TEXT} ({PRODUCERS}={ANY})"
        print_indented(console, f"{text}; what its producers lost before is not known", indent)
    incomplete = [verdict for verdict in report.verdicts if verdict.status is not Status.COMPLETE]
    if incomplete:
        _print_table(console, _table(incomplete[:ROWS_SHOWN_MAX]), indent)
        _print_hidden(console, len(incomplete) - ROWS_SHOWN_MAX, "rows", indent)
    if findings is None:
        findings = [finding for verdict in report.verdicts for finding in verdict.findings]
    for finding in findings[:FINDINGS_SHOWN_MAX]:
        text = f"{_styled(finding.status)}  {finding.hop}: {printable(finding.text)}"
        print_indented(console, text, indent)
    _print_hidden(console, len(findings) - FINDINGS_SHOWN_MAX, "findings", indent)
    for verdict in report.verdicts:
        for each in verdict.accepted:
            print_indented(console, f"[cyan]accepted[/]  {printable(accepted_text(each))}", indent)
    for note in (note for verdict in report.verdicts for note in verdict.notes):
        print_indented(console, f"[cyan]note[/]  {printable(note)}", indent)
    commands = commands_of(report.verdicts, findings)
    for command in commands[:COMMANDS_SHOWN_MAX]:
        # One line, to be copied: the terminal wraps it.
        console.print(" " * indent + f"[bold]repair[/]  {printable(command)}", soft_wrap=True)
    _print_hidden(console, len(commands) - COMMANDS_SHOWN_MAX, "commands", indent)
    for again in report.recounts[:RECOUNTS_SHOWN_MAX]:
        place = f"{printable(again.topic)}, partition {again.partition} of {printable(again.datacenter)}"
        since = f"from address {again.from_address} on, {phrases.instant(again.said_ms)}"
        text = f"[cyan]counted again[/]  {place} in tier {again.tier}, {since}: {printable(again.cause)}"
        print_indented(console, text, indent)
    _print_hidden(console, len(report.recounts) - RECOUNTS_SHOWN_MAX, "recounts", indent)
    _print_set_aside(report, console, indent)
    for label, sentence in tested_lines(report.verified, report.detection, report.drill):
        print_indented(console, f"{label}  {printable(sentence)}", indent)
    complete = len(report.verdicts) - len(incomplete)
    print_indented(console, f"{complete:,} of {len(report.verdicts):,} rows are complete", indent)


def accepted_text(each: Accepted) -> str:
    """Returns who accepted which finding, when and why."""
    author, said_ms, reason = each.acceptance
    return f"{each.finding.status}: {each.finding.text}; by {author} at {phrases.instant(said_ms)}: {reason}"


def printable(text: str) -> str:
    """Returns text of any origin for the terminal: control characters as escapes, no markup."""
    return escape(escaped(text))


def is_from_log(verdict: Verdict) -> bool:
    return verdict.counted_from == FROM_LOG


def print_indented(console: Console, text: str, indent: int) -> None:
    """Prints one paragraph: wrapped at words on a terminal, as one line elsewhere."""
    if console.is_terminal:
        # A console that leaves long lines to the terminal would cut this one at the terminal's width.
        console.print(Padding(text, (0, 0, 0, indent), expand=False), soft_wrap=False)
    else:
        console.print(" " * indent + text, soft_wrap=True)


def _print_table(console: Console, table: Table, indent: int) -> None:
    """Prints a table; where the terminal is narrower than `TABLE_COLUMNS`, it wraps whole lines."""
    if console.width >= TABLE_COLUMNS + indent:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
        return
    natural = Measurement.get(console, console.options.update(width=TABLE_COLUMNS), table).maximum
    table.width = min(natural, TABLE_COLUMNS)
    console.print(table, soft_wrap=True)


def _print_hidden(console: Console, count: int, what: str, indent: int) -> None:
    if count > 0:
        print_indented(console, f"… and {count:,} {what} more (--json has all)", indent)


def _print_set_aside(report: Report, console: Console, indent: int) -> None:
    for each in report.set_aside:
        text = (
            f"[yellow]set aside[/]  {each.records:,} records of {printable(each.topic)}-{each.partition}, "
            f"offsets {each.first_offset} to {each.last_offset}, which are not audit records; the last one: "
            f"{printable(each.problem)}"
        )
        print_indented(console, text, indent)


def _totals_table(totals: Iterable[Totals]) -> Table:
    """Returns one row per topic and datacenter: its hours, and what each tier counted of all of them."""
    table = _empty_table(("topic", "from"), "complete hours")
    for each in totals:
        table.add_row(
            printable(each.topic),
            printable(each.datacenter),
            f"{each.complete:,} of {each.hours:,}",
            *_counted(each.counts, is_from_log=each.is_from_log),
            _styled(each.status) + (f" [cyan]({each.accepted:,} accepted)[/]" if each.accepted else ""),
        )
    return table


def _table(verdicts: Iterable[Verdict]) -> Table:
    """Returns one row per topic, datacenter and hour: what each tier counted, and the verdict."""
    table = _empty_table(("topic", "from"), "hour (UTC)")
    for verdict in verdicts:
        table.add_row(
            printable(verdict.topic),
            printable(verdict.datacenter),
            _hour(verdict.hour_ms),
            *_counted(verdict.counts, is_from_log=is_from_log(verdict)),
            _styled(verdict.status),
        )
    return table


def _empty_table(names: Iterable[str], third: str) -> Table:
    # 86 columns if the topics are no longer than `page-view`; in less the topic alone is folded.
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in names:
        table.add_column(column, no_wrap=column != "topic", overflow="fold")
    table.add_column(third, no_wrap=True)
    for column in ("producer", "datacenter", "analysis", "warehouse"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    return table


def _counted(counts: Counts, *, is_from_log: bool) -> tuple[str, str, str, str]:
    dead = f" + {counts.dead_lettered:,} dead" if counts.dead_lettered else ""
    return (
        f"{counts.producer:,}*" if is_from_log else f"{counts.producer:,}",
        f"{counts.datacenter:,}",
        f"{counts.analysis:,}",
        f"{counts.warehouse:,}{dead}",
    )


def _hour(hour_ms: int) -> str:
    return phrases.hour(hour_ms).removesuffix(":00") + "h" if is_named(hour_ms) else OUTSIDE_CELL


def _styled(status: Status) -> str:
    return f"[{STYLES[status]}]{status}[/]"
