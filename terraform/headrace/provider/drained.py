"""Brokers that stay in the HCL and are marked as drained: a plan names them, because they get no replicas.

An apply that was interrupted while it took a broker away leaves the mark, and so does `headrace brokers
drain`. An apply does not take it away: somebody may drain a broker by hand just then. Owns that each cluster
is asked once.
"""

from __future__ import annotations

import logging
import threading

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import PLAN_TIMEOUT_S
from headrace.provider.draining import cluster_admin
from headrace.provider.problems import Problem
from headrace.provider.values import Values

logger = logging.getLogger(__name__)


class DrainedBrokers:
    """What each cluster of a plan says of its brokers. Many threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, frozenset[int]] = {}

    def warnings(self, state: Values) -> list[Problem]:
        """Returns what is to be said of a broker that was ready when it was last read, and stays."""
        with self._lock:
            zookeeper = str(state["zookeeper"])
            if zookeeper not in self._found:
                self._found[zookeeper] = _drained(state)
            drained = self._found[zookeeper]
        return [_problem(state)] if int(state["broker_id"]) in drained else []


def _drained(state: Values) -> frozenset[int]:
    """Returns which brokers are drained; none if their cluster does not tell."""
    # Imported here because the import is slow, and plans without brokers do not need it.
    from headrace.client.errors import ClientError

    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            return admin.replicas().drained
    except (ClientError, CoordinationError) as error:
        logger.warning("which brokers of %s are drained is not known: %s", state["zookeeper"], error)
        return frozenset()


def _problem(state: Values) -> Problem:
    broker_id, datacenter = int(state["broker_id"]), state["datacenter"]
    return Problem(
        f"Broker {state['name']} is drained",
        "It gets no replicas: an apply that would have destroyed it was interrupted or has failed, or "
        f"somebody drained it. If it is to stay, `headrace brokers undrain {broker_id} -d {datacenter}` "
        f"takes the mark away, and `headrace brokers balance -d {datacenter}` gives it its share.",
        is_warning=True,
    )
