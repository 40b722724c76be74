"""The handbook: every alert of the code is on its page, and its figures are those of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.agent.report import UNSUPERVISED
from headrace.audit.findings import Status
from headrace.mirror.copying import CopyState
from reference.figures import FIGURES

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
ALERTS = (OPERATIONS / "alerts.md").read_text()
WRONG = re.compile(
    r"what is wrong|halt|fail|damaged|offline|refus|cannot|problem|troubles?\b|not (copied|published|served)|"
    r"gap|wait for"
)
"""Words of a figure's meaning that say that it is an alert."""
STATES = ("not started", UNSUPERVISED, "FATAL", "BACKOFF", "EXITED", "STOPPED", "drift", "disk")
NO_ALERTS = frozenset(
    {
        "state",
        "partitions",
        "reserve_bytes",
        "is_up_to_date",
        "skipped_bytes",
        "partial_requests",
        "unsent_bytes",
    }
)
ROW = re.compile(r"^\| .+? \| ([^|]+?) \| \[[^\]]+\]\(([^)#]+)[^)]*\) \|$", re.MULTILINE)


def first_cells() -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", ALERTS, re.MULTILINE))


def test_every_figure_that_can_be_wrong_is_explained() -> None:
    alerts = {
        name
        for figures in FIGURES
        for name, meaning in figures.meanings.items()
        if WRONG.search(meaning) and name not in NO_ALERTS
    }
    assert len(alerts) >= 15
    assert not sorted(alerts - first_cells()), "add these to docs/operations/alerts.md"


def test_every_verdict_and_state_is_explained() -> None:
    wanted = {*map(str, Status), *STATES, str(CopyState.HALTED), str(CopyState.LOCATING)}
    assert not sorted(wanted - first_cells())


def test_nothing_is_explained_that_is_not_there() -> None:
    figures = {name for each in FIGURES for name in each.meanings}
    known = figures | {*map(str, Status), *map(str, CopyState), *STATES}
    assert not sorted(first_cells() - known)


def test_every_figure_of_the_capacity_page_stands_where_it_comes_from() -> None:
    page = OPERATIONS / "capacity.md"
    rows = ROW.findall(page.read_text())
    assert len(rows) >= 8
    wrong = []
    for figure, source in rows:
        text = (page.parent / source).read_text()
        number = figure.split()[0]
        if not re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d,]|\.\d)", text):
            wrong.append(f"{figure}: not in {source}")
    assert not wrong


def test_every_page_is_in_the_index() -> None:
    index = (OPERATIONS / "index.md").read_text()
    assert not [
        path.name
        for path in OPERATIONS.glob("*.md")
        if path.name != "index.md" and f"({path.name})" not in index
    ]
