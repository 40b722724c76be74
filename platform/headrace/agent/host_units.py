"""The units of one host: which are desired, in memory and on disk, and what each of them runs.

Owns both, so that they agree: what is desired is written before it counts. `keeper` changes processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.agent.configuration import Configuration
from headrace.agent.desired import DesiredState, DesiredUnit
from headrace.agent.errors import UnitUnknownError
from headrace.agent.unit import Unit

MakeUnit = Callable[[str, Configuration], Unit]


class HostUnits:
    """Any thread may call; changes of one unit are made one after another. Callers whose decision rests on
    several units hold `lock`, also while supervisord answers: what only looks does not wait for it.
    """

    def __init__(self, desired: DesiredState, make: MakeUnit) -> None:
        self.make = make
        self.lock = threading.RLock()
        self._stored = desired
        self._desired: dict[str, DesiredUnit] = {}
        self._units: dict[str, Unit] = {}

    def load(self) -> None:
        """Reads what is stored. Raises `AgentStateError`."""
        self._desired = self._stored.load()
        self._units = {name: self.make(name, each.configuration) for name, each in self._desired.items()}

    # --- what there is; any of it may be deleted the moment after ---

    def names(self) -> list[str]:
        return [unit.name for unit in self.all()]

    def all(self) -> list[Unit]:
        """Returns the units, by name."""
        return sorted([*self._units.values()], key=lambda unit: unit.name)  # a copy is made at once

    def find(self, name: str) -> Unit | None:
        return self._units.get(name)

    def get(self, name: str) -> Unit:
        """Raises `UnitUnknownError`."""
        unit = self.find(name)
        if unit is None:
            raise UnitUnknownError(name, self.names())
        return unit

    def desired(self, name: str) -> DesiredUnit | None:
        return self._desired.get(name)

    def all_desired(self) -> dict[str, DesiredUnit]:
        return dict(self._desired)

    # --- changes; each is on disk when it returns, and raises `OSError` if that fails ---

    def record(self, unit: Unit, made_by: str) -> None:
        """Desires this unit, which does not run by this definition yet."""
        desired = DesiredUnit(unit.configuration, is_applied=False, made_by=made_by)
        with self.lock:
            self._write(unit.name, desired)
            self._units[unit.name] = unit

    def note_maker(self, name: str, made_by: str) -> None:
        """Notes which program has put a unit; "" changes nothing."""
        with self.lock:
            desired = self._desired[name]
            if made_by and desired.made_by != made_by:
                self._write(name, desired._replace(made_by=made_by))

    def mark_applied(self, name: str) -> None:
        """Notes that a unit runs by the definition that is desired."""
        self._write(name, self._desired[name]._replace(is_applied=True))

    def forget(self, name: str) -> None:
        self._stored.remove(name)
        with self.lock:
            del self._desired[name], self._units[name]

    def _write(self, name: str, desired: DesiredUnit) -> None:
        self._stored.write(name, desired)
        self._desired[name] = desired
