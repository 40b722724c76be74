"""The demo's output: numbered steps, lines of text, and progress as bars or, outside a terminal, as lines.

Owns the layout; knows nothing of where the numbers come from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.audit.report.view import print_indented

FILE_WIDTH: Final = 120
INDENT: Final = 3
LINE_INTERVAL_S: Final = 3.0
# How often a line is repeated outside a terminal while no count changes.
UNCHANGED_INTERVAL_S: Final = 30.0


class Screen:
    """Prints steps, lines and bars to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            # A file has no width of its own.
            self.console.width = FILE_WIDTH
        self._step = 0
        self._started = time.monotonic()

    def step(self, title: str) -> None:
        """Begins a new numbered step."""
        self._step += 1
        elapsed_s = time.monotonic() - self._started
        self.console.print(f"\n[bold cyan]{self._step}. {title}[/] [dim]({elapsed_s:.0f} s)[/]")

    def print(self, text: str) -> None:
        """Prints a line of the current step; may contain rich's markup."""
        print_indented(self.console, text, INDENT)

    def warn(self, text: str) -> None:
        self.print(f"[yellow]{text}[/]")

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Bars]:
        """Shows a bar for each name; lines printed at the same time appear above them."""
        if self.console.is_terminal:
            columns = (
                TextColumn("   {task.description}"),
                BarColumn(bar_width=28),
                TextColumn("{task.completed:>7,.0f} of {task.total:,.0f}"),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console) as progress:
                tasks = {name: progress.add_task(name, total=total) for name, total in totals.items()}
                yield Bars(self, dict(totals), progress, tasks)
        else:
            bars = Bars(self, dict(totals), None, {})
            yield bars
            bars.print_last_line()


class Bars:
    """The bars of one step: a count and a total for each name."""

    def __init__(
        self, screen: Screen, totals: dict[str, int], progress: Progress | None, tasks: dict[str, TaskID]
    ) -> None:
        self._screen, self._totals, self._progress, self._tasks = screen, totals, progress, tasks
        self._counts = dict.fromkeys(totals, 0)
        self._printed_at, self._printed = time.monotonic(), dict(self._counts)

    def show(self, name: str, count: int, *, total: int | None = None) -> None:
        self.show_all({name: (count, total)})

    def show_all(self, counts: Mapping[str, tuple[int, int | None]]) -> None:
        """Shows several counts of one moment: name → count, and the new total or None."""
        for name, (count, total) in counts.items():
            self._counts[name] = count
            if total is not None:
                self._totals[name] = total
            if self._progress is not None:
                self._progress.update(self._tasks[name], completed=count, total=self._totals[name])
        if self._progress is None and self._is_line_due():
            self.print_line()

    def _is_line_due(self) -> bool:
        is_changed = self._counts != self._printed
        interval_s = LINE_INTERVAL_S if is_changed else UNCHANGED_INTERVAL_S
        return time.monotonic() - self._printed_at > interval_s

    def print_line(self) -> None:
        self._printed_at, self._printed = time.monotonic(), dict(self._counts)
        parts = (f"{name} {self._counts[name]:,}/{self._totals[name]:,}" for name in self._totals)
        self._screen.print(" · ".join(parts))

    def print_last_line(self) -> None:
        if self._counts != self._printed:
            self.print_line()
