"""The present state of every unit of this machine: of its agent, or without one.

Owns the bounds of that question, so that a hung agent, supervisord or unit hides nothing of the others, and
their order: the agent, else supervisord, else the units' processes. Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headrace.agent.desired import DesiredState, unit_names
from headrace.agent.errors import AgentUnreachableError
from headrace.agent.home import AgentHome
from headrace.agent.host import Host
from headrace.agent.kinds import parse_configuration, unit_of
from headrace.agent.local import find_agent
from headrace.agent.processes import LeftUnit, left_units
from headrace.agent.report import UnitReport, probed_report, report_of, unsupervised_report
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit, UnitState
from headrace.fleet.units import units_of
from headrace.process.background import in_background
from headrace.site.errors import SiteError
from headrace.site.site import Site

AGENT_ANSWER_MAX_S: Final = 3.0
"""How long the agent has to say that it and its supervisord are there. Its probes have their own bound."""
SUPERVISOR_ANSWER_MAX_S: Final = 1.0
PROBES_MAX_S: Final = 2.0
"""How long all units together have to answer, where no agent asks them."""
NO_ANSWER: Final = "does not answer"


def unit_reports(
    site: Site,
    units: Sequence[Unit] | None = None,
    *,
    tell: Callable[[str], None] = lambda problem: None,
    agent_max_s: float = AGENT_ANSWER_MAX_S,
) -> list[UnitReport]:
    """Returns the present state of every unit.

    If the agent runs and has units, these are exactly the agent's units, whatever the site's description
    names. Otherwise reads the states from supervisord and probes the units directly. Units that have outlived
    both are found by their processes, and those that a killed agent has recorded are reported, too. `tell` is
    called with the problem of an agent that runs and does not answer within `agent_max_s`.
    """
    units = units_of(site) if units is None else units
    order = {unit.name: number for number, unit in enumerate(units)}
    try:
        if (agent := find_agent(site.home, start_max_s=agent_max_s)) is not None:
            with agent:
                agent.health(answer_max_s=agent_max_s)
                reports = agent.units()
            if reports:
                return sorted(reports, key=lambda report: order.get(report.name, len(order)))
    except AgentUnreachableError as error:
        tell(f"{error}; these states are supervisord's, and drift is not known")
    return _without_agent(site, units)


def _without_agent(site: Site, units: Sequence[Unit]) -> list[UnitReport]:
    states = Supervisor(site.home, answer_max_s=SUPERVISOR_ANSWER_MAX_S).states()
    left = {} if states else left_units(site.home)
    known = {unit.name: unit for unit in [*units, *_recorded_units(site.home)]}
    if states:
        units = [unit for name, unit in known.items() if name in states]
    elif here := left.keys() | set(unit_names(AgentHome(site.home.absolute()).units)):
        # As with an agent: what it has recorded, or left running, is what this host is to run.
        units = [unit for name, unit in known.items() if name in here]
    until_s = time.monotonic() + PROBES_MAX_S
    asked = [in_background(partial(_report, unit, states, left), f"probe-{unit.name}") for unit in units]
    reports = []
    for unit, future in zip(units, asked, strict=True):
        try:
            reports.append(future.result(max(0.0, until_s - time.monotonic())))
        except TimeoutError:
            reports.append(report_of(unit, states.get(unit.name), NO_ANSWER, ()))
    return reports


def _report(unit: Unit, states: Mapping[str, UnitState], left: Mapping[str, LeftUnit]) -> UnitReport:
    if unit.name in left:
        return unsupervised_report(unit, *left[unit.name])
    return probed_report(unit, states.get(unit.name))


def _recorded_units(home: Path) -> list[Unit]:
    """Returns the units that an agent recorded on disk before it ended; skips records that cannot be read."""
    agent_home, host = AgentHome(home.absolute()), Host.here(home)
    found = []
    for name in unit_names(agent_home.units):
        try:
            entry = DesiredState(agent_home.units, parse_configuration).read(name)
            found.append(unit_of(name, entry.configuration, host))
        except SiteError:
            continue
    return found
