"""A broker that leaves its cluster: whether its replicas can go to other brokers, and their way there.

Owns the decision what keeps a broker from leaving; `headrace.reassignment` plans and makes the moves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import CoordinationError
from headrace.provider.attributes import Attribute
from headrace.provider.clusters import APPLY_TIMEOUT_S, PLAN_TIMEOUT_S, replica_admin
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError, format_bytes
from headrace.provider.values import Values

if TYPE_CHECKING:
    from headrace.client.replica_admin import ReplicaAdmin
    from headrace.coordination.session import ZooKeeperSession
    from headrace.reassignment.moving import Progress

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_DEFAULT_S: Final = 3600
CONNECT_TIMEOUT_S: Final = 3.0
GONE_POLL_S: Final = 0.5
STUCK_SHOWN_MAX: Final = 3

DRAIN_TIMEOUT_S: Final = Attribute(
    name="drain_timeout_s",
    type="number",
    default=DRAIN_TIMEOUT_DEFAULT_S,
    description="Before the broker is destroyed, its replicas move to other brokers: how long that may take, "
    "in seconds. The next apply continues.",
)


@contextmanager
def cluster_admin(state: Values, *, timeout_s: float) -> Iterator[ReplicaAdmin]:
    """Opens a client of the broker's cluster: by its own address, or else by those that ZooKeeper has.

    Raises `ClientError`, `CoordinationError`.
    """
    # Imported here and below because the imports are slow, and only a deletion needs them.
    from headrace.client.errors import ClientError

    own = [str(state["advertise"] or state["listen"])]
    with replica_admin(own, timeout_s=PLAN_TIMEOUT_S) as admin:
        try:
            admin.topics()
            bootstrap = own
        except ClientError:
            bootstrap = [*registered_brokers(str(state["zookeeper"])).values()] or own
    with replica_admin(bootstrap, timeout_s=timeout_s) as admin:
        yield admin


def registered_brokers(zookeeper: str) -> dict[int, str]:
    """Returns the addresses of the live brokers by their ids. Raises `CoordinationError`."""
    from headrace.coordination.brokers import BrokerRegistry

    with _session(zookeeper) as session:
        return {each.broker_id: f"{each.host}:{each.port}" for each in BrokerRegistry(session).live()}


@contextmanager
def _session(zookeeper: str) -> Iterator[ZooKeeperSession]:
    from headrace.coordination.session import ZooKeeperSession

    session = ZooKeeperSession(zookeeper, name="headrace-terraform")
    session.start(connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        yield session
    finally:
        session.close()


def obstacle(state: Values, leaving: Collection[int], deleted_topics: Collection[str]) -> str | None:
    """Returns why the replicas of all brokers that leave cannot go to others; None if they can.

    `leaving`: this plan's brokers of the cluster; `deleted_topics`: the ids of topics that it deletes.
    """
    from headrace.client.errors import ClientError
    from headrace.reassignment.draining import plan_drain
    from headrace.reassignment.operations import room_remedy
    from headrace.reassignment.reading import assigned, nodes_of, room_of

    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            deleted = {
                name for name, topic in admin.topics().items() if str(topic.topic_id) in deleted_topics
            }
            survey = admin.replicas()
    except (ClientError, CoordinationError) as error:
        return f"Its replicas cannot move, because the other brokers do not answer: {error}."
    kept = [partition for partition in assigned(survey) if partition.key[0] not in deleted]
    plan = plan_drain(nodes_of(survey, without=leaving), kept, leaving, room_of(survey))
    stuck = plan.stuck
    if not stuck:
        return None
    more = f"; and {len(stuck) - STUCK_SHOWN_MAX} more" if len(stuck) > STUCK_SHOWN_MAX else ""
    room = f" {plan.shortage}. {room_remedy(int(state['broker_id']))}." if plan.shortage else ""
    return f"Its replicas cannot all move: {'; '.join(map(str, stuck[:STUCK_SHOWN_MAX]))}{more}.{room}"


def drain_broker(state: Values, stopping: threading.Event) -> str:
    """Moves the broker's replicas to others; returns why that cannot be: the cluster has no room for them, or
    does not answer; "" once nothing is left there. Raises `ResourceError` after `drain_timeout_s`, and on
    Ctrl-C.
    """
    from headrace.client.errors import ClientError
    from headrace.reassignment.moving import ReassignmentError, UnfinishedError
    from headrace.reassignment.operations import CannotDrainError, UnknownBrokerError, drain

    broker_id, name = int(state["broker_id"]), str(state["name"])

    def report(progress: Progress) -> None:
        logger.info(
            "draining %s: %d of %d partitions left, %s of %s copied",
            name,
            progress.partitions_left,
            progress.partitions_total,
            format_bytes(progress.copied_bytes),
            format_bytes(progress.total_bytes),
        )

    def sleep(seconds: float) -> None:
        if stopping.wait(seconds):
            raise ResourceError(INTERRUPTED)

    timeout_s = float(state.get("drain_timeout_s") or DRAIN_TIMEOUT_DEFAULT_S)
    begun_s = time.monotonic()
    try:
        with cluster_admin(state, timeout_s=APPLY_TIMEOUT_S) as admin:
            moved = drain(admin, broker_id, timeout_s=timeout_s, report=report, sleep=sleep)
    except UnknownBrokerError:
        return ""
    except (CannotDrainError, ClientError, CoordinationError) as error:
        logger.warning("%s is not drained: %s", name, error)
        return f"Its replicas were not moved: {error}. If that passes, apply again."
    except UnfinishedError as error:
        text = f"After {timeout_s:g} s (drain_timeout_s) replicas are left on it: {error}. Apply again."
        raise ResourceError(Problem(f"Broker {name} is not drained yet", text)) from error
    except ReassignmentError as error:
        raise ResourceError(Problem(f"Broker {name} cannot be drained", f"{error}.")) from error
    logger.info(
        "drained %s in %.1f s: %d partitions, %s copied",
        name,
        time.monotonic() - begun_s,
        moved.partitions,
        format_bytes(moved.copied_bytes),
    )
    return ""


def forget_drained(state: Values, stopping: threading.Event) -> Problem | None:
    """Takes the mark of a broker away that is gone: another one of this id may get replicas. One that runs
    on, on a host that does not answer, keeps it: it would get some itself. Returns what is to be said then.
    """
    from headrace.client.errors import ClientError
    from headrace.reassignment.moving import ReassignmentError
    from headrace.reassignment.operations import UnknownBrokerError, undrain_gone

    try:
        try:
            with cluster_admin(state, timeout_s=APPLY_TIMEOUT_S) as admin:
                is_gone = undrain_gone(admin, int(state["broker_id"]), sleep=stopping.wait)
        except ClientError:
            # It was the last one: nobody else can be asked.
            is_gone = _undrain_in_zookeeper(state, stopping)
    except UnknownBrokerError:
        return None  # it has no mark
    except (ClientError, CoordinationError, ReassignmentError) as error:
        return _still_marked(state, error)
    return None if is_gone else _runs_on(state)


def _undrain_in_zookeeper(state: Values, stopping: threading.Event) -> bool:
    """Takes the mark away without a broker, once the unit's own is no longer registered; returns whether it
    is. Raises `CoordinationError`."""
    from headrace.coordination.broker_configs import BrokerConfigRegistry
    from headrace.coordination.brokers import BrokerRegistry
    from headrace.reassignment.operations import DRAINED, GONE_WAIT_MAX_S

    broker_id, deadline_s = int(state["broker_id"]), time.monotonic() + GONE_WAIT_MAX_S
    with _session(str(state["zookeeper"])) as session:
        registry = BrokerRegistry(session)
        while any(each.broker_id == broker_id for each in registry.live()):
            if time.monotonic() >= deadline_s or stopping.wait(GONE_POLL_S):
                return False
        BrokerConfigRegistry(session).change(
            broker_id, lambda config: {name: value for name, value in config.items() if name != DRAINED}
        )
    return True


def _still_marked(state: Values, error: Exception) -> Problem:
    broker_id = state["broker_id"]
    return Problem(
        f"Broker {broker_id} may still be marked as drained",
        f"{error}. Another broker of this id would get no replicas: `headrace brokers list` shows it, and "
        f"`headrace brokers undrain {broker_id}` takes the mark away.",
        is_warning=True,
    )


def _runs_on(state: Values) -> Problem:
    broker_id = state["broker_id"]
    return Problem(
        f"Broker {broker_id} still runs",
        "It stays marked as drained, so that it gets no replicas. Stop it; `headrace brokers undrain "
        f"{broker_id}` takes the mark away, for another broker of this id.",
        is_warning=True,
    )
