"""A broker that a change restarts: it waits until no other one of its cluster lacks what it has, and the next
one waits until it is in sync again.

Owns what "again" means here (`client.in_sync`), the waits, and the cluster's turn, which keeps the applies of
other states, and `headrace restart`, from restarting another broker meanwhile. `slots` keeps those of this
apply.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import CoordinationError
from headrace.provider import lacking
from headrace.provider.clusters import PLAN_TIMEOUT_S
from headrace.provider.draining import CONNECT_TIMEOUT_S, cluster_admin
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError
from headrace.provider.replacing import BEGIN_MAX_S
from headrace.provider.resource import ResourceCall
from headrace.provider.values import Values

if TYPE_CHECKING:
    from headrace.client.cluster import TopicInfo, TopicPartition

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
TURN_WAIT_MAX_S: Final = 3600.0  # another apply may restart many brokers, one after another


class Others:
    """The other brokers of the cluster of one that is to be restarted: how long it waits for them."""

    def __init__(
        self, call: ResourceCall, state: Values, deleted_topics: Collection[str], timeout_s: float
    ) -> None:
        self._call = call
        self._state = state
        self._deleted_topics = deleted_topics
        self._timeout_s = timeout_s
        self._lacking_s: float | None = None  # since when somebody lacks something
        self._begun_s = time.monotonic()

    def are_in_sync(self) -> bool:
        """Whether the broker may be restarted: nobody lacks what it has in sync. Without brokers that are not
        there at all it goes on after `BEGIN_MAX_S`. Raises `ResourceError` once the time is up."""
        if self._state.get("allow_data_loss"):
            return True
        lack = lacking.others_lack(self._state, self._deleted_topics)
        if lack is None:
            self._lacking_s = None
            return True
        self._lacking_s = time.monotonic() if self._lacking_s is None else self._lacking_s
        waited_s = time.monotonic() - self._lacking_s
        if lack.gone == lack.brokers and waited_s >= BEGIN_MAX_S:
            gone = ", ".join(map(str, lack.gone))
            logger.warning("%s is restarted although broker %s is not there", self._state["name"], gone)
            return True
        if waited_s >= self._timeout_s and lack.gone != lack.brokers:
            text = (
                f"A restart would leave partitions with too few replicas, because {lacking.described(lack)} "
                f"after {self._timeout_s:g} s. Apply again once `headrace brokers list` shows nothing out of "
                "sync. To restart it all the same, set allow_data_loss = true and apply that first."
            )
            problem = Problem(f"Broker {self._state['name']} is not restarted yet", text)
            raise ResourceError(problem, state=self._state)
        return False

    def pause(self, holder: str) -> None:
        """Waits a moment. `holder`: the other program that has the turn. Raises `ResourceError`."""
        if self._call.stopping.wait(POLL_S):
            raise ResourceError(INTERRUPTED, state=self._state)
        if holder and time.monotonic() - self._begun_s >= TURN_WAIT_MAX_S:
            text = (
                f"{holder} restarts brokers of its cluster, for {TURN_WAIT_MAX_S:g} s by now. Apply again "
                "once that has ended."
            )
            problem = Problem(f"Broker {self._state['name']} is not restarted yet", text)
            raise ResourceError(problem, state=self._state)


def turn(state: Values) -> AbstractContextManager[str]:
    """Has the turn to restart a broker of the cluster; yields "", or who has it instead. Where ZooKeeper does
    not answer there are no turns."""
    # Imported here because the import is slow, and only changes of brokers need it.
    from headrace.coordination import restart_turn

    me = f"terraform, process {os.getpid()} of host {socket.gethostname()}, for {state['name']}"
    return restart_turn.turn(str(state["zookeeper"]), me, CONNECT_TIMEOUT_S)


def partitions_in_sync(state: Values) -> Collection[TopicPartition]:
    """Returns what the broker has in sync; nothing if no broker of its cluster tells."""
    from headrace.client.in_sync import in_sync_of

    topics = _topics(state)
    return () if isinstance(topics, str) else in_sync_of(int(state["broker_id"]), topics)


def wait_until_back(
    call: ResourceCall, state: Values, before: Collection[TopicPartition], timeout_s: float
) -> None:
    """Returns once the broker has in sync what it had before, or on Ctrl-C. Raises `ResourceError`."""
    from headrace.client import in_sync

    if not before:
        return
    broker = in_sync.CatchUp(int(state["broker_id"]), before)
    problem = in_sync.wait_until_back(
        broker, lambda: _topics(state), lambda: call.stopping.wait(POLL_S), timeout_s
    )
    if problem is not None and not call.stopping.is_set():
        raise ResourceError(
            Problem(
                f"Broker {state['name']} is not in sync again",
                f"It was changed and is ready, but {timeout_s:g} s were not enough: {problem}. No other "
                "broker of its datacenter was changed meanwhile. It goes on fetching: apply again when "
                "`headrace topics describe` shows it in sync.",
            ),
            state=state,
        )


def _topics(state: Values) -> dict[str, TopicInfo] | str:
    """Returns all topics as the broker's cluster tells them, or why it does not."""
    from headrace.client.errors import ClientError

    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            return admin.topics()
    except (ClientError, CoordinationError) as error:
        return str(error)
