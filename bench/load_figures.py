"""Measured numbers, each printed beside the bar that it must reach."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

out = Console(highlight=False)


@dataclass(frozen=True)
class Figure:
    """One measured number, and the bar that it must reach; None if it has none."""

    name: str
    value: float
    unit: str
    bar: str | None = None
    is_met: bool = True
    note: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.name}: {self.value:,.2f} {self.unit}"
            if self.value < 100
            else f"{self.name}: {self.value:,.0f} {self.unit}"
        )
        verdict = "" if self.bar is None else f"   (bar {self.bar}: {'met' if self.is_met else 'MISSED'})"
        return text + verdict + (f"   {self.note}" if self.note else "")


class Figures:
    """The figures so far, each printed once it is measured."""

    def __init__(self) -> None:
        self.all: list[Figure] = []

    def show(self, name: str, value: float, unit: str, note: str = "") -> None:
        self._add(Figure(name, value, unit, note=note))

    def at_least(self, name: str, value: float, unit: str, bar: float, note: str = "") -> None:
        self._add(Figure(name, value, unit, f"≥ {bar:g}", value >= bar, note))

    def at_most(self, name: str, value: float, unit: str, bar: float, note: str = "") -> None:
        self._add(Figure(name, value, unit, f"≤ {bar:g}", value <= bar, note))

    def _add(self, figure: Figure) -> None:
        self.all.append(figure)
        out.print(f"  {'[green]' if figure.is_met else '[red]'}{figure}[/]")
