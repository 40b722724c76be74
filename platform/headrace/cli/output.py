"""How commands print: tables for people, JSON for programs, and numbers with their units.

Owns the layout; knows nothing of what is printed.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.process.text import escaped

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

TIME_MAX_MS: Final = 253_402_300_799_999
_CONTROLS: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")

# A pipe has no width of its own; its lines are not wrapped.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)


def print_json(data: Any) -> None:
    """Prints one JSON document."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Prints a table, or `empty` if it has no rows; `>` before a column's name aligns it to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*(escaped(str(cell)) for cell in row))
    if table.row_count:
        out.print(table)
    else:
        out.print(empty)


def plain(name: str) -> str:
    """Returns a name that a stranger chose, so that it is neither markup nor a command to the terminal."""
    return escape(escaped(name))


def in_bytes(count: int) -> str:
    """Formats `1536` as `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def printable(text: str) -> str:
    """Returns text that moves no cursor and changes no colour: control characters become `\\x1b`.

    Tabs and line ends stay. What is printed may come from anybody who can produce a record.
    """
    return "".join(
        char if char in "\t\n" or unicodedata.category(char) not in _CONTROLS else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def in_time(milliseconds: int) -> str:
    """Formats Unix ms as `2026-11-20 18:00:00.123` (UTC), a negative number as `-`.

    A time after the year 9999 stays a number, as it is a mistake: microseconds for milliseconds, perhaps.
    """
    if milliseconds < 0:
        return "-"
    if milliseconds > TIME_MAX_MS:
        return f"{milliseconds} ms"
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{milliseconds % 1000:03d}"


def in_duration(seconds: float) -> str:
    """Formats `3725` as `1h 2m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"
