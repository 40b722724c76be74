"""Makes a host run its desired units, one change at a time.

Owns the steps of every change (`put`, `restart`, `delete`), and how the next agent completes them after a
crash (`recover_changes`, which `watch` calls). Units are processes of supervisord and outlive the agent: the
next agent of the same home adopts them. `supervisor` runs the processes, `desired` stores the units, `report`
decides what counts as drift.

A change of one unit holds that unit's lock from its first step to its last. The state that all units share is
locked for moments only, so that a unit that stops slowly does not delay changes of others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.agent.configuration import Configuration
from headrace.agent.conflicts import check_order, conflicts_of, with_local_requirements
from headrace.agent.desired import DesiredState, DesiredUnit
from headrace.agent.errors import (
    BusyError,
    ConflictError,
    NotReadyError,
    NotReadyForRestartError,
    TooManyUnitsError,
    UnitsLeftError,
    UnitUnknownError,
)
from headrace.agent.folders import write_files
from headrace.agent.processes import end_units_left_in
from headrace.agent.report import ChangeOutcome, Drift, UnitReport, drift_of, outcome_of, probed_report
from headrace.agent.starts import StartWatch
from headrace.agent.supervisor import Differences, Supervisor
from headrace.agent.unit import Unit, UnitState, levels
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

UNITS_MAX: Final = 64
POLL_INTERVAL_S: Final = 0.2
PROBES_AT_ONCE: Final = UNITS_MAX  # each of them may hang until its probe's bound
# Longer than the longest stop timeout of a unit, after which supervisord kills it.
LOCK_WAIT_MAX_S: Final = 60.0

MakeUnit = Callable[[str, Configuration], Unit]


class Keeper:
    """Manages the units of one home: records which are desired, runs them, and reports how they are.

    Any thread may call; `open` first, `close` last. `reached` is called with each completed step of a change:
    recorded, stopped, started, applied; for a deletion: forgotten, stopped. Setting `ending` ends all waits.
    `agent_url`: where the agent serves, for the pages of its units.
    """

    def __init__(
        self,
        home: Path,
        desired: DesiredState,
        make_unit: MakeUnit,
        *,
        ending: threading.Event,
        agent_url: str | None = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.home = home
        self._desired = desired
        self._make_unit = make_unit
        self._ending = ending
        self._reached = reached
        self._supervisor = Supervisor(home, agent_url)
        self._desired_units: dict[str, DesiredUnit] = {}
        self._units: dict[str, Unit] = {}
        self._starts = StartWatch()
        self._shared = threading.RLock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._rolling = threading.Lock()
        self._probes = ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe")

    def open(self) -> None:
        """Reads the desired units. Raises `AgentStateError`."""
        self._desired_units = self._desired.load()
        self._units = {
            name: self._make_unit(name, desired.configuration)
            for name, desired in self._desired_units.items()
        }

    def close(self, *, ends_units: bool = False) -> None:
        """Releases the threads. Units keep running, and so does supervisord.

        With `ends_units` they are stopped, in the reverse order of their start, and supervisord ends. They
        stay desired: the next agent starts them again.
        """
        if ends_units:
            self._end_units()
        self._probes.shutdown(wait=False, cancel_futures=True)
        if not self._units and self._supervisor.is_alive():
            self._supervisor.shut_down()

    def _end_units(self) -> None:
        for level in reversed(self.start_order()):
            if self._supervisor.is_alive():
                list(self._probes.map(self._supervisor.remove, [unit.name for unit in level]))
        if self._supervisor.is_alive():
            self._supervisor.shut_down()
        end_units_left_in(self.home)

    # --- reports ---

    def names(self) -> list[str]:
        return sorted(self._units)

    def unit(self, name: str) -> Unit:
        """Raises `UnitUnknownError`."""
        unit = self._units.get(name)
        if unit is None:
            raise UnitUnknownError(name, self.names())
        return unit

    def start_order(self) -> list[list[Unit]]:
        """The units, grouped so that each requires only units of earlier groups."""
        return levels(with_local_requirements(list(self._units.values())))

    def is_supervised(self) -> bool:
        """Whether supervisord responds."""
        return self._supervisor.is_alive()

    def reports(self, names: Sequence[str] | None = None, *, with_drift: bool = True) -> list[UnitReport]:
        """Reports the named units (default: all), each probed in its own protocol.

        Computing drift makes supervisord reread its configuration: callers that poll readiness pass
        `with_drift=False`.
        """
        units = [self.unit(name) for name in (self.names() if names is None else names)]
        differences: Differences | None = None
        if with_drift:
            states, differences = self._observe()
        else:
            states = self._supervisor.states()

        def report(unit: Unit) -> UnitReport:
            state = states.get(unit.name)
            drift = () if differences is None else _drift(unit, state, differences)
            made_by = self._desired_units[unit.name].made_by if unit.name in self._desired_units else ""
            failing = self._starts.problem(unit, state)
            report = probed_report(unit, state, drift)._replace(made_by=made_by)
            if failing is None or report.is_ready:
                return report
            return report._replace(failing=True, problem=failing)

        return list(self._probes.map(report, units))

    def wait_ready(self, name: str, wait_s: float) -> UnitReport:
        """Reports a unit once it is ready or has failed, or after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            (report,) = self.reports([name], with_drift=False)
            is_over = report.is_ready or report.has_failed or time.monotonic() >= deadline
            if is_over or self._ending.wait(POLL_INTERVAL_S):
                return self.reports([name])[0]

    def _observe(self) -> tuple[dict[str, UnitState], Differences]:
        with self._shared:
            states = self._supervisor.states()
            if not states and not self._supervisor.is_alive():
                return {}, Differences(added=frozenset(self._units))
            return states, self._supervisor.reload(self._units.values())

    # --- changes ---

    def put(
        self, name: str, configuration: Configuration, *, dry_run: bool = False, made_by: str = ""
    ) -> ChangeOutcome:
        """Makes the host run this unit with this configuration, and touches no other unit.

        `made_by` names the program that puts it, which owns the unit from then on, changed or not. Does not
        wait until the unit is ready. Raises `ConflictError`, `TooManyUnitsError`, and `SiteError`
        for what the host does not have.
        """
        unit = self._make_unit(name, configuration)
        with self._locked(name):
            # A concurrent PUT of another unit may want the same address.
            with self._shared:
                outcome = self._outcome(unit)
                if not dry_run and outcome is ChangeOutcome.UNCHANGED:
                    self._note_maker(name, made_by)
                if dry_run or outcome is ChangeOutcome.UNCHANGED:
                    return outcome
                logger.info("putting %s: %s", name, outcome)
                desired = DesiredUnit(configuration, is_applied=False, made_by=made_by)
                self._desired.write(name, desired)
                self._desired_units[name], self._units[name] = desired, unit
            self._reached("recorded")
            self._apply(name)
            return outcome

    def _outcome(self, unit: Unit) -> ChangeOutcome:
        """What a PUT would do. Raises what `put` raises."""
        before = self._units.get(unit.name)
        others = [other for other in self._units.values() if other.name != unit.name]
        if before is None and len(others) >= UNITS_MAX:
            raise TooManyUnitsError(f"a host has at most {UNITS_MAX} units; delete one before {unit.name}")
        check_order(unit, others)
        state: UnitState | None = None
        drift: tuple[Drift, ...] = ()
        if before is not None:
            states, differences = self._observe()
            state = states.get(unit.name)
            drift = _drift(before, state, differences)
        # The addresses that the unit's running process has now: they do not conflict with its new one.
        own_addresses = before.listens if before and state and state.is_running else ()
        if conflicts := conflicts_of(unit, others, own_addresses=own_addresses, home=self.home):
            raise ConflictError(conflicts)
        # Two configurations can give one definition: fields such as `requires` do not affect the process.
        is_same = before is not None and before.definition == unit.definition
        is_same = is_same and self._desired_units[unit.name].configuration == unit.configuration
        return outcome_of(before is not None, is_same, drift)

    def _note_maker(self, name: str, made_by: str) -> None:
        desired = self._desired_units[name]
        if made_by and desired.made_by != made_by:
            self._desired_units[name] = desired._replace(made_by=made_by)
            self._desired.write(name, self._desired_units[name])

    def restart(self, name: str) -> None:
        """Stops the unit and starts it by its current definition. Raises `UnitUnknownError`."""
        self.unit(name)
        with self._locked(name):
            self.unit(name)
            logger.info("restarting %s", name)
            self._apply(name)

    def delete(self, name: str) -> None:
        """Stops the unit and forgets it; its data and its log stay. Raises `UnitUnknownError`."""
        self.unit(name)
        with self._locked(name):
            self.unit(name)
            logger.info("deleting %s", name)
            self._desired.remove(name)
            with self._shared:
                del self._desired_units[name], self._units[name]
            self._reached("forgotten")
            self._stop_forgotten(name)
            self._reached("stopped")

    def roll(self, names: Sequence[str], wait_s: float) -> Iterator[UnitReport]:
        """Restarts one unit after another, each once the one before is ready again.

        Raises `NotReadyForRestartError` before anything is restarted if one of them is not ready, and
        `NotReadyError` if one does not come back within `wait_s`; the units after it are not restarted.
        """
        if not self._rolling.acquire(blocking=False):
            raise BusyError("another rolling restart of this host is in progress; wait for it to end")
        try:
            for report in self.reports(names):
                if not report.is_ready:
                    raise NotReadyForRestartError(
                        f"unit {report.name} is not ready ({report.problem}), so no unit was restarted; "
                        "fix it first, or restart it alone",
                        {"unit": report.to_json()},
                    )
            for number, name in enumerate(names):
                self.restart(name)
                report = self.wait_ready(name, wait_s)
                if not report.is_ready:
                    raise NotReadyError(
                        f"unit {name} is not ready within {wait_s:g} s of its restart: {report.problem}",
                        {
                            "unit": report.to_json(),
                            "restarted": list(names[:number]),
                            "left_alone": list(names[number + 1 :]),
                        },
                    )
                yield report
        finally:
            self._rolling.release()

    def shut_down(self) -> None:
        """Ends supervisord. Raises `UnitsLeftError` while there are units."""
        with self._shared:
            if self._units:
                raise UnitsLeftError(
                    f"this host still has {len(self._units)} units, such as {self.names()[0]}; "
                    "delete them, or end the agent by SIGTERM: units outlive it"
                )
            if self._supervisor.is_alive():
                self._supervisor.shut_down()
            end_units_left_in(self.home)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._shared:
            lock = self._locks[name]
        if not lock.acquire(timeout=LOCK_WAIT_MAX_S):
            raise BusyError(f"another change of unit {name} did not end in {LOCK_WAIT_MAX_S:g} s; try again")
        try:
            yield
        finally:
            lock.release()

    # --- steps of a change ---

    def _apply(self, name: str) -> None:
        """Stops the unit's process, if there is one, and starts it by the unit's current definition."""
        unit = self._units[name]
        self._starts.begin(name)
        self._ensure_daemon()
        self._supervisor.remove(name)
        self._reached("stopped")
        write_files(unit.files)
        with self._shared:
            self._supervisor.reload(self._units.values())
            self._supervisor.add(name)
        self._supervisor.start(name)
        self._reached("started")
        self._mark_applied(name)
        self._reached("applied")

    def _mark_applied(self, name: str) -> None:
        desired = self._desired_units[name]._replace(is_applied=True)
        # Not durable: if a crash loses this write, the next agent sees is_applied=False and marks it again.
        self._desired.write(name, desired, is_durable=False)
        with self._shared:
            self._desired_units[name] = desired

    def _stop_forgotten(self, name: str) -> None:
        if self._supervisor.is_alive():
            self._supervisor.remove(name)
            with self._shared:
                self._supervisor.reload(self._units.values())
        else:
            end_units_left_in(self.home, name)

    def _ensure_daemon(self) -> None:
        with self._shared:
            self._supervisor.ensure_daemon(self._units.values())

    # --- after a crash ---

    def recover_changes(self) -> list[str]:
        """Completes changes that a crash interrupted, except for starts; returns the units to start again.

        A unit that runs by an earlier definition because the agent is newer is left alone: that is drift,
        and its owner decides when to restart it.
        """
        with self._shared:
            self._ensure_daemon()
            states, differences = self._observe()
        for name in differences.removed:
            with self._locked(name):
                if name not in self._units:
                    logger.warning("stopping %s, which is no longer a unit of this host", name)
                    self._stop_forgotten(name)
        to_start = []
        for name, desired in list(self._desired_units.items()):
            state = states.get(name)
            is_half_done = not desired.is_applied and name in differences.changed
            if state is None or state.state in ("STOPPED", "EXITED", "UNKNOWN") or is_half_done:
                to_start.append(name)
            elif not desired.is_applied:
                with self._locked(name):
                    # Unless a concurrent PUT already applied it.
                    if self._desired_units.get(name) is desired:
                        self._mark_applied(name)
        return to_start

    def start_again(self, name: str) -> bool:
        """Starts a unit that `recover_changes` returned; False if it was deleted or cannot be started."""
        with self._locked(name):
            if name not in self._units:
                return False
            state = self._supervisor.states().get(name)
            # A concurrent PUT may have applied it already.
            if state is None or not state.is_running or not self._desired_units[name].is_applied:
                logger.info("starting %s again", name)
                try:
                    self._apply(name)
                except (SiteError, OSError) as error:
                    logger.error("%s cannot be started again: %s", name, error)
                    return False
            return True


def _drift(unit: Unit, state: UnitState | None, differences: Differences) -> tuple[Drift, ...]:
    on_disk = {path: _text_of(path) for path in unit.files}
    return drift_of(unit, state, is_changed=unit.name in differences.changed, on_disk=on_disk)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None
