"""A broker that a change restarts: the next one of its datacenter waits until it is in sync again.

Owns what "again" means here (`client.in_sync`) and the wait. `slots` keeps the others from being changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import PLAN_TIMEOUT_S
from headrace.provider.draining import cluster_admin
from headrace.provider.problems import Problem, ResourceError, join_some, plural
from headrace.provider.resource import ResourceCall
from headrace.provider.values import Values

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.client.cluster import TopicPartition

POLL_S: Final = 0.5
LOOKS: Final = 2
"""So often in a row a broker must be in sync: the first look may be older than its restart."""


def partitions_in_sync(state: Values) -> Collection[TopicPartition]:
    """Returns what the broker has in sync; nothing if no broker of its cluster tells."""
    from headrace.client.errors import ClientError
    from headrace.client.in_sync import in_sync_of

    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            return in_sync_of(int(state["broker_id"]), admin.topics())
    except (ClientError, CoordinationError):
        return ()


def wait_until_back(
    call: ResourceCall, state: Values, before: Collection[TopicPartition], timeout_s: float
) -> None:
    """Returns once the broker has in sync what it had before, or on Ctrl-C. Raises `ResourceError`."""
    from headrace.client.errors import ClientError
    from headrace.client.in_sync import behind

    if not before:
        return
    broker_id, name = int(state["broker_id"]), state["name"]
    deadline_s = time.monotonic() + timeout_s
    looks = 0
    while True:
        try:
            with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
                late = behind(broker_id, admin.topics(), before)
            names = join_some(f"{topic}-{number}" for topic, number in late)
            problem = f"it still fetches {plural(len(late), 'partition')} ({names})"
            looks = 0 if late else looks + 1
        except (ClientError, CoordinationError) as error:
            problem, looks = f"what it has in sync is not known: {error}", 0
        if looks == LOOKS:
            return
        if time.monotonic() >= deadline_s:
            raise ResourceError(
                Problem(
                    f"Broker {name} is not in sync again",
                    f"It was changed and is ready, but {timeout_s:g} s were not enough: {problem}. No other "
                    "broker of its datacenter was changed meanwhile. It goes on fetching: apply again when "
                    "`headrace topics describe` shows it in sync.",
                ),
                state=state,
            )
        if call.stopping.wait(POLL_S):
            return
