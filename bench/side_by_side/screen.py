"""What a person sees while `make bench` runs: each row's table and bars as soon as it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from side_by_side.bars import Judgement, Verdict
from side_by_side.figures import CLIENT_CORES, METRICS, OTHER_CORES, Row
from side_by_side.report import Report

COLOURS: Final = {Verdict.MET: "green", Verdict.MISSED: "red"}

WIDTH_MIN: Final = 120

console = Console(highlight=False)
if console.width < WIDTH_MIN and not console.is_terminal:
    console = Console(highlight=False, width=WIDTH_MIN)


def say(text: str) -> None:
    console.print(text)


def show_row(row: Row, judgements: Sequence[Judgement]) -> None:
    """Prints a row: of each contender the median of each metric, with the least and the most."""
    console.print(f"\n[bold]{row.title}[/]" + (f"\n{row.note}" if row.note else ""))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    shown = (*row.shown, *(metric for metric in (CLIENT_CORES, OTHER_CORES) if metric not in row.shown))
    for metric in shown:
        table.add_column(METRICS[metric].title, justify="right")
    for contender in row.samples:
        table.add_row(contender, *(row.cell(contender, metric) for metric in shown))
    console.print(table)
    for judged in judgements:
        colour = COLOURS.get(judged.verdict, "yellow")
        console.print(f"  [{colour}]{judged.verdict.value}[/]  {judged.bar.text}: {judged.value_text}")


def show_end(report: Report) -> None:
    """Prints what was missed, what was not judged, and what was left out."""
    missed = report.with_verdict(Verdict.MISSED)
    unjudged = report.with_verdict(Verdict.BUSY, Verdict.NO_FIGURE)
    met = report.with_verdict(Verdict.MET)
    limited = report.with_verdict(Verdict.CLIENT_LIMIT)
    console.print(
        f"\n{len(met)} bars met, {len(missed)} missed, {len(limited)} not judged because the client is "
        f"the limit, {len(unjudged)} not judged for another reason"
    )
    for row, judged in (*missed, *unjudged):
        console.print(f"  {judged.verdict.value}: {row.title}: {judged.bar.text}: {judged.value_text}")
    for line in report.skipped:
        console.print(f"  left out: {line}")
