"""Findings that pages show are written as the audit's report writes them: verdict, hop, sentence."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.audit.findings import HOPS, Status
from shown_commands import blocks

ROOT = Path(__file__).parents[2]
SHOWN_MIN = 5
VERDICTS = "|".join(status.value for status in Status if status is not Status.COMPLETE)
REPORTS_MIN = 3
TOTAL = re.compile(r"  (\d+) of (\d+)  ")
LAST = re.compile(r"\s*(\d+) of (\d+) rows are complete")
FINDING = re.compile(rf"\s*(?:{VERDICTS})  (?!\s)(.*)")


def test_every_finding_on_a_page_names_its_hop() -> None:
    found = {
        f"{page.name}:{block.first}": match[1]
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        for block in blocks(page.read_text())
        for line in block.raw
        if (match := FINDING.fullmatch(line))
    }
    assert len(found) >= SHOWN_MIN, found
    wrong = {
        place: text for place, text in found.items() if not text.startswith(tuple(f"{h}: " for h in HOPS))
    }
    assert not wrong


def test_the_last_line_of_a_report_counts_its_rows() -> None:
    """A row is an hour of a datacenter: `2 of 2` hours of two datacenters are four rows."""
    wrong, count = [], 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in blocks(page.read_text()):
            hours: list[tuple[int, int]] = []
            for line in block.raw:
                if cell := TOTAL.search(line):
                    hours.append((int(cell[1]), int(cell[2])))
                if (last := LAST.fullmatch(line)) and hours:
                    count += 1
                    if (int(last[1]), int(last[2])) != tuple(map(sum, zip(*hours, strict=True))):
                        wrong.append(f"{page.name}:{block.first}: {line.strip()}, and the rows are {hours}")
                    hours = []
    assert count >= REPORTS_MIN
    assert not wrong
