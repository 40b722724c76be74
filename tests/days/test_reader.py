"""The reader: types what the pages show, in their order, on the demo's site, and sees what they show.

A page's markers say which commands run here (tests/shown_runs.py); those of the tour's datacenters by
Terraform run in test_platform_engineer.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_days import ROOT, Day, DemoSite
from shown_runs import steps
from shown_shell import CannotRunError

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(900)]

FIRST = ("README.md", "docs/tour.md")


def pages() -> list[str]:
    paths = [*FIRST, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    return [page for page in dict.fromkeys(paths) if list(steps(page, (ROOT / page).read_text(), "demo"))]


@pytest.mark.parametrize("page", pages())
def test_what_a_page_shows(page: str, day: Day, demo_site: DemoSite) -> None:
    dags = str(demo_site.checkout / "dags")
    with demo_site.shell(demo_site.checkout, HEADRACE_DAGS=dags) as shell:
        for step in demo_site.steps(page, "demo"):
            try:
                with day.step(str(step)):
                    shell.follow(step)
            except CannotRunError as error:
                pytest.skip(f"{step} and what follows it were not run: {error}")


def test_the_readers_pages_are_there() -> None:
    assert set(FIRST) <= set(pages())
    assert all(Path(ROOT / page).is_file() for page in pages())
