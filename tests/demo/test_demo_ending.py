"""The last line of the demo and its exit code: lines that did not become events are not passed over."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from headrace.demo.commands import as_typed
from headrace.demo.ending import print_last_line
from headrace.demo.flow import FlowResult
from headrace.demo.screen import Screen
from headrace.fleet.airflow_client import Run

HOUR_MS = 1_431_856_800_000


def result_of(published: int, unparsable: int) -> FlowResult:
    return FlowResult(
        published=published,
        published_hours=Counter({HOUR_MS: published}),
        aside_hours=Counter({HOUR_MS: unparsable - unparsable // 2, -1: unparsable // 2}),
        dropped=[],
        latencies={},
        loads=[],
        last_load=Run("load-page-view", "r", "success", "manual"),
    )


@pytest.mark.parametrize(
    ("published", "unparsable", "is_complete", "code", "begin"),
    [
        (17_850, 0, True, 0, "complete: 17,850 events published"),
        (17_840, 10, True, 0, "complete: 10 of 17,850 lines did not parse; 17,840 events published"),
        (62, 17_788, True, 4, "complete, but 17,788 of 17,850 lines did not parse; 62 events published"),
        (62, 17_788, False, 1, "not complete: 17,788 of 17,850 lines did not parse; 62 events published"),
        (99, 1, True, 0, "complete: 1 of 100 lines did not parse"),
        (98, 2, True, 4, "complete, but 2 of 100 lines did not parse"),
    ],
)
def test_lines_that_do_not_parse_are_in_the_last_line(
    published: int, unparsable: int, is_complete: bool, code: int, begin: str
) -> None:
    text = io.StringIO()
    screen = Screen(Console(file=text, width=200))
    assert print_last_line(result_of(published, unparsable), [], screen, is_complete=is_complete) == code
    assert text.getvalue().strip().startswith(begin)


def test_commands_name_a_home_that_is_not_the_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_typed("headrace status", tmp_path / ".headrace") == ".venv/bin/headrace status"
    other = tmp_path / "other"
    assert as_typed("headrace status", other) == f"HEADRACE_HOME={other} .venv/bin/headrace status"
