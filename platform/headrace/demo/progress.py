"""The demo's progress on the screen: bars in a terminal, a line now and then elsewhere.

Owns the looks; knows nothing of where the numbers come from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.audit.report_view import print_indented

FILE_WIDTH: Final = 120
INDENT: Final = 3
LINE_INTERVAL_S: Final = 3.0
# Elsewhere than in a terminal, a line is repeated only so often while nothing moves.
STILL_INTERVAL_S: Final = 30.0


class Stage:
    """The demo's voice: steps, facts and bars."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            # A file has no edge.
            self.console.width = FILE_WIDTH
        self._step = 0
        self._started = time.monotonic()

    def step(self, title: str) -> None:
        """Begins a new numbered step."""
        self._step += 1
        elapsed_s = time.monotonic() - self._started
        self.console.print(f"\n[bold cyan]{self._step}. {title}[/] [dim]({elapsed_s:.0f} s)[/]")

    def say(self, text: str) -> None:
        print_indented(self.console, text, INDENT)

    def warn(self, text: str) -> None:
        self.say(f"[yellow]{text}[/]")

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Bars]:
        """Bars, one a name; text said meanwhile appears above them."""
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
            bars.last_line()


class Bars:
    """How far each of several things is."""

    def __init__(
        self, stage: Stage, totals: dict[str, int], progress: Progress | None, tasks: dict[str, TaskID]
    ) -> None:
        self._stage, self._totals, self._progress, self._tasks = stage, totals, progress, tasks
        self._counts = dict.fromkeys(totals, 0)
        self._line_at, self._told = time.monotonic(), dict(self._counts)

    def show(self, name: str, count: int, *, total: int | None = None) -> None:
        self.show_all({name: (count, total)})

    def show_all(self, counts: Mapping[str, tuple[int, int | None]]) -> None:
        """Several at once, as they are at one moment: name → count, and the total where it has changed."""
        for name, (count, total) in counts.items():
            self._counts[name] = count
            if total is not None:
                self._totals[name] = total
            if self._progress is not None:
                self._progress.update(self._tasks[name], completed=count, total=self._totals[name])
        if self._progress is None and self._is_line_due():
            self.line()

    def _is_line_due(self) -> bool:
        passed_s = time.monotonic() - self._line_at
        return passed_s > (LINE_INTERVAL_S if self._counts != self._told else STILL_INTERVAL_S)

    def line(self) -> None:
        self._line_at, self._told = time.monotonic(), dict(self._counts)
        parts = (f"{name} {self._counts[name]:,}/{self._totals[name]:,}" for name in self._totals)
        self._stage.say(" · ".join(parts))

    def last_line(self) -> None:
        if self._counts != self._told:
            self.line()
