"""Brokers that run and get another configuration: one of a datacenter after another, as in a rolling restart.

Owns the order among them, and what "ready" means for them: in sync again with what they had. `operate` starts
units by the requirements that stand here, and asks for reports through here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from headrace.agent.in_sync import InSyncWatch
from headrace.agent.probes import BrokerProbe
from headrace.agent.report import UnitReport
from headrace.agent.unit import Unit

IN_SYNC_WAIT_MAX_S: Final = 300.0
"""How much longer than a start it may take until a broker has fetched what it missed."""


class Changing:
    """`units` as they are to be started: a running broker that changes also requires the brokers of its
    datacenter that start or change before it. `ready`: the names of the units that are ready now;
    `unchanged`: of those that stay as they are.
    """

    def __init__(self, units: Sequence[Unit], ready: Collection[str], unchanged: Collection[str]) -> None:
        self._restarted = {
            unit.name
            for unit in units
            if isinstance(unit.probe, BrokerProbe) and unit.name in ready and unit.name not in unchanged
        }
        before: dict[str, tuple[str, ...]] = {}
        required: dict[str, tuple[str, ...]] = {}
        # Those that are missing come first: nothing else waits for them to come back.
        for unit in sorted(units, key=lambda unit: unit.name in self._restarted):
            if not isinstance(unit.probe, BrokerProbe) or (unit.name in ready and unit.name in unchanged):
                continue
            others = before.get(unit.datacenter, ())
            if unit.name in self._restarted:
                required[unit.name] = others
            before[unit.datacenter] = (*others, unit.name)
        self.units = [
            replace(unit, requires=tuple(dict.fromkeys((*unit.requires, *required.get(unit.name, ())))))
            for unit in units
        ]
        self._watches: dict[str, InSyncWatch] = {}

    def begin(self, unit: Unit) -> float:
        """To be called before a unit is put. Returns how many seconds it may take until it is ready."""
        if unit.name not in self._restarted:
            return unit.start_timeout_s
        self._watches[unit.name] = InSyncWatch(unit)
        return unit.start_timeout_s + IN_SYNC_WAIT_MAX_S

    def judged(self, reports: Iterable[UnitReport]) -> list[UnitReport]:
        """Returns the reports; that of a broker which still lacks what it had in sync says so."""
        return [self._judged(report) for report in reports]

    def _judged(self, report: UnitReport) -> UnitReport:
        watch = self._watches.get(report.name) if report.is_ready else None
        return report if watch is None else report._replace(problem=watch.look())
