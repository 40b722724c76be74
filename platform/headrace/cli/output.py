"""How commands print: tables for people, JSON for programs, and numbers with their units.

Owns the layout, and that no byte of a stranger reaches the terminal as a command to it: what `out` and `err`
print is escaped on its way, and JSON before it is written. Knows nothing of what is printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, ConsoleRenderable, JustifyMethod, RenderHook, RenderResult
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from headrace.process.text import escaped, escaped_json, escaped_lines, has_control

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

TIME_MAX_MS: Final = 253_402_300_799_999
STDERR_NUMBER: Final = 2
PIPE_WIDTH: Final = 100_000
"""Of what a program reads: each row of a table is one line."""


class OutputClosedError(Exception):
    """The reader of the output has gone, as `head` does. Nothing is left to say."""


class OutputFailedError(Exception):
    """The output cannot be written: it goes to a full disk, for example."""


class _Escaped:
    """A renderable without control characters in its text. The colours of rich are not part of the text."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._content, options):
            if segment.control or not has_control(segment.text):
                yield segment
            else:
                yield Segment(escaped_lines(segment.text), segment.style)


class _EscapingHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class SafeConsole(Console):
    """A console for text of any origin: it escapes control characters, and replaces no `:names:`."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(highlight=False, soft_wrap=True, emoji=False, stderr=stderr, width=width)
        self.push_render_hook(_EscapingHook())

    def print(self, *words: Any, **named: Any) -> None:
        with _to_reader():
            super().print(*words, **named)

    def on_broken_pipe(self) -> None:
        raise OutputClosedError


def _open_missing_streams() -> None:
    """Opens what this process was started without, as by `>&-`. Else its next file would have the number of
    stdout, and what the programs that it starts print would be in it.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR_NUMBER:
        os.set_inheritable(file, True)
    os.close(file)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


def _forget_no_width() -> None:
    """Lets the width be found if `$COLUMNS` is 0, as where a terminal has no size: rich would print lines of
    no character, and so neither errors nor help.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns and not columns.strip("0"):
        del os.environ["COLUMNS"]


_open_missing_streams()
_forget_no_width()
# A pipe has no width of its own; its lines are not wrapped.
out: Final = SafeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH)
err: Final = SafeConsole(stderr=True)


def print_json(data: Any) -> None:
    """Prints one JSON document."""
    write(json_text(data, indent=2) + "\n")


def json_text(data: Any, *, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    """Returns data as JSON that is safe for a terminal; `default` converts what JSON does not know."""
    return escaped_json(json.dumps(data, indent=indent, ensure_ascii=False, default=default))


def write(text: str) -> None:
    """Writes text to stdout at once, escaped: for what needs no layout."""
    with _to_reader():
        sys.stdout.write(escaped_lines(text))
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Writes bytes to stdout as they are, for programs: only where `is_terminal` is false."""
    with _to_reader():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def is_terminal() -> bool:
    """Whether stdout is a terminal, to which bytes of strangers would be commands."""
    return sys.stdout.isatty()


@contextmanager
def _to_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        drop_output()
        raise OutputFailedError(f"the output cannot be written: {error.strerror}") from None


def drop_output() -> None:
    """Lets what is still buffered go nowhere, so that the end of the process does not stumble over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def note(message: str) -> None:
    """Prints a line about this run on stderr, where it mixes with no output that a program reads."""
    err.print(f"[yellow]note:[/] {escape(message)}")


def confirm(question: str) -> None:
    """Asks, and ends the command unless the answer is yes."""
    if not agrees(question):
        raise typer.Abort


def agrees(question: str) -> bool:
    """Asks on stderr, and returns whether the answer is yes."""
    return typer.confirm(escaped(question), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Prints a table, or `empty` if it has no rows; `>` before a column's name aligns it to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        # Folded, not cut: half a name may be another's name.
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
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
