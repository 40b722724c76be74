"""Makes a host run its desired units, one change at a time.

Owns the steps of every change (`put`, `restart`, `delete`), and how the next agent completes them after a
crash, or this one after an error in their middle (`recover_changes`, which `watch` calls). Units are
processes of supervisord and outlive the agent: the next agent of the same home adopts them. `supervisor` runs
the processes, `host_units` has the units, `report` decides what counts as drift.

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
from headrace.agent.desired import DesiredState
from headrace.agent.errors import (
    BusyError,
    ConflictError,
    SupervisorError,
    TooManyUnitsError,
    UnitsLeftError,
)
from headrace.agent.folders import write_files
from headrace.agent.host_units import HostUnits, MakeUnit
from headrace.agent.processes import end_units_left_in
from headrace.agent.report import ChangeOutcome, Drift, UnitReport, drift_here, outcome_of, probed_report
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
# A restart that was interrupted has stopped the unit, or will have soon.
_TO_START: Final = ("STOPPING", "STOPPED", "EXITED", "UNKNOWN")


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
        self.ending = ending
        self._reached = reached
        self._supervisor = Supervisor(home, agent_url)
        self._units = HostUnits(desired, make_unit)
        self._starts = StartWatch()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._is_unfinished = False  # a change has failed in its middle, or supervisord was started anew
        self._probes = ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe")

    def open(self) -> None:
        """Reads the desired units. Raises `AgentStateError`."""
        self._units.load()

    def close(self, *, ends_units: bool = False) -> None:
        """Releases the threads. Units keep running, and so does supervisord.

        With `ends_units` they are stopped, in the reverse order of their start, and supervisord ends. They
        stay desired: the next agent starts them again.
        """
        if ends_units:
            self._end_units()
        self._probes.shutdown(wait=False, cancel_futures=True)
        if not self.names() and self._supervisor.is_alive():
            self._supervisor.shut_down()

    def _end_units(self) -> None:
        for level in reversed(self.start_order()):
            if self._supervisor.is_alive():
                list(self._probes.map(self._end_unit, [unit.name for unit in level]))
        if self._supervisor.is_alive():
            self._supervisor.shut_down()
        end_units_left_in(self.home)

    def _end_unit(self, name: str) -> None:
        """Stops a unit; one that does not end keeps no other one from ending in its turn."""
        try:
            self._supervisor.remove(name)
        except SupervisorError as error:
            logger.error("%s cannot be stopped in order: %s", name, error)

    # --- reports ---

    def names(self) -> list[str]:
        return self._units.names()

    def units(self) -> list[Unit]:
        """The units of this moment, by name; any of them may be deleted the moment after."""
        return self._units.all()

    def unit(self, name: str) -> Unit:
        """Raises `UnitUnknownError`."""
        return self._units.get(name)

    def start_order(self) -> list[list[Unit]]:
        """The units, grouped so that each requires only units of earlier groups."""
        return levels(with_local_requirements(self.units()))

    def is_supervised(self) -> bool:
        """Whether supervisord responds."""
        return self._supervisor.is_alive()

    def reports(self, names: Sequence[str] | None = None, *, with_drift: bool = True) -> list[UnitReport]:
        """Reports the named units (default: all), each probed in its own protocol.

        Computing drift makes supervisord reread its configuration: callers that poll readiness pass
        `with_drift=False`.
        """
        units = self.units() if names is None else [self.unit(name) for name in names]
        differences: Differences | None = None
        if with_drift:
            states, differences = self._observe()
        else:
            states = self._supervisor.states()

        def report(unit: Unit) -> UnitReport:
            state = states.get(unit.name)
            drift = () if differences is None else drift_here(unit, state, unit.name in differences.changed)
            desired = self._units.desired(unit.name)
            made_by = "" if desired is None else desired.made_by
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
            if is_over or self.ending.wait(POLL_INTERVAL_S):
                return self.reports([name])[0]

    def _observe(self) -> tuple[dict[str, UnitState], Differences]:
        with self._units.lock:
            states = self._supervisor.states()
            if not states and not self._supervisor.is_alive():
                return {}, Differences(added=frozenset(self.names()))
            return states, self._supervisor.reload(self.units())

    # --- changes ---

    def put(
        self, name: str, configuration: Configuration, *, dry_run: bool = False, made_by: str = ""
    ) -> ChangeOutcome:
        """Makes the host run this unit with this configuration, and touches no other unit.

        `made_by` names the program that puts it, which owns the unit from then on, changed or not. Does not
        wait until the unit is ready. Raises `ConflictError`, `TooManyUnitsError`, and `SiteError`
        for what the host does not have. What fails once it is recorded is repeated by `watch`.
        """
        unit = self._units.make(name, configuration)
        with self._locked(name):
            # A concurrent PUT of another unit may want the same address.
            with self._units.lock:
                outcome = self._outcome(unit)
                if not dry_run and outcome is ChangeOutcome.UNCHANGED:
                    self._units.note_maker(name, made_by)
                if dry_run or outcome is ChangeOutcome.UNCHANGED:
                    return outcome
                logger.info("putting %s: %s", name, outcome)
                self._units.record(unit, made_by)
            self._reached("recorded")
            self._apply(name)
            return outcome

    def _outcome(self, unit: Unit) -> ChangeOutcome:
        """What a PUT would do. Raises what `put` raises."""
        before = self._units.find(unit.name)
        others = [other for other in self.units() if other.name != unit.name]
        if before is None and len(others) >= UNITS_MAX:
            raise TooManyUnitsError(f"a host has at most {UNITS_MAX} units; delete one before {unit.name}")
        check_order(unit, others)
        state: UnitState | None = None
        drift: tuple[Drift, ...] = ()
        if before is not None:
            states, differences = self._observe()
            state = states.get(unit.name)
            drift = drift_here(before, state, before.name in differences.changed)
        # The addresses that the unit's running process has now: they do not conflict with its new one.
        own_addresses = before.listens if before and state and state.is_running else ()
        conflicts = conflicts_of(unit, others, own_addresses=own_addresses, home=self.home, before=before)
        if conflicts:
            raise ConflictError(conflicts)
        # Two configurations can give one definition: fields such as `requires` do not affect the process.
        is_same = before is not None and before.definition == unit.definition
        desired = self._units.desired(unit.name)
        is_same = is_same and desired is not None and desired.configuration == unit.configuration
        return outcome_of(before is not None, is_same, drift)

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
            self._units.forget(name)
            self._reached("forgotten")
            self._stop_forgotten(name)
            self._reached("stopped")

    def shut_down(self) -> None:
        """Ends supervisord. Raises `UnitsLeftError` while there are units."""
        with self._units.lock:
            if names := self.names():
                raise UnitsLeftError(
                    f"this host still has {len(names)} units, such as {names[0]}; "
                    "delete them, or end the agent by SIGTERM: units outlive it"
                )
            if self._supervisor.is_alive():
                self._supervisor.shut_down()
            end_units_left_in(self.home)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._units.lock:
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
        unit = self._units.get(name)
        self._starts.begin(name)
        with self._completed_later():
            self._ensure_daemon()
            self._supervisor.remove(name)
            self._reached("stopped")
            write_files(unit.files, unit.kept_before)
            with self._units.lock:
                self._supervisor.reload(self.units())
                self._supervisor.add(name)
            self._supervisor.start(name)
            self._reached("started")
            self._units.mark_applied(name)
        self._reached("applied")

    @contextmanager
    def _completed_later(self) -> Iterator[None]:
        """Notes that `recover_changes` has to complete what fails in here."""
        try:
            yield
        except BaseException:
            self._is_unfinished = True
            raise

    def _stop_forgotten(self, name: str) -> None:
        with self._completed_later():
            if self._supervisor.is_alive():
                self._supervisor.remove(name)
                with self._units.lock:
                    self._supervisor.reload(self.units())
            else:
                end_units_left_in(self.home, name)

    def _ensure_daemon(self) -> None:
        with self._units.lock:
            if self._supervisor.ensure_daemon(self.units()):
                # It runs none of the others yet.
                self._is_unfinished = True

    # --- after a crash, or an error in the middle of a change ---

    def take_unfinished(self) -> bool:
        """Whether `recover_changes` is due, by what has happened since the last call."""
        if not self._is_unfinished:
            return False
        self._is_unfinished = False
        return True

    def recover_changes(self) -> list[str]:
        """Completes changes that a crash or an error interrupted, except for starts; returns the units to
        start again. A unit with which that fails keeps no other one waiting: it is for the next time.

        A unit that runs by an earlier definition because the agent is newer is left alone: that is drift,
        and its owner decides when to restart it.
        """
        with self._units.lock:
            self._supervisor.ensure_daemon(self.units())
            states, differences = self._observe()
        for name in differences.removed:
            with self._told(name, "is no longer a unit of this host, and cannot be stopped"):
                self._stop_if_forgotten(name)
        to_start = []
        for name, desired in self._units.all_desired().items():
            state = states.get(name)
            is_half_done = not desired.is_applied and name in differences.changed
            if state is None or state.state in _TO_START or is_half_done:
                to_start.append(name)
            elif not desired.is_applied:
                with self._told(name, "runs, and that cannot be recorded"), self._locked(name):
                    # Unless a concurrent PUT already applied it.
                    if self._units.desired(name) is desired:
                        self._units.mark_applied(name)
        return to_start

    @contextmanager
    def _told(self, name: str, problem: str) -> Iterator[None]:
        """Logs what fails in here for one unit, and notes that it is to be repeated."""
        try:
            yield
        except (SiteError, OSError) as error:
            self._is_unfinished = True
            logger.error("%s %s: %s", name, problem, error)

    def _stop_if_forgotten(self, name: str) -> None:
        with self._locked(name):
            if self._units.find(name) is None:
                logger.warning("stopping %s, which is no longer a unit of this host", name)
                self._stop_forgotten(name)

    def start_again(self, name: str) -> bool:
        """Starts a unit that `recover_changes` returned; False if it was deleted or cannot be started."""
        with self._told(name, "cannot be started again"), self._locked(name):
            desired = self._units.desired(name)
            if desired is None:
                return False
            state = self._supervisor.states().get(name)
            # A concurrent PUT may have applied it already.
            if state is None or not state.is_running or not desired.is_applied:
                logger.info("starting %s again", name)
                self._apply(name)
            return True
        return False
