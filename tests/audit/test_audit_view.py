"""The audit's report on a terminal: nothing of a finding's evidence is cut, and commands can be copied."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.audit.findings import PRODUCER_HOP, Counts, Finding, Status, Verdict
from headrace.audit.report.report import Report
from headrace.audit.report.view import print_report
from headrace.audit.times import HOUR_MS

HOUR_A = 1_431_856_800_000
HOURS = 9
TEXT = (
    "7 events of page-view, west, 2015-05-17 10:00, handed over by producer 1796077566005 (service f-3)"
    ", sequences 483 to 489 of partition 0, never reached west's log (between addresses 558698 and 568868)"
)


def report() -> Report:
    finding = Finding(Status.LOST, PRODUCER_HOP, TEXT, 7, 0, 1796077566005, 0, "f-3", "host-1", (483, 489))
    return Report(
        0,
        tuple(
            Verdict(
                "page-view", "west", hour_ms, Status.LOST, Counts(10_000, 9_993, 9_993, 9_993), {}, (finding,)
            )
            for hour_ms in range(HOUR_A, HOUR_A + HOURS * HOUR_MS, HOUR_MS)
        ),
    )


def printed(width: int, *, soft_wrap: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, no_color=True, width=width, soft_wrap=soft_wrap)
    print_report(report(), console, empty="")
    return text.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("width", [60, 80, 120, 400])
@pytest.mark.parametrize("soft_wrap", [True, False])  # the console of commands, and that of the demo
def test_a_terminal_shows_the_whole_evidence(width: int, soft_wrap: bool) -> None:
    shown = printed(width, soft_wrap=soft_wrap)
    assert " ".join(shown.split()).count(TEXT) == HOURS
    rows = [line for line in shown.splitlines() if "2015-05-17 1" in line and "9,993" in line]
    assert len(rows) == HOURS
    assert all("west" in row and "10,000" in row and "lost" in row for row in rows)
    assert width < 86 or all("page-view" in row for row in rows)


@pytest.mark.parametrize("soft_wrap", [True, False])
def test_a_command_is_one_line_that_can_be_copied(soft_wrap: bool) -> None:
    shown = [each for each in printed(40, soft_wrap=soft_wrap).splitlines() if each.startswith("repair")]
    assert len(shown) == HOURS
    assert all(
        each.startswith("repair  headrace audit repair page-view --hour 2015-05-17T1") for each in shown
    )
