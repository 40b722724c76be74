"""Starts, stops and restarts a site's units, as a client of this machine's agent.

Owns the order: which units may start now, when a unit counts as ready, which ones stop first. The agent runs
each unit; `agent.local` finds or starts the agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from headrace.agent.client import AgentClient, conflicts_in
from headrace.agent.conflicts import conflicts_of
from headrace.agent.desired import forget_all
from headrace.agent.errors import (
    AddressTakenError,
    AgentRefusedError,
    AgentUnreachableError,
    Conflict,
    UnitFailedError,
)
from headrace.agent.home import AgentHome
from headrace.agent.local import end_idle_daemon, ensure_agent, find_agent, has_ended, wait_ended
from headrace.agent.logs import LOG_TAIL_LINES, collapsed
from headrace.agent.permitted import permit
from headrace.agent.processes import end_units_left_in
from headrace.agent.report import ChangeOutcome, UnitReport
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit, levels
from headrace.fleet.changing import Changing
from headrace.fleet.foreign import MADE_BY, ForeignUnit, ForeignUnitsError, foreign_units
from headrace.fleet.home_lock import locked
from headrace.fleet.units import units_of
from headrace.fleet.waiting import Waiting, start_all
from headrace.site.errors import SiteError
from headrace.site.site import Site

POLL_INTERVAL_S: Final = 0.2
# A killed process closes its connections before it releases its locks.
AGENT_DEATH_WAIT_S: Final = 5.0
AT_ONCE_MAX: Final = 8
# Two are enough: usually all conflicts are with one other site.
TAKEN_SHOWN_MAX: Final = 2

Observer = Callable[[Unit, str], None]
"""Called with a unit and what happens to it: starting, ready, stopping or stopped."""


MayChange = Callable[[Sequence[ForeignUnit]], bool]
"""Called with the units of others that a start would remove or change; returns whether it may."""


def _ignore(unit: Unit, event: str) -> None:
    return None


def _never(units: Sequence[ForeignUnit]) -> bool:
    return False


def may_start(units: Sequence[Unit], started: Collection[str], ready: Collection[str]) -> list[Unit]:
    """Returns the units that are not started yet and whose requirements are all ready."""
    return [unit for unit in units if unit.name not in started and set(unit.requires) <= set(ready)]


def up(
    site: Site,
    observe: Observer = _ignore,
    units: Sequence[Unit] | None = None,
    *,
    may_change: MayChange = _never,
    waiting: Waiting | None = None,
) -> None:
    """Puts the units to this machine's agent, and returns when all of them are ready.

    Deletes all other units of the agent; those that another program made, such as Terraform, only if
    `may_change` agrees, else raises `ForeignUnitsError`. Raises `AddressTakenError` before it starts
    anything, and `UnitFailedError` if a unit is not ready within its time; units that run then keep running,
    so that they can be examined. With `waiting` the others go on, and `UnitsMissingError` names all at last.
    """
    units = units_of(site) if units is None else units
    site.home.mkdir(parents=True, exist_ok=True)
    with locked(site.home), ensure_agent(site.home, site.agent_address, made_by=MADE_BY) as agent:
        permit(AgentHome(site.home).permitted, (unit.configuration for unit in units))
        try:
            unchanged, ready = _delete_unwanted(agent, units, may_change)
        except SiteError:
            end_idle_daemon(site.home, agent)
            raise
        changing = Changing(units, ready, unchanged)

        def start(unit: Unit) -> float:
            wait_s = changing.begin(unit)
            if unit.name not in unchanged:
                agent.put(unit.name, _configuration(unit))
            return wait_s

        def reports(names: list[str]) -> list[UnitReport]:
            return changing.judged(agent.units(names, with_drift=False))

        if waiting is None:
            _start_in_order(agent, changing.units, start, reports, observe)
        else:
            start_all(changing.units, waiting, start=start, reports=reports, observe=observe)


@contextmanager
def prepared(site: Site, units: Sequence[Unit]) -> Iterator[AgentClient]:
    """This machine's agent, for callers that put units themselves; holds the up/down lock.

    Raises `AddressTakenError` if a process outside this site holds an address that a unit needs.
    """
    site.home.mkdir(parents=True, exist_ok=True)
    with locked(site.home), ensure_agent(site.home, site.agent_address) as agent:
        permit(AgentHome(site.home).permitted, (unit.configuration for unit in units))
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


def _delete_unwanted(
    agent: AgentClient, units: Sequence[Unit], may_change: MayChange
) -> tuple[set[str], set[str]]:
    """Deletes the agent's units that are not among `units`, or that hold an address another unit needs now.

    Returns the names of the units that the agent already has with the same configuration, and of those that
    are ready now.
    """
    conflicts: list[Conflict] = []
    unchanged: set[str] = set()
    for unit in units:
        try:
            if agent.put(unit.name, _configuration(unit), dry_run=True).outcome is ChangeOutcome.UNCHANGED:
                unchanged.add(unit.name)
        except AgentRefusedError as error:
            if not (found := conflicts_in(error)):
                raise
            conflicts += found
    if foreign := [conflict for conflict in conflicts if conflict.unit is None]:
        raise _taken(foreign)
    wanted = {unit.name: _configuration(unit) for unit in units}
    conflicting = {conflict.unit for conflict in conflicts}
    reports = agent.units(with_drift=False)
    if (others := foreign_units(reports, wanted, conflicting)) and not may_change(others):
        raise ForeignUnitsError(others)
    ready = {report.name for report in reports if report.is_ready}
    for report in reports:
        if report.name not in wanted or report.name in conflicting:
            agent.delete(report.name)
            unchanged.discard(report.name)
            ready.discard(report.name)
    return unchanged, ready


def _start_in_order(
    agent: AgentClient,
    units: Sequence[Unit],
    start: Callable[[Unit], float],
    reports: Callable[[list[str]], Sequence[UnitReport]],
    observe: Observer,
) -> None:
    """`start` returns how many seconds a unit may take until it is ready."""
    deadlines: dict[str, float] = {}
    ready: set[str] = set()
    by_name = {unit.name: unit for unit in units}
    while len(ready) < len(units):
        for unit in may_start(units, deadlines, ready):
            observe(unit, "starting")
            deadlines[unit.name] = time.monotonic() + start(unit)
        waiting = [name for name in deadlines if name not in ready]
        for report in reports(waiting):
            if report.is_ready:
                ready.add(report.name)
                observe(by_name[report.name], "ready")
            elif report.has_failed or time.monotonic() > deadlines[report.name]:
                raise _failure(agent, report)
        if len(ready) < len(units) and not may_start(units, deadlines, ready):
            time.sleep(POLL_INTERVAL_S)


def _failure(agent: AgentClient, report: UnitReport) -> UnitFailedError:
    is_running = report.state in ("STARTING", "RUNNING")
    problem = report.problem if is_running or report.failing else f"it is {report.state} ({report.note})"
    tail = collapsed(agent.log(report.name, lines=LOG_TAIL_LINES).rstrip("\n"))
    return UnitFailedError(report.name, problem or "", tail, report.log)


def _configuration(unit: Unit) -> dict[str, object]:
    if unit.configuration is None:
        raise SiteError(f"unit {unit.name} has no configuration, so it cannot be put to an agent")
    return unit.configuration.model_dump(mode="json")


def check_addresses(units: Sequence[Unit]) -> None:
    """Raises `AddressTakenError`, which names address and process, if another process holds an address."""
    conflicts: list[Conflict] = []
    for unit in units:
        conflicts += conflicts_of(unit, (), own_addresses=(), home=None)
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


def down(
    site: Site,
    observe: Observer = _ignore,
    units: Sequence[Unit] | None = None,
    *,
    tell_foreign: Callable[[Sequence[str]], None] = lambda names: None,
) -> bool:
    """Stops all units in the reverse order of the start, then supervisord and the agent, then orphans.

    Calls `tell_foreign` with the names of units that the site does not have, before it stops them. Returns
    whether anything was running.
    """
    units = units_of(site) if units is None else units
    if not site.home.exists():
        return False
    with locked(site.home):
        was_running = _stop(site, units, observe, tell_foreign)
        orphans = end_units_left_in(site.home)
    return was_running or bool(orphans)


def _stop(
    site: Site, units: Sequence[Unit], observe: Observer, tell_foreign: Callable[[Sequence[str]], None]
) -> bool:
    agent = find_agent(site.home)
    if agent is None:
        return _stop_without_agent(site, units, observe)
    try:
        with agent:
            _delete_all(agent, units, observe, tell_foreign)
            agent.shut_down()
    except AgentUnreachableError:
        # The agent may have been killed in the meantime.
        if not has_ended(site.home, AGENT_DEATH_WAIT_S):
            raise
        _stop_without_agent(site, units, observe)
    wait_ended(site.home)
    return True


def _delete_all(
    agent: AgentClient,
    units: Sequence[Unit],
    observe: Observer,
    tell_foreign: Callable[[Sequence[str]], None],
) -> None:
    known = {report.name for report in agent.units(with_drift=False)}
    if foreign := sorted(known - {unit.name for unit in units}):
        tell_foreign(foreign)
    for name in foreign:
        agent.delete(name)

    def delete(unit: Unit) -> None:
        observe(unit, "stopping")
        agent.delete(unit.name)
        observe(unit, "stopped")

    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="stop") as pool:
        for level in reversed(levels(units)):
            list(pool.map(delete, [unit for unit in level if unit.name in known]))


def _stop_without_agent(site: Site, units: Sequence[Unit], observe: Observer) -> bool:
    """Stops the units that a killed agent has left running under supervisord."""
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
        # This loop ends: supervisord kills processes that exceed their stop timeout.
        while stopping:
            states = supervisor.states()
            still = [unit for unit in stopping if unit.name in states and states[unit.name].pid]
            for unit in stopping:
                if unit not in still:
                    observe(unit, "stopped")
            stopping = still
            if stopping:
                time.sleep(POLL_INTERVAL_S)
    supervisor.shut_down()
    return True
