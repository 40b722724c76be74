"""A broker that a change restarts: the next one of its datacenter waits until it is in sync again.

Owns what "again" means here (`client.in_sync`) and the wait. `slots` keeps the others from being changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import PLAN_TIMEOUT_S
from headrace.provider.draining import cluster_admin
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import ResourceCall
from headrace.provider.values import Values

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.client.cluster import TopicInfo, TopicPartition

POLL_S: Final = 0.5


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
