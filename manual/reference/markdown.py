"""Pieces of Markdown that the generated pages share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

GENERATED: Final = "*Made from the code by `make docs`.*"


def escaped(text: str) -> str:
    """Text in which nothing is markup but code in backticks."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(
        part
        if part.startswith("`") and part.endswith("`") and len(part) > 1
        else re.sub(r"([*_<>[\]#])", r"\\\1", part)
        for part in parts
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a `|` in a cell does not end the cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "&#124;") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Text as code; none if there is none. HTML, because Markdown has no escape in code."""
    if not text:
        return ""
    return f"<code>{text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</code>"
