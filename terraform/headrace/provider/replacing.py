"""A broker that is made again under its id, on another host or an empty disk: it fetches its replicas anew.

Owns the decision whether nothing is lost by that, and the waits: until the broker of before is gone, and
until the new one is in sync.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import CoordinationError
from headrace.provider.clusters import APPLY_TIMEOUT_S, PLAN_TIMEOUT_S
from headrace.provider.draining import CONNECT_TIMEOUT_S, DRAIN_TIMEOUT_DEFAULT_S, cluster_admin
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError, join_some, plural
from headrace.provider.resource import Replacement, ResourceCall
from headrace.provider.values import Values, is_same

if TYPE_CHECKING:
    from headrace.client.cluster import TopicPartition

logger = logging.getLogger(__name__)

GONE_WAIT_MAX_S: Final = 60.0
BEGIN_MAX_S: Final = 60.0  # Terraform makes a broker again right after it was destroyed
POLL_S: Final = 0.5
REPORT_EVERY_S: Final = 10.0
# In the private data of a planned replacement: whether the new broker has the id and cluster of the old one.
SAME_BROKER: Final = "same_broker"
_IDENTITY: Final = ("datacenter", "zookeeper", "broker_id")


def is_same_broker(prior: Values, planned: Values) -> bool:
    return all(is_same(prior[name], planned[name]) for name in _IDENTITY)


def sole_replicas(
    state: Values, leaving: Collection[int], deleted_topics: Collection[str]
) -> list[TopicPartition] | None:
    """Returns the broker's partitions that no live broker but those that leave has in sync; None if the other
    brokers do not answer. `deleted_topics`: the ids of topics that the same plan deletes."""
    from headrace.client.errors import ClientError

    broker_id = int(state["broker_id"])
    try:
        with cluster_admin(state, timeout_s=PLAN_TIMEOUT_S) as admin:
            live = admin.describe_cluster().brokers.keys() - set(leaving)
            topics = admin.topics()
    except (ClientError, CoordinationError) as error:
        logger.warning("whether other brokers have the replicas of %s is not known: %s", state["name"], error)
        return None
    return [
        (name, number)
        for name, topic in sorted(topics.items())
        for number, partition in sorted(topic.partitions.items())
        if broker_id in partition.replicas and str(topic.topic_id) not in deleted_topics
        if not live & set(partition.isr)
    ]


def sole_problem(state: Values, leaving: Collection[int], deleted_topics: Collection[str]) -> str | None:
    """Returns which partitions would be lost with a broker that does not answer; None if there are none."""
    sole = sole_replicas(state, leaving, deleted_topics)
    if not sole:
        return None
    names = join_some(f"{topic}-{number}" for topic, number in sole)
    return (
        f"No other live broker has {names} in sync, so nothing can be copied: start it, or delete the topics."
    )


def others(replaced: Mapping[tuple[str, int], Replacement], prior: Values) -> list[tuple[int, Replacement]]:
    """Returns the other brokers of the cluster, which this apply makes again, that do not hold their replicas
    yet.
    """
    own = (prior["zookeeper"], int(prior["broker_id"]))
    return [(key[1], each) for key, each in list(replaced.items()) if key[0] == own[0] and key != own]


def is_another_empty(replaced: Mapping[tuple[str, int], Replacement], prior: Values) -> bool:
    """Whether there are `others`. Raises `ResourceError` if one was not made, or Terraform does not begin to:
    with `depends_on` between brokers, it waits for this one.
    """
    found = others(replaced, prior)
    for number, other in found:
        is_late = not other.begun and time.monotonic() - other.deleted_s >= BEGIN_MAX_S
        if other.failed or is_late:
            what = "was not made again" if other.failed else f"is not made again within {BEGIN_MAX_S:g} s"
            text = (
                f"This apply has removed broker {number} of the same cluster, which {what}: with both away, "
                "what they hold would be on too few disks. Apply again once that one is there."
            )
            raise ResourceError(Problem(f"Broker {prior['name']} is not destroyed yet", text))
    return bool(found)


def wait_until_gone(state: Values, stopping: threading.Event) -> None:
    """Returns once ZooKeeper has no registration of the broker. Raises `ResourceError` if it stays: the
    broker runs, although its host's agent does not answer. Raises `CoordinationError`, too."""
    # Imported here because the import is slow, and few applies need it.
    from headrace.coordination.brokers import BrokerRegistry
    from headrace.coordination.session import ZooKeeperSession

    session = ZooKeeperSession(str(state["zookeeper"]), name="headrace-terraform")
    session.start(connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        registry, broker_id = BrokerRegistry(session), int(state["broker_id"])

        def is_gone() -> bool:
            return all(each.broker_id != broker_id for each in registry.live())

        if not _wait(is_gone, stopping, GONE_WAIT_MAX_S):
            raise ResourceError(
                Problem(
                    f"Broker {state['name']} still runs",
                    f"The agent of host {state['host']} does not answer, but broker {broker_id} is still "
                    f"registered in ZooKeeper after {GONE_WAIT_MAX_S:g} s. Two brokers cannot have one id: "
                    "stop it, or repair the agent, then apply again.",
                )
            )
    finally:
        session.close()


def wait_until_in_sync(call: ResourceCall, state: Values) -> None:
    """Returns once the broker has fetched its replicas; warns of those that it has not after
    `drain_timeout_s`, or on Ctrl-C: after an error Terraform would replace it once more."""
    from headrace.client.errors import ClientError
    from headrace.client.in_sync import behind

    broker_id, name = int(state["broker_id"]), str(state["name"])
    timeout_s = float(state.get("drain_timeout_s") or DRAIN_TIMEOUT_DEFAULT_S)
    late: list[str] = []
    reported_s = time.monotonic()

    def is_in_sync() -> bool:
        nonlocal late, reported_s
        late = [f"{topic}-{number}" for topic, number in behind(broker_id, admin.topics())]
        if late and time.monotonic() - reported_s >= REPORT_EVERY_S:
            reported_s = time.monotonic()
            logger.info("%s fetches its replicas: %s left", name, plural(len(late), "partition"))
        return not late

    try:
        with cluster_admin(state, timeout_s=APPLY_TIMEOUT_S) as admin:
            if _wait(is_in_sync, call.stopping, timeout_s, is_failure=False):
                logger.info("%s has fetched its replicas", name)
                return
        text = f"{plural(len(late), 'partition')} of it are not in sync yet ({join_some(late)}); it goes on."
    except (ClientError, CoordinationError) as error:
        text = f"How far it is is not known: {error}."
    call.warn(f"Broker {name} still fetches its replicas", text)


def _wait(
    condition: Callable[[], bool], stopping: threading.Event, timeout_s: float, *, is_failure: bool = True
) -> bool:
    """Returns whether the condition became true in time. Ctrl-C: raises `ResourceError` if it `is_failure`,
    else returns False."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        if stopping.wait(POLL_S):
            if is_failure:
                raise ResourceError(INTERRUPTED)
            return False
    return True
