"""What docs/paper.md names exists: rooms, tests, rows and figures of the benchmarks."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text()
ROOMS = {
    path.parent.name
    for folder in ("platform", "broker", "mirror", "terraform")
    for path in (ROOT / folder / "headrace").glob("*/__init__.py")
}


def test_every_room_and_module_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PAGE))
    of_rooms = {name for name in named if name.partition(".")[0] in ROOMS}
    missing = [name for name in sorted(of_rooms) if importlib.util.find_spec(f"headrace.{name}") is None]
    assert not missing
    assert len(of_rooms) >= 25
    assert named - of_rooms <= {"flush.messages", "flush.ms"}


def test_every_test_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    missing = [name for name in sorted(named) if not (ROOT / name).is_file()]
    assert not missing
    assert len(named) >= 15


def test_rows_and_figures_are_those_of_the_benchmarks() -> None:
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    quoted = re.findall(r"\*\*(\d[\d.,]* m?s)\*\*", PAGE)
    assert quoted and not [figure for figure in quoted if figure not in benchmarks]
    rows = {row["key"] for row in json.loads((ROOT / "docs" / "benchmarks.json").read_text())["rows"]}
    named = set(re.findall(r"row `([\w-]+)`", PAGE))
    assert named and not named - rows


def test_no_section_of_the_paper_is_left_out() -> None:
    numbers = set(re.findall(r"^## (\d(?:\.\d)?)", PAGE, re.MULTILINE)) | {"2"}
    assert numbers == {"1", "2", "3", "3.1", "3.2", "3.3", "4", "5", "6"}
