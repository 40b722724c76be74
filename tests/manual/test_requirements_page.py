"""The figures of docs/requirements.md are those of the pages and files that it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "requirements.md"
ROW = re.compile(r"^\| .+? \| ([^|]+?) \| \[[^\]]+\]\(([^)#]+)[^)]*\)", re.MULTILINE)


def test_every_figure_stands_where_it_comes_from() -> None:
    rows = ROW.findall(PAGE.read_text())
    missing = []
    for text, source in rows:
        figure = text.partition(",")[0].removesuffix(" bytes").removesuffix(" MiB")
        if not figure.startswith("see ") and figure not in (PAGE.parent / source).read_text():
            missing.append(f"{figure}: not in {source}")
    assert not missing
    assert len(rows) >= 12
