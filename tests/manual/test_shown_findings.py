"""Findings that pages show are written as the audit's report writes them: verdict, hop, sentence."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.audit.findings import HOPS, Status
from shown_commands import blocks

ROOT = Path(__file__).parents[2]
SHOWN_MIN = 5
VERDICTS = "|".join(status.value for status in Status if status is not Status.COMPLETE)
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
