"""The paper's figures 4 and 5 as they are today, and the picture of README, as PNG files.

As in the paper, x is the data sent so far in MB, y the messages per second; each point is one round.
Both axes are logarithmic, because the brokers lie a thousandfold apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from side_by_side.figures import RECORDS_PER_S, Row
from side_by_side.paper import FIGURE_4, FIGURE_5, PaperFigure
from side_by_side.report import Report

DPI: Final = 110
SIZE_INCHES: Final = (9.0, 5.2)
PAPER_COLOUR: Final = "0.55"
MARKERS: Final = "osD^vPX*<>"

Line = tuple[str, Row, str]
"""A label, and the row and contender whose rounds it shows."""


def draw(report: Report, folder: Path) -> list[Path]:
    """Draws every figure whose rows were measured; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, title, rows, paper in (
        ("figure-4-producers.png", "Producers (the paper's figure 4)", PRODUCER_ROWS, FIGURE_4),
        ("figure-5-consumers.png", "Consumers (the paper's figure 5)", CONSUMER_ROWS, FIGURE_5),
    ):
        lines = _lines(report, rows)
        if lines:
            _draw_one(folder / name, title, lines, paper)
            written.append(folder / name)
    return written


PRODUCER_ROWS: Final = (
    ("produce-batch-1", ", batch 1"),
    ("produce-batch-50", ", batch 50"),
    ("queues-produce", ""),
)
CONSUMER_ROWS: Final = (("consume", ""), ("queues-consume", ""))


def _lines(report: Report, rows: Sequence[tuple[str, str]]) -> list[Line]:
    found = [(report.row(key), suffix) for key, suffix in rows]
    return [
        (f"{name}{suffix}", row, name) for row, suffix in found if row is not None for name in row.samples
    ]


def _draw_one(path: Path, title: str, lines: Sequence[Line], paper: Sequence[PaperFigure]) -> None:
    # Imported here because that takes most of a second, and only a run with PLOTS draws.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure: Any
    axes: Any
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    most_mb = 1.0
    for number, (label, row, contender) in enumerate(lines):
        sent_mb = [size / 1e6 for size in accumulate(row.values(contender, "size_bytes"))]
        rates = row.values(contender, RECORDS_PER_S)
        axes.plot(sent_mb, rates, marker=MARKERS[number % len(MARKERS)], label=label, linewidth=1.5)
        most_mb = max(most_mb, *sent_mb)
    for each in paper:
        axes.axhline(each.messages_per_s, color=PAPER_COLOUR, linestyle="--", linewidth=1)
        axes.annotate(
            f"{each.label}: {each.messages_per_s:,.0f}",
            (most_mb, each.messages_per_s),
            ha="right",
            va="bottom",
            color="0.35",
            fontsize=8,
        )
    axes.set(
        xscale="log", yscale="log", title=title, xlabel="data moved so far, MB", ylabel="messages per second"
    )
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(visible=True, which="major", alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    # Without the program's version in the file, the same figures give the same bytes.
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
