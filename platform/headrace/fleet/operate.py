"""Bringing a site up and down, and saying how it is, as a client of this machine's agent.

Owns the order of things: what may start now, when a unit counts as ready, what is stopped first. The agent
keeps each unit; where it is, and how it is started, is `agent.local`'s.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.agent.client import AgentClient, conflicts_in
from headrace.agent.conflicts import conflicts_of
from headrace.agent.desired import DesiredState, forget_all, unit_names
from headrace.agent.errors import (
    AddressTakenError,
    AgentRefusedError,
    AgentUnreachableError,
    Conflict,
    UnitFailedError,
)
from headrace.agent.home import AgentHome
from headrace.agent.host import Host
from headrace.agent.kinds import parse_configuration, unit_of
from headrace.agent.local import (
    end_idle_daemon,
    ensure_agent,
    find_agent,
    has_ended,
    wait_ended,
)
from headrace.agent.logs import LOG_TAIL_LINES, log_tail
from headrace.agent.processes import end_units_left_in
from headrace.agent.report import (
    ChangeOutcome,
    UnitReport,
    probed_report,
)
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit, levels
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.site.site import Site

__all__ = ["check_addresses", "down", "log_tail", "may_start", "prepared", "restart", "status", "up"]

POLL_INTERVAL_S: Final = 0.2
# A process that was killed closes its connections before it lets go of its locks.
AGENT_DEATH_WAIT_S: Final = 5.0
AT_ONCE_MAX: Final = 8
# One foreign process explains the others, which are most often of the same site.
TAKEN_SHOWN_MAX: Final = 2

Observer = Callable[[Unit, str], None]
"""Told (unit, what) as things happen: `what` is starting, ready, stopping or stopped."""


def _say_nothing(unit: Unit, what: str) -> None:
    return None


def may_start(units: Sequence[Unit], started: Collection[str], ready: Collection[str]) -> list[Unit]:
    """The units that are not started yet and whose requirements are all ready."""
    return [unit for unit in units if unit.name not in started and set(unit.requires) <= set(ready)]


def up(site: Site, observe: Observer = _say_nothing, units: Sequence[Unit] | None = None) -> None:
    """Puts the units to this machine's agent, and returns when every one is ready.

    Units that the agent has and that are not among these are deleted. Raises `AddressTakenError` before
    anything is started, and `UnitFailedError` when a unit is not ready in its time; what runs then keeps
    running, so that it can be looked at.
    """
    units = units_of(site) if units is None else units
    site.home.mkdir(parents=True, exist_ok=True)
    with _locked(site.home), ensure_agent(site.home, site.agent_address) as agent:
        try:
            as_wanted = _make_room(agent, units)
        except SiteError:
            end_idle_daemon(site.home, agent)
            raise
        _start_in_order(agent, units, as_wanted, observe)


@contextmanager
def prepared(site: Site, units: Sequence[Unit]) -> Iterator[AgentClient]:
    """This machine's agent, for who puts the units in another way than `up`; no `up` or `down` comes between.

    Raises `AddressTakenError` when somebody who is not of this site has what a unit needs.
    """
    site.home.mkdir(parents=True, exist_ok=True)
    with _locked(site.home), ensure_agent(site.home, site.agent_address) as agent:
        try:
            reports = agent.units(with_drift=False)
            names = {report.name for report in reports}
            ours = {address for report in reports for address in report.listens}
            new = [unit for unit in units if unit.name not in names]
            check_addresses([unit for unit in new if not ours & set(map(str, unit.listens))])
            yield agent
        except BaseException:
            end_idle_daemon(site.home, agent)
            raise


def _make_room(agent: AgentClient, units: Sequence[Unit]) -> set[str]:
    """Deletes the units that are not wanted, or that hold what another is to have from now on.

    Returns those that need not be put, since the host has them already as they are wanted.
    """
    conflicts: list[Conflict] = []
    as_wanted: set[str] = set()
    for unit in units:
        try:
            if agent.put(unit.name, _told(unit), dry_run=True).outcome is ChangeOutcome.UNCHANGED:
                as_wanted.add(unit.name)
        except AgentRefusedError as error:
            if not (found := conflicts_in(error)):
                raise
            conflicts += found
    if foreign := [each for each in conflicts if each.unit is None]:
        raise _taken(foreign)
    wanted = {unit.name for unit in units}
    in_the_way = {each.unit for each in conflicts}
    for report in agent.units(with_drift=False):
        if report.name not in wanted or report.name in in_the_way:
            agent.delete(report.name)
            as_wanted.discard(report.name)
    return as_wanted


def _start_in_order(
    agent: AgentClient, units: Sequence[Unit], as_wanted: Collection[str], observe: Observer
) -> None:
    deadlines: dict[str, float] = {}
    ready: set[str] = set()
    by_name = {unit.name: unit for unit in units}
    while len(ready) < len(units):
        for unit in may_start(units, deadlines, ready):
            observe(unit, "starting")
            if unit.name not in as_wanted:
                agent.put(unit.name, _told(unit))
            deadlines[unit.name] = time.monotonic() + unit.start_timeout_s
        waiting = [name for name in deadlines if name not in ready]
        for report in agent.units(waiting, with_drift=False):
            if report.is_ready:
                ready.add(report.name)
                observe(by_name[report.name], "ready")
            elif report.has_failed or time.monotonic() > deadlines[report.name]:
                raise _failure(agent, report)
        if len(ready) < len(units) and not may_start(units, deadlines, ready):
            time.sleep(POLL_INTERVAL_S)


def _failure(agent: AgentClient, report: UnitReport) -> UnitFailedError:
    is_running = report.state in ("STARTING", "RUNNING")
    reason = report.problem if is_running else f"it is {report.state} ({report.note})"
    tail = agent.log(report.name, lines=LOG_TAIL_LINES).rstrip("\n")
    return UnitFailedError(report.name, reason or "", tail, report.log)


def _told(unit: Unit) -> dict[str, object]:
    if unit.configuration is None:
        raise SiteError(f"unit {unit.name} has no configuration that an agent could be put")
    return unit.configuration.model_dump(mode="json")


def check_addresses(units: Sequence[Unit]) -> None:
    """Raises `AddressTakenError` that names every address somebody else already has, and who that is."""
    conflicts: list[Conflict] = []
    for unit in units:
        conflicts += conflicts_of(unit, (), held=(), home=None)
    if conflicts:
        raise _taken(conflicts)


def _taken(conflicts: Sequence[Conflict]) -> AddressTakenError:
    more = f"; and {len(conflicts) - TAKEN_SHOWN_MAX} more" if len(conflicts) > TAKEN_SHOWN_MAX else ""
    return AddressTakenError(
        "; ".join(map(str, conflicts[:TAKEN_SHOWN_MAX]))
        + more
        + ". End that process (another site: `make down` there), "
        + "or give this site another `block` in site.yaml"
    )


def down(site: Site, observe: Observer = _say_nothing, units: Sequence[Unit] | None = None) -> bool:
    """Stops every unit in the reverse order of the start, then supervisord and the agent, then any orphan.

    True when something was running.
    """
    units = units_of(site) if units is None else units
    if not site.home.exists():
        return False
    with _locked(site.home):
        was_running = _stop(site, units, observe)
        orphans = end_units_left_in(site.home)
    return was_running or bool(orphans)


def _stop(site: Site, units: Sequence[Unit], observe: Observer) -> bool:
    agent = find_agent(site.home)
    if agent is None:
        return _stop_without_agent(site, units, observe)
    try:
        with agent:
            _delete_all(agent, units, observe)
            agent.shut_down()
    except AgentUnreachableError:
        # Somebody may have killed it in the meantime.
        if not has_ended(site.home, AGENT_DEATH_WAIT_S):
            raise
        _stop_without_agent(site, units, observe)
    wait_ended(site.home)
    return True


def _delete_all(agent: AgentClient, units: Sequence[Unit], observe: Observer) -> None:
    known = {report.name for report in agent.units(with_drift=False)}
    for name in known - {unit.name for unit in units}:
        agent.delete(name)

    def delete(unit: Unit) -> None:
        observe(unit, "stopping")
        agent.delete(unit.name)
        observe(unit, "stopped")

    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="stop") as pool:
        for level in reversed(levels(units)):
            list(pool.map(delete, [unit for unit in level if unit.name in known]))


def _stop_without_agent(site: Site, units: Sequence[Unit], observe: Observer) -> bool:
    """What an agent that was killed has left: its units go on under supervisord."""
    supervisor = Supervisor(site.home)
    forget_all(AgentHome(site.home.absolute()).units)
    if not supervisor.is_alive():
        return False
    for level in reversed(levels(units)):
        states = supervisor.states()
        stopping = [unit for unit in level if unit.name in states and states[unit.name].state != "STOPPED"]
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
    supervisor.shut_down()
    return True


def status(site: Site, units: Sequence[Unit] | None = None) -> list[UnitReport]:
    """Every unit as it is now.

    While the agent has units, those alone are told of, also when the site's description does not name them:
    what it names besides was left out at the start. Without an agent, supervisord and the units are asked.
    """
    units = units_of(site) if units is None else units
    order = {unit.name: number for number, unit in enumerate(units)}
    if (agent := find_agent(site.home)) is not None:
        with agent:
            reports = agent.units()
        if reports:
            return sorted(reports, key=lambda each: order.get(each.name, len(order)))
    states = Supervisor(site.home).states()
    if states:
        put = {unit.name: unit for unit in [*units, *_put_before(site.home)]}
        units = [unit for name, unit in put.items() if name in states]

    def look(unit: Unit) -> UnitReport:
        state = states.get(unit.name)
        return probed_report(unit, state)

    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="probe") as pool:
        return list(pool.map(look, units))


def _put_before(home: Path) -> list[Unit]:
    """The units of an agent that does not run, as they were put to it; those that can still be read."""
    places, host = AgentHome(home.absolute()), Host.here(home)
    found = []
    for name in unit_names(places.units):
        try:
            entry = DesiredState(places.units, parse_configuration).read(name)
            found.append(unit_of(name, entry.configuration, host))
        except SiteError:
            continue
    return found


def restart(
    site: Site,
    names: Sequence[str] | None,
    observe: Callable[[str], None] = lambda name: None,
    *,
    wait_s: float = 60.0,
) -> None:
    """Restarts units (default: all of the agent's, in the order of their requirements) one after another.

    `observe` is told each once it is ready again. Raises `AgentRefusedError` when one is not ready before, or
    does not come back: what follows it is left alone.
    """
    agent = find_agent(site.home)
    if agent is None:
        raise SiteError(f"nothing runs in {site.home}; start it by `headrace up`")
    with _locked(site.home), agent:
        if names is None:
            order = {unit.name: number for number, unit in enumerate(units_of(site))}
            known = [report.name for report in agent.units(with_drift=False)]
            names = sorted(known, key=lambda name: order.get(name, len(order)))
        for report in agent.units(names, with_drift=False):
            if not report.is_ready:
                raise SiteError(
                    f"unit {report.name} is not ready ({report.problem}), so no unit was restarted; "
                    "mend it first"
                )
        for name in names:
            agent.roll([name], wait_s=wait_s)
            observe(name)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with (home / "fleet.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SiteError(
                f"another `headrace up` or `down` is at work in {home}; wait for it to end"
            ) from error
        yield
