"""Bringing a site up and down, and saying how it is.

Owns the order of things: what may start now, when a unit counts as ready, what is stopped first. Processes
are `fleet.supervisor`'s, readiness is `fleet.probes`', who listens where is `fleet.addresses`'.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from .addresses import holder_of, is_taken
from .errors import AddressTakenError, FleetError, UnitFailedError
from .probes import BalancerProbe
from .processes import end_units_left_in
from .site import Address, Site
from .supervisor import Supervisor, UnitState
from .units import Unit, levels, units_of

POLL_INTERVAL_S: Final = 0.2
PROBES_AT_ONCE: Final = 8
LOG_TAIL_LINES: Final = 15
# One foreign process explains the others, which are most often of the same site.
TAKEN_SHOWN_MAX: Final = 2
LOG_TAIL_BYTES: Final = 16 << 10

Observer = Callable[[Unit, str], None]
"""Told (unit, what) as things happen: `what` is starting, ready, stopping or stopped."""


def _say_nothing(unit: Unit, what: str) -> None:
    return None


class UnitStatus(NamedTuple):
    """One line of `headrace status`. `problem` is None for a unit that is ready; `note` is worth knowing
    then."""

    unit: Unit
    state: UnitState | None
    problem: str | None
    note: str = ""

    @property
    def is_ready(self) -> bool:
        return self.problem is None


def may_start(units: Sequence[Unit], started: Collection[str], ready: Collection[str]) -> list[Unit]:
    """The units that are not started yet and whose requirements are all ready."""
    return [unit for unit in units if unit.name not in started and set(unit.requires) <= set(ready)]


def up(site: Site, observe: Observer = _say_nothing, units: Sequence[Unit] | None = None) -> None:
    """Starts what does not run yet and returns when every unit is ready.

    Raises `AddressTakenError` before anything is started, and `UnitFailedError` when a unit is not ready in
    its time; what runs then keeps running, so that it can be looked at.
    """
    units = units_of(site) if units is None else units
    supervisor = Supervisor(site.home)
    site.home.mkdir(parents=True, exist_ok=True)
    with _locked(site.home):
        running = {name for name, state in supervisor.states().items() if state.is_running}
        check_addresses([unit for unit in units if unit.name not in running])
        supervisor.ensure_daemon(units)
        _start_in_order(supervisor, units, observe)


def _start_in_order(supervisor: Supervisor, units: Sequence[Unit], observe: Observer) -> None:
    deadlines: dict[str, float] = {}
    ready: set[str] = set()
    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe") as pool:
        while len(ready) < len(units):
            for unit in may_start(units, deadlines, ready):
                observe(unit, "starting")
                supervisor.start(unit.name)
                deadlines[unit.name] = time.monotonic() + unit.start_timeout_s
            waiting = [unit for unit in units if unit.name in deadlines and unit.name not in ready]
            problems = list(pool.map(lambda unit: unit.probe.problem(), waiting))
            states = supervisor.states()
            for unit, problem in zip(waiting, problems, strict=True):
                state = states[unit.name]
                if problem is None and state.is_running:
                    ready.add(unit.name)
                    observe(unit, "ready")
                elif state.state == "FATAL" or time.monotonic() > deadlines[unit.name]:
                    reason = problem if state.is_running else f"it is {state.state} ({state.note})"
                    raise UnitFailedError(
                        unit.name, reason or state.state, log_tail(unit.log_path), str(unit.log_path)
                    )
            if len(ready) < len(units) and not may_start(units, deadlines, ready):
                time.sleep(POLL_INTERVAL_S)


def check_addresses(units: Sequence[Unit]) -> None:
    """Raises `AddressTakenError` that names every address somebody else already has, and who that is."""
    taken = []
    for unit in units:
        for address in unit.listens:
            if _is_taken(unit, address):
                holder = holder_of(address) or "a process that cannot be seen"
                taken.append(f"{address}, for unit {unit.name}, is taken by {holder}")
    if taken:
        raise AddressTakenError(
            "; ".join(taken[:TAKEN_SHOWN_MAX])
            + (f"; and {len(taken) - TAKEN_SHOWN_MAX} more" if len(taken) > TAKEN_SHOWN_MAX else "")
            + ". End that process (another site: `make down` there), "
            + "or give this site another `block` in site.yaml"
        )


def _is_taken(unit: Unit, address: Address) -> bool:
    try:
        return is_taken(address)
    except OSError as error:
        raise FleetError(
            f"unit {unit.name} cannot listen on {address}: {error.strerror}; "
            "headrace on one machine needs Linux, where all of 127.0.0.0/8 is this machine"
        ) from error


def down(site: Site, observe: Observer = _say_nothing, units: Sequence[Unit] | None = None) -> bool:
    """Stops every unit in the reverse order of the start, then supervisord, then any orphan.

    True when something was running.
    """
    units = units_of(site) if units is None else units
    supervisor = Supervisor(site.home)
    if not site.home.exists():
        return False
    with _locked(site.home):
        was_running = supervisor.is_alive()
        if was_running:
            for level in reversed(levels(units)):
                _stop_together(supervisor, level, observe)
            supervisor.shut_down()
        orphans = end_units_left_in(site.home)
    return was_running or bool(orphans)


def _stop_together(supervisor: Supervisor, units: Sequence[Unit], observe: Observer) -> None:
    states = supervisor.states()
    stopping = [unit for unit in units if unit.name in states and states[unit.name].state != "STOPPED"]
    for unit in stopping:
        observe(unit, "stopping")
        supervisor.stop(unit.name)
    # supervisord kills what outlives its stop timeout, so this ends.
    while stopping:
        states = supervisor.states()
        still = [unit for unit in stopping if states[unit.name].pid]
        for unit in stopping:
            if unit not in still:
                observe(unit, "stopped")
        stopping = still
        if stopping:
            time.sleep(POLL_INTERVAL_S)


def status(site: Site, units: Sequence[Unit] | None = None) -> list[UnitStatus]:
    """Every unit as it is now: supervisord's state and the probe's answer.

    While supervisord runs, units that it was not told of were left out at the start, and are left out here.
    """
    units = units_of(site) if units is None else units
    states = Supervisor(site.home).states()
    if states:
        units = [unit for unit in units if unit.name in states]

    def look(unit: Unit) -> UnitStatus:
        state = states.get(unit.name)
        if state is None or not state.is_running:
            return UnitStatus(unit, state, state.state.lower() if state else "not started")
        probe = unit.probe
        problem = probe.problem()
        note = probe.note() if problem is None and isinstance(probe, BalancerProbe) else ""
        return UnitStatus(unit, state, problem, note)

    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe") as pool:
        return list(pool.map(look, units))


def log_tail(path: Path, line_count: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, or an empty text when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max(LOG_TAIL_BYTES, line_count * 200)))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-line_count:])


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with (home / "fleet.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FleetError(
                f"another `headrace up` or `down` is at work in {home}; wait for it to end"
            ) from error
        yield
