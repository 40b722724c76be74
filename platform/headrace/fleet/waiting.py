"""Starting units in order while some of them are slow or fail: `headrace up --wait`.

Owns when waiting ends: all are ready, the time is over, or nothing that is missing can become ready any more.
Starts and asks by functions that are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.agent.report import UnitReport
from headrace.agent.unit import Unit
from headrace.site.errors import SiteError

TELL_INTERVAL_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.2
SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long all units together may take to become ready; `tell` gets a line now and then."""

    wait_s: float
    tell: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class UnitsMissingError(SiteError):
    """Units are not ready. `missing`: why not, by name. Those that are ready keep running."""

    def __init__(self, message: str, missing: dict[str, str]) -> None:
        super().__init__(message)
        self.missing = missing


def start_all(
    units: Sequence[Unit],
    waiting: Waiting,
    *,
    start: Callable[[Unit], object],
    reports: Callable[[list[str]], Sequence[UnitReport]],
    observe: Callable[[Unit, str], None],
) -> None:
    """Starts each unit once all that it requires are ready. Raises `UnitsMissingError`."""
    began_s = told_s = waiting.clock()
    started: dict[str, Unit] = {}
    ready: set[str] = set()
    while True:
        may_start = [unit for unit in units if unit.name not in started and set(unit.requires) <= ready]
        for unit in may_start:
            observe(unit, "starting")
            start(unit)
            started[unit.name] = unit
        found = {report.name: report for report in reports([name for name in started if name not in ready])}
        became_ready = [name for name, report in found.items() if report.is_ready]
        for name in became_ready:
            ready.add(name)
            observe(started[name], "ready")
        if len(ready) == len(units):
            return
        if became_ready:
            continue  # others may start now
        missing = _missing(units, ready, found)
        now_s = waiting.clock()
        if all(report.has_failed for report in found.values()):
            raise UnitsMissingError(
                f"{len(missing)} of {len(units)} units are not ready, and will not be: {_listed(missing)}; "
                "see `headrace logs UNIT`",
                missing,
            )
        if now_s - began_s >= waiting.wait_s:
            raise UnitsMissingError(
                f"{len(missing)} of {len(units)} units are not ready after {waiting.wait_s:g} s: "
                f"{_listed(missing)}; see `headrace status` and `headrace logs UNIT`",
                missing,
            )
        if now_s - told_s >= TELL_INTERVAL_S:
            told_s = now_s
            waiting.tell(f"after {now_s - began_s:.0f} s still missing: {_listed(missing)}")
        waiting.sleep(POLL_INTERVAL_S)


def _missing(units: Sequence[Unit], ready: set[str], found: dict[str, UnitReport]) -> dict[str, str]:
    """Returns why each unit is not ready: its own problem, or what it waits for."""
    missing = {}
    for unit in units:
        if unit.name in found:
            missing[unit.name] = " ".join((found[unit.name].problem or "it is not ready").split())
        elif unit.name not in ready:
            missing[unit.name] = f"waits for {', '.join(sorted(set(unit.requires) - ready))}"
    return missing


def _listed(missing: dict[str, str]) -> str:
    # Those that only wait for others come last.
    ordered = sorted(missing.items(), key=lambda item: item[1].startswith("waits for "))
    more = f"; and {len(ordered) - SHOWN_MAX} more" if len(ordered) > SHOWN_MAX else ""
    return "; ".join(f"{name}: {problem}" for name, problem in ordered[:SHOWN_MAX]) + more
