"""The verdict as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.judge import Tally, percentile
from rich.console import Console
from rich.table import Table

FIGURES = (
    "injected",
    "acknowledged",
    "lost",
    "doubled",
    "reordered",
    "went_back",
    "skipped",
    "lost_places",
    "given_up",
)
SECONDS = ("unavailable_s", "recovery_s")


@dataclass
class Verdict:
    """What a run came to. `findings`: what is wrong besides the tallies, each a sentence."""

    seed: int
    title: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    epochs: int = 0
    minutes: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.findings and all(tally.is_clean for tally in self.tallies.values())

    def document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "title": self.title,
            "clean": self.is_clean,
            "minutes": round(self.minutes, 1),
            "leader_epochs": self.epochs,
            "findings": self.findings,
            "kinds": {kind: _figures(tally) for kind, tally in self.tallies.items()},
            "faults": self.faults,
        }


def _figures(tally: Tally) -> dict[str, Any]:
    times = {
        f"{name}_s_{share}": round(percentile(values, at), 3)
        for name, values in (("unavailable", tally.unavailable_s), ("recovery", tally.recovery_s))
        for share, at in (("p50", 0.5), ("max", 1.0))
    }
    each = {name: [round(value, 3) for value in getattr(tally, name)] for name in SECONDS}
    return {name: getattr(tally, name) for name in FIGURES} | times | each | {"examples": tally.examples}


def show(verdict: Verdict) -> None:
    """Prints the table, what is wrong, and the last line: the verdict."""
    table = Table(box=None, pad_edge=False)
    table.add_column("fault")
    heads = ["times", "acknowledged", "lost", "doubled", "reordered", "went back", "skipped", "place lost"]
    for head in [*heads, "given up", "unavailable s p50", "max", "live again s p50", "max"]:
        table.add_column(head, justify="right")
    for kind, tally in verdict.tallies.items():
        counts = [f"{getattr(tally, name):,}" for name in FIGURES]
        table.add_row(kind, *counts, *_seconds(tally.unavailable_s), *_seconds(tally.recovery_s))
    Console(width=170).print(table)
    for tally in verdict.tallies.values():
        for example in tally.examples:
            print(f"  {example}")
    for finding in verdict.findings:
        print(f"FOUND: {finding}")
    word = "nothing lost, doubled or reordered" if verdict.is_clean else "FAILED"
    print(f"seed {verdict.seed}: {len(verdict.faults)} faults in {verdict.minutes:.1f} minutes: {word}")


def _seconds(values: Sequence[float]) -> tuple[str, str]:
    return f"{percentile(values, 0.5):.2f}", f"{percentile(values, 1.0):.2f}"
