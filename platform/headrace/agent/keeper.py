"""Brings a host to what was put, and keeps it there.

Owns the order of steps of every change, and what happens after a crash between two of them. Units are
supervisord's processes and outlive this one: whoever opens the same home again adopts them. Processes are
`agent.supervisor`'s, files `desired`'s, what counts as drift `report`'s.

A change of one unit holds that unit's lock from its first step to its last; the state that all share is held
for moments only, so that a slow end of one unit does not keep others waiting.
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
from headrace.agent.desired import DesiredState, Entry
from headrace.agent.errors import (
    BusyError,
    ConflictError,
    NotReadyBeforeError,
    NotReadyError,
    TooManyUnitsError,
    UnitsLeftError,
    UnitUnknownError,
)
from headrace.agent.processes import end_units_left_in
from headrace.agent.report import (
    Drift,
    Outcome,
    UnitReport,
    ask,
    drift_of,
    outcome_of,
    report_of,
)
from headrace.agent.supervisor import Differences, Supervisor, UnitState
from headrace.agent.unit import Unit, levels
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

UNITS_MAX: Final = 64
WATCH_INTERVAL_S: Final = 1.0
RETRY_INTERVAL_S: Final = 5.0
POLL_INTERVAL_S: Final = 0.2
PROBES_AT_ONCE: Final = 8
# A unit that ends slowly is killed after its own stop timeout; then it is the next one's turn.
LOCK_WAIT_MAX_S: Final = 60.0
CLOSE_WAIT_MAX_S: Final = 5.0

Make = Callable[[str, Configuration], Unit]


class Keeper:
    """The units of one home. Any thread may call; `open` first, `close` last.

    `reached` is told each step of a change, in order: recorded, stopped, started, applied; and, of a
    deletion, forgotten, stopped.
    """

    def __init__(
        self,
        home: Path,
        desired: DesiredState,
        make: Make,
        *,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.home = home
        self._desired = desired
        self._make = make
        self._reached = reached
        self._supervisor = Supervisor(home)
        self._entries: dict[str, Entry] = {}
        self._units: dict[str, Unit] = {}
        self._shared = threading.RLock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._rolling = threading.Lock()
        self._ending = threading.Event()
        self._probes = ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe")
        self._watch = threading.Thread(target=self._look_after, name="watch", daemon=True)

    def open(self) -> None:
        """Reads what was put, and begins to bring the host to it. Raises `AgentStateError`."""
        self._entries = self._desired.load()
        self._units = {name: self._make(name, entry.configuration) for name, entry in self._entries.items()}
        self._watch.start()

    def close(self, *, ends_units: bool = False) -> None:
        """Ends all waiting. Units go on, and with them supervisord.

        With `ends_units` they are stopped, in the reverse order of their start, and supervisord ends. They
        stay this host's: the next agent starts them again.
        """
        self._ending.set()
        if self._watch.is_alive():
            self._watch.join(CLOSE_WAIT_MAX_S)
        if ends_units:
            self._end_units()
        self._probes.shutdown(wait=False, cancel_futures=True)
        if not self._units and self._supervisor.is_alive():
            self._supervisor.shut_down()

    def _end_units(self) -> None:
        for level in reversed(levels(with_local_requirements(list(self._units.values())))):
            if self._supervisor.is_alive():
                list(self._probes.map(self._supervisor.remove, [unit.name for unit in level]))
        if self._supervisor.is_alive():
            self._supervisor.shut_down()
        end_units_left_in(self.home)

    # --- asking ---

    def names(self) -> list[str]:
        return sorted(self._units)

    def unit(self, name: str) -> Unit:
        """Raises `UnitUnknownError`."""
        unit = self._units.get(name)
        if unit is None:
            raise UnitUnknownError(name, self.names())
        return unit

    def is_supervised(self) -> bool:
        """Whether supervisord answers."""
        return self._supervisor.is_alive()

    def reports(self, names: Sequence[str] | None = None, *, with_drift: bool = True) -> list[UnitReport]:
        """How the named units (default: all) are, each asked in its own protocol.

        Drift costs supervisord another look at its configuration; who only waits can do without.
        """
        units = [self.unit(name) for name in (self.names() if names is None else names)]
        differences: Differences | None = None
        if with_drift:
            states, differences = self._observe()
        else:
            states = self._supervisor.states()

        def look(unit: Unit) -> UnitReport:
            state = states.get(unit.name)
            problem, remark = ask(unit, state)
            drift = () if differences is None else _drift(unit, state, differences)
            return report_of(unit, state, problem, drift, remark)

        return list(self._probes.map(look, units))

    def wait_ready(self, name: str, wait_s: float) -> UnitReport:
        """How a unit is once it is ready, has failed, or `wait_s` is over."""
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
            return states, self._supervisor.differences(self._units.values())

    # --- changing ---

    def put(self, name: str, configuration: Configuration, *, dry_run: bool = False) -> Outcome:
        """Makes the host have this unit, told this; touches no other unit. Does not wait for its health.

        Raises `ConflictError`, `TooManyUnitsError`, `SiteError` for what the host does not have.
        """
        unit = self._make(name, configuration)
        with self._turn_of(name):
            # Another unit, put at the same time, may want the same address.
            with self._shared:
                outcome = self._outcome(unit, configuration)
                if dry_run or outcome is Outcome.UNCHANGED:
                    return outcome
                logger.info("%s is put: %s", name, outcome)
                entry = Entry(configuration, is_applied=False)
                self._desired.write(name, entry)
                self._entries[name], self._units[name] = entry, unit
            self._reached("recorded")
            self._converge(name)
            return outcome

    def _outcome(self, unit: Unit, configuration: Configuration) -> Outcome:
        """What a PUT would do. Raises what `put` raises."""
        before = self._units.get(unit.name)
        others = [other for other in self._units.values() if other.name != unit.name]
        if before is None and len(others) >= UNITS_MAX:
            raise TooManyUnitsError(
                f"unit {unit.name} would be one more than {UNITS_MAX}, a host's most; delete another"
            )
        check_order(unit, others)
        state: UnitState | None = None
        drift: tuple[Drift, ...] = ()
        if before is not None:
            states, differences = self._observe()
            state = states.get(unit.name)
            drift = _drift(unit, state, differences)
        is_same = before is not None and before.definition == unit.definition
        is_same = is_same and self._entries[unit.name].configuration == configuration
        held = before.listens if before and state and state.is_running else ()
        if conflicts := conflicts_of(unit, others, held=held, home=self.home):
            raise ConflictError(conflicts)
        return outcome_of(before is not None, is_same, drift)

    def restart(self, name: str) -> None:
        """Stops the unit and starts it, as it is defined now. Raises `UnitUnknownError`."""
        self.unit(name)
        with self._turn_of(name):
            self.unit(name)
            logger.info("%s is restarted", name)
            self._converge(name)

    def delete(self, name: str) -> None:
        """Stops the unit and forgets it; its data and its log stay. Raises `UnitUnknownError`."""
        self.unit(name)
        with self._turn_of(name):
            self.unit(name)
            logger.info("%s is deleted", name)
            self._desired.remove(name)
            with self._shared:
                del self._entries[name], self._units[name]
            self._reached("forgotten")
            self._forget(name)
            self._reached("stopped")

    def roll(self, names: Sequence[str], wait_s: float) -> Iterator[UnitReport]:
        """Restarts one unit after another, each once the one before is ready again.

        Raises `NotReadyBeforeError` before anything is restarted when one of them is not ready,
        `NotReadyError` when one does not come back within `wait_s`: what follows it is left alone.
        """
        if not self._rolling.acquire(blocking=False):
            raise BusyError("another rolling restart is at work on this host; wait for it to end")
        try:
            for report in self.reports(names):
                if not report.is_ready:
                    raise NotReadyBeforeError(
                        f"unit {report.name} is not ready ({report.problem}), so no unit was restarted; "
                        "mend it first, or restart it alone",
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
                    f"this host still has {len(self._units)} units, {self.names()[0]} the first; "
                    "delete them, or end the agent by SIGTERM: units outlive it"
                )
            if self._supervisor.is_alive():
                self._supervisor.shut_down()
            end_units_left_in(self.home)

    @contextmanager
    def _turn_of(self, name: str) -> Iterator[None]:
        with self._shared:
            lock = self._locks[name]
        if not lock.acquire(timeout=LOCK_WAIT_MAX_S):
            raise BusyError(f"another change of unit {name} did not end in {LOCK_WAIT_MAX_S:g} s; ask again")
        try:
            yield
        finally:
            lock.release()

    def _converge(self, name: str) -> None:
        """Ends the unit's process, if there is one, and starts it as it is defined now."""
        unit = self._units[name]
        self._ensure_daemon()
        self._supervisor.remove(name)
        self._reached("stopped")
        self._supervisor.write_files(unit)
        with self._shared:
            self._supervisor.differences(self._units.values())
            self._supervisor.add(name)
        self._supervisor.start(name)
        self._reached("started")
        entry = self._entries[name]._replace(is_applied=True)
        # Should a crash take this word away, the next agent looks once more, and finds it done.
        self._desired.write(name, entry, is_durable=False)
        with self._shared:
            self._entries[name] = entry
        self._reached("applied")

    def _forget(self, name: str) -> None:
        if self._supervisor.is_alive():
            self._supervisor.remove(name)
            with self._shared:
                self._supervisor.differences(self._units.values())
        else:
            end_units_left_in(self.home, name)

    def _ensure_daemon(self) -> None:
        with self._shared:
            self._supervisor.ensure_daemon(self._units.values())

    # --- keeping ---

    def _look_after(self) -> None:
        """The watch: settles at the start, and again whenever supervisord is gone."""
        must_settle = True
        while not self._ending.is_set():
            try:
                if must_settle or (self._units and not self._supervisor.is_alive()):
                    must_settle = True
                    self._settle()
                    must_settle = False
            except (SiteError, OSError) as error:
                logger.error("the host is not as it should be: %s", error)
            except Exception:
                logger.exception("the host is not as it should be; this is an error of the agent")
            self._ending.wait(RETRY_INTERVAL_S if must_settle else WATCH_INTERVAL_S)

    def _settle(self) -> None:
        """Finishes what a crash left half done, and starts what should run and does not.

        A unit that runs by an earlier definition, because the agent is a newer one, is left alone: that is
        drift, for its owner to take away in an order of his own.
        """
        with self._shared:
            self._ensure_daemon()
            states, differences = self._observe()
        for name in differences.removed:
            with self._turn_of(name):
                if name not in self._units:
                    logger.warning("%s is not one of this host's units any more: it is stopped", name)
                    self._forget(name)
        lagging = []
        for name, entry in list(self._entries.items()):
            state = states.get(name)
            is_half_done = not entry.is_applied and name in differences.changed
            if state is None or state.state in ("STOPPED", "EXITED", "UNKNOWN") or is_half_done:
                lagging.append(name)
            elif not entry.is_applied:
                self._desired.write(name, entry._replace(is_applied=True), is_durable=False)
        self._bring_back(lagging)

    def _bring_back(self, names: Sequence[str]) -> None:
        """Starts units in the order of their requirements; one that fails does not hold back the others."""
        for level in levels(with_local_requirements(list(self._units.values()))):
            started = [unit for unit in level if unit.name in names and self._start_again(unit.name)]
            for unit in started:
                if self._ending.is_set() or not self._supervisor.is_alive():
                    return
                if unit.name in self._units:
                    self.wait_ready(unit.name, unit.start_timeout_s)

    def _start_again(self, name: str) -> bool:
        with self._turn_of(name):
            if name not in self._units:
                return False
            state = self._supervisor.states().get(name)
            # A PUT may have been quicker.
            if state is None or not state.is_running or not self._entries[name].is_applied:
                logger.info("%s is started again", name)
                try:
                    self._converge(name)
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
