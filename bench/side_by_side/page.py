"""The figures as Markdown: the parts of docs/benchmarks.md and README.md between marks are made from a
run.

A part begins with `<!-- bench: NAME -->` and ends with `<!-- bench end -->`; the words around it are
written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from side_by_side.bars import Judgement, Verdict
from side_by_side.figures import CLIENT_CORES, METRICS, RECORDS_PER_S, Row
from side_by_side.paper import FIGURE_4, FIGURE_5
from side_by_side.report import Report

PART: Final = re.compile(r"(<!-- bench: (?P<name>[\w-]+) -->\n).*?(<!-- bench end -->)", re.DOTALL)
SMALL: Final = "<sub>{}</sub>"
NOT_MEASURED: Final = "Not measured in this run."
VERDICT_WORDS: Final = {
    Verdict.MET: "met",
    Verdict.MISSED: "**missed**",
    Verdict.CLIENT_LIMIT: "the client is the limit",
    Verdict.BUSY: "not judged: the machine was busy",
    Verdict.NO_FIGURE: "not measured",
}


def fill(path: Path, report: Report) -> bool:
    """Writes the parts of a page anew; returns whether the page has changed."""
    before = path.read_text()
    after = filled(before, report)
    if after != before:
        path.write_text(after)
    return after != before


def filled(text: str, report: Report) -> str:
    """Returns the page with its parts made from `report`: `PARTS`, and the tables of rows by their key."""

    def part(found: re.Match[str]) -> str:
        name = found["name"]
        made = PARTS[name](report) if name in PARTS else row_part(report, name)
        return f"{found[1]}{made}\n{found[3]}"

    return PART.sub(part, text)


def row_part(report: Report, key: str) -> str:
    """Returns a row as a table of its contenders, then its bars."""
    row = report.row(key)
    return NOT_MEASURED if row is None else _table(report, row)


def _table(report: Report, row: Row) -> str:
    shown = [*row.shown, *(metric for metric in (CLIENT_CORES,) if metric not in row.shown)]
    shown = [metric for metric in shown if any(row.values(name, metric) for name in row.samples)]
    lines = [
        "| | " + " | ".join(METRICS[metric].title for metric in shown) + " |",
        "|---|" + "---:|" * len(shown),
    ]
    lines += [
        f"| {name} | " + " | ".join(row.cell(name, metric, SMALL) for metric in shown) + " |"
        for name in row.samples
    ]
    lines += ["", f"{rounds_text(row)}, {row.date}."]
    if judgements := report.judgements[row.key]:
        lines += ["", *(f"- {_bar_line(each)}" for each in judgements)]
    return "\n".join(lines)


def rounds_text(row: Row) -> str:
    """Returns how often the row was measured, and for how long each time if its clients work for a time."""
    rounds = max(len(samples) for samples in row.samples.values())
    text = f"{rounds} round{'s' if rounds > 1 else ''}"
    first = next(iter(row.samples.values()))[0]
    if "records" not in first or RECORDS_PER_S not in first:
        return text
    return f"{text} of {first['records'] / first[RECORDS_PER_S]:.0f} s"


def _bar_line(judged: Judgement) -> str:
    return f"{judged.bar.text}: {judged.value_text}, {VERDICT_WORDS[judged.verdict]}"


def machine_part(report: Report) -> str:
    """Returns the machine and the date of the run."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    lines = [f"Run of {report.date} ({machine})."]
    lines += [f"Left out: {line}." for line in report.skipped]
    return "\n".join(lines)


SUMMARY_ROWS: Final = (
    ("produce-batch-1", "one record a request, acks=all"),
    ("produce-batch-50", "50 records a batch, acks=all"),
    ("produce-default", "librdkafka's defaults, acks=all"),
    ("java-default", "Java producer's defaults, acks=all"),
    ("consume", "consume from memory"),
    ("mirror", "mirror between datacenters"),
)


SUMMARY_HEAD: Final = (
    "| | headrace | Apache Kafka, fsync | ratio | Apache Kafka | ratio | CPU ratio |",
    "|---|---:|---:|---:|---:|---:|---:|",
)
NO_CONTENDER: Final = "– | –"


def summary_part(report: Report) -> str:
    """Returns README's table: six rows, headrace beside Apache Kafka with headrace's durability and with its
    own; the last column is beside its own.
    """
    lines = list(SUMMARY_HEAD)
    for key, title in SUMMARY_ROWS:
        row = report.row(key)
        if row is not None and len(row.samples) > 1:
            lines.append(_summary_line(row, title))
    return "\n".join(lines)


def _summary_line(row: Row, title: str) -> str:
    ours, theirs, *fsync = row.samples
    speed, cpu = row.shown[0], row.shown[1]
    mine = f"{METRICS[speed].show(_median(row, ours, speed))} {METRICS[speed].title}"
    durable = _beside(row, ours, fsync[0], speed) if fsync else NO_CONTENDER
    cpu_ratio = _median(row, ours, cpu) / _median(row, theirs, cpu)
    return f"| {title} | {mine} | {durable} | {_beside(row, ours, theirs, speed)} | {cpu_ratio:.2g} × |"


def _beside(row: Row, ours: str, other: str, metric: str) -> str:
    """Returns two cells: the other contender's figure, and how many times as much ours is."""
    theirs = _median(row, other, metric)
    return f"{METRICS[metric].show(theirs)} | {_median(row, ours, metric) / theirs:.2g} ×"


def _median(row: Row, contender: str, metric: str) -> float:
    median = row.median(contender, metric)
    assert median is not None
    return median


def missed_part(report: Report) -> str:
    """Returns the bars that the run did not meet."""
    missed = report.with_verdict(Verdict.MISSED)
    if not missed:
        return "Every bar that was judged is met."
    return "\n".join(f"- {row.title}: {_bar_line(judged)}" for row, judged in missed)


PAPER_ROWS: Final = (
    ("produce-batch-1", FIGURE_4[1], "headrace"),
    ("produce-batch-50", FIGURE_4[0], "headrace"),
    ("queues-produce", FIGURE_4[2], "RabbitMQ, quorum queue"),
    ("consume", FIGURE_5[0], "headrace"),
    ("queues-consume", FIGURE_5[1], "RabbitMQ, quorum queue"),
)


def paper_part(report: Report) -> str:
    """Returns the paper's averages beside today's medians of the same kind."""
    lines = ["| 2011 | messages/s | here | messages/s |", "|---|---:|---|---:|"]
    for key, told, contender in PAPER_ROWS:
        row = report.row(key)
        median = None if row is None else row.median(contender, RECORDS_PER_S)
        if row is not None and median is not None:
            verb = "produced" if told in FIGURE_4 else "consumed"
            lines.append(
                f"| {verb}: {told.label.removeprefix('paper: ')} | {told.messages_per_s:,.0f} "
                f"| {contender} (`{key}`) | {median:,.0f} |"
            )
    return "\n".join(lines)


PARTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "machine": machine_part,
    "summary": summary_part,
    "missed": missed_part,
    "paper": paper_part,
}
