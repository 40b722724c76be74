"""Restarts a site's units one after another: `headrace restart`.

Owns the order and what it waits for: that each unit is ready again, that no other broker of a cluster lacks
what the next one has in sync, and the cluster's turn, which an apply of Terraform takes, too.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from headrace.agent.client import AgentClient
from headrace.agent.in_sync import lacked_by_others
from headrace.agent.local import find_agent
from headrace.agent.processes import left_units
from headrace.agent.supervisor import Supervisor
from headrace.fleet.home_lock import locked
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.site.site import Site

POLL_S: Final = 1.0  # of all replicas of a cluster, and of its turn
ZOOKEEPER_CONNECT_S: Final = 3.0


def restart(
    site: Site,
    names: Sequence[str] | None,
    observe: Callable[[str], None] = lambda name: None,
    *,
    wait_s: float = 60.0,
) -> None:
    """Restarts units one after another; by default all of the agent's, in the order of their requirements.

    Calls `observe` with the name of each unit that is ready again. Raises `SiteError` if a unit is not ready
    at the beginning, and `AgentRefusedError` if one does not come back, or does not stay; units after it are
    not restarted. Where it restarts several, a broker waits until no other one lacks what it has in sync, and
    none is restarted by another program.
    """
    agent = find_agent(site.home)
    if agent is None:
        if Supervisor(site.home).is_alive() or left_units(site.home):
            raise SiteError(
                f"the units of {site.home} run without an agent; `headrace up` starts one, which takes "
                "them over, and starts those again that nobody supervises"
            )
        raise SiteError(f"nothing runs in {site.home}; start the site with `headrace up`")
    with locked(site.home), agent:
        if names is None:
            order = {unit.name: number for number, unit in enumerate(units_of(site))}
            known = [report.name for report in agent.units(with_drift=False)]
            names = sorted(known, key=lambda name: order.get(name, len(order)))
        for report in agent.units(names, with_drift=False):
            if not report.is_ready:
                raise SiteError(
                    f"unit {report.name} is not ready ({report.problem}), so no unit was restarted; "
                    "fix it first"
                )
        for number, name in enumerate(names):
            left = ", ".join(names[number:])
            # One that ended a moment after it was ready: the next one has what is wrong with it, too.
            for report in agent.units(names[:number], with_drift=False):
                if not report.is_ready:
                    raise SiteError(
                        f"unit {report.name} was ready after its restart, and is not any more "
                        f"({report.problem}); not restarted: {left}"
                    )
            if len(names) > 1 and agent.unit(name).kind == "broker":
                _restart_broker(agent, name, wait_s, left)
            else:
                agent.roll([name], wait_s=wait_s)
            observe(name)


def _restart_broker(agent: AgentClient, name: str, wait_s: float, left: str) -> None:
    """Restarts a broker in its cluster's turn, once no other one, on whichever host, lacks what it has in
    sync. Raises `SiteError` after `wait_s`.
    """
    # Imported here because the import is slow, and only restarts of several units need it.
    from headrace.coordination.restart_turn import turn

    configuration = agent.unit(name).configuration
    listen, broker_id = str(configuration["listen"]), int(configuration["broker_id"])
    me = f"`headrace restart`, process {os.getpid()} of host {socket.gethostname()}, for {name}"
    deadline_s = time.monotonic() + wait_s
    while True:
        with turn(str(configuration["zookeeper"]), me, ZOOKEEPER_CONNECT_S) as holder:
            problem = None if holder else lacked_by_others(listen, broker_id)
            if not holder and problem is None:
                agent.roll([name], wait_s=wait_s)
                return
        if time.monotonic() >= deadline_s:
            raise SiteError(_why_not(name, holder, problem, left))
        time.sleep(POLL_S)


def _why_not(name: str, holder: str, problem: str | None, left: str) -> str:
    if holder:
        return (
            f"unit {name} waits for its turn: {holder} restarts brokers of its cluster; not restarted: "
            f"{left}. Run this command again once that has ended"
        )
    return (
        f"with unit {name} away too few replicas would be left: {problem}; not restarted: "
        f"{left}. Wait until `headrace brokers list` shows nothing out of sync, or restart that one "
        "alone, by `headrace restart` with its name"
    )
