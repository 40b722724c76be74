"""The pages show the figures of docs/benchmarks.json, and nothing that was typed by hand."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from side_by_side.page import filled
from side_by_side.report import Report


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_figures_of_the_run(page: Path) -> None:
    text = page.read_text()
    assert filled(text, Report.read(pages.FIGURES)) == text, "run make bench-page"
