"""`make bench-page`: writes the figures of docs/benchmarks.json into the pages and plots that show them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from side_by_side.page import fill
from side_by_side.plots import draw
from side_by_side.report import Report, ReportError

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "docs" / "benchmarks.json"
PAGES: Final = (
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "paper.md",
    ROOT / "docs" / "requirements.md",
    ROOT / "README.md",
)


def main() -> int:
    """Returns the exit code."""
    try:
        report = Report.read(FIGURES)
        for page in PAGES:
            print(f"{page.relative_to(ROOT)}: {'written' if fill(page, report) else 'as it was'}")
    except ReportError as error:
        print(f"the pages cannot be written: {error}", file=sys.stderr)
        return 1
    for path in draw(report, ROOT / "docs"):
        print(f"{path.relative_to(ROOT)}: drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
