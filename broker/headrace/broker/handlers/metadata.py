"""Metadata: brokers, topics and leaders, from this broker's view of the whole cluster.

A request for an unknown topic creates it, if so configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_BROKER, ClusterView, OfflineName
from headrace.broker.errors import Refused
from headrace.broker.handlers import allowed
from headrace.broker.promise import Promise
from headrace.broker.settings.usable import is_mirror
from headrace.broker.state import BrokerState
from headrace.broker.topics import TopicAdmin
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

AUTO_CREATE_WAIT_MS: Final = 5_000
LISTED_HERE_MAX: Final = 100  # topics and partitions; more are listed on a thread
NO_ID: Final = UUID(int=0)
NO_EPOCH: Final = -1


Topics = Sequence[Any] | None  # of a request's body; None means all


NAMELESS_FROM: Final = 12


class Cluster(NamedTuple):
    """What a response is made from: immutable. `offline`: the logs of this and other brokers that cannot be
    served. `left`: this broker, if it leads nothing any more that it may serve; else NO_BROKER."""

    view: ClusterView
    cluster_id: str
    offline: frozenset[OfflineName]
    left: int = NO_BROKER

    @property
    def listed(self) -> list[tuple[int, BrokerRegistration]]:
        """The brokers to tell of. librdkafka asks a broker that it is connected to, and this one alone would
        be asked for ever: it is left out where there are others.
        """
        brokers = sorted(self.view.brokers.items())
        return [each for each in brokers if each[0] != self.left] or brokers


def handle(state: BrokerState, request: Request) -> Tree | Callable[[], Tree] | Promise[Any]:
    """Returns the response's tree, or how to make it, or a promise of that while topics are being created."""
    wanted = request.body.topics
    if wanted is not None:
        # Kafka, too, answers each topic once. Otherwise one short name, repeated, would list a large topic
        # thousands of times.
        wanted = tuple({(topic.name, getattr(topic, "topic_id", None)): topic for topic in wanted}.values())
    creations = _create_missing(state, request, wanted)
    if not creations:
        return _listing(state, request, wanted)
    promise: Promise[Any] = Promise()
    left = len(creations)

    def respond_now() -> None:
        timer.cancel()
        if not promise.done:
            promise.resolve(_listing(state, request, wanted))

    timer = state.loop.call_later(AUTO_CREATE_WAIT_MS, respond_now)

    def created(_: None) -> None:
        nonlocal left
        left -= 1
        if not left:
            respond_now()

    for creation in creations:
        creation.then(created)
    return promise


def _create_missing(state: BrokerState, request: Request, wanted: Topics) -> list[Promise[None]]:
    """Begins to create unknown topics; those beyond a bound are not created, and answered as unknown."""
    allowed = getattr(request.body, "allow_auto_topic_creation", True)
    if not wanted or not allowed or not state.config["auto.create.topics.enable"]:
        return []
    host = state.peer.rpartition(":")[0]
    names = (topic.name for topic in wanted if _id_of(topic, request.version) is None)
    missing = [name for name in names if name not in state.view.topics and state.topics.is_valid_name(name)]
    creations = (state.on_demand.create(name, host) for name in missing)
    return [creation for creation in creations if creation is not None]


def _listing(state: BrokerState, request: Request, wanted: Topics) -> Tree | Callable[[], Tree]:
    """Returns the response's tree from the present view, or how to make it if it is large."""
    left = state.broker_id if state.is_left else NO_BROKER
    cluster = Cluster(state.view, state.cluster_id, state.leaderless(), left)
    if wanted is None or (request.version == 0 and not wanted):
        listed = sum(1 + len(topic.partitions) for topic in cluster.view.topics.values())
    else:
        known = (cluster.view.topics.get(_name_of(cluster, each, request.version) or "") for each in wanted)
        listed = sum(1 if topic is None else 1 + len(topic.partitions) for topic in known)
    if listed <= LISTED_HERE_MAX:
        return respond(cluster, request, wanted)
    return lambda: respond(cluster, request, wanted)


def respond(cluster: Cluster, request: Request, wanted: Topics) -> Tree:
    """Returns the response's tree. Any thread may call it."""
    view = cluster.view
    topic_operations = allowed.answer(allowed.ON_TOPIC, request.body, "include_topic_authorized_operations")
    # An empty list means all topics in version 0, none in later ones; null means all.
    if wanted is None or (request.version == 0 and not wanted):
        topics = [_topic(cluster, topic, topic_operations) for topic in view.topics.values()]
    else:
        topics = [
            _wanted(
                cluster, _name_of(cluster, each, request.version), each, request.version, topic_operations
            )
            for each in wanted
        ]
    return {
        "brokers": [
            {"node_id": broker_id, "host": broker.host, "port": broker.port, "rack": broker.shown_rack}
            for broker_id, broker in cluster.listed
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": view.controller_id(),
        "topics": topics,
        "cluster_authorized_operations": allowed.answer(
            allowed.ON_CLUSTER, request.body, "include_cluster_authorized_operations"
        ),
    }


def _id_of(topic: Any, version: int) -> UUID | None:
    """Returns the id by which a request wants a topic; None if it does by name. Beside an id Java's Admin
    leaves the name empty, not null, and Apache Kafka goes by the id, whatever the name is.
    """
    topic_id: UUID = getattr(topic, "topic_id", None) or NO_ID
    is_by_id = topic.name is None or (version >= NAMELESS_FROM and topic_id != NO_ID)
    return topic_id if is_by_id else None


def _name_of(cluster: Cluster, topic: Any, version: int) -> str | None:
    """Returns the name of the topic that a request wants; None for an id that no topic has."""
    topic_id = _id_of(topic, version)
    name: str | None = topic.name if topic_id is None else cluster.view.names_by_id.get(topic_id)
    return name


def _wanted(cluster: Cluster, name: str | None, wanted: Any, version: int, topic_operations: int) -> Tree:
    if name is None:
        # Before version 12 a response has to name its topics, so requests cannot name them by id alone.
        by_id = version >= NAMELESS_FROM
        return {
            "error_code": ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.INVALID_REQUEST,
            "name": None if by_id else "",
            "topic_id": _id_of(wanted, version),
            "partitions": (),
        }
    topic = cluster.view.topics.get(name)
    if topic is not None:
        return _topic(cluster, topic, topic_operations)
    try:
        TopicAdmin.check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except Refused as refused:
        code = refused.code
    return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}


def _topic(cluster: Cluster, topic: TopicState, topic_operations: int) -> Tree:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": False,
        "partitions": [partition_tree(cluster, topic, index) for index in sorted(topic.partitions)],
        "topic_authorized_operations": topic_operations,
    }


def partition_tree(cluster: Cluster, topic: TopicState, index: int) -> Tree:
    """Returns what Metadata tells of a partition."""
    partition, brokers = topic.partitions[index], cluster.view.brokers
    # As in Kafka, a partition whose only log is offline has no leader.
    is_offline = (partition.leader, topic.name, index) in cluster.offline
    leads = partition.leader in brokers and not is_offline
    return {
        "error_code": ErrorCode.NONE if leads else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": partition.leader if leads else NO_BROKER,
        # The batches of a mirror's copy have the source's leader epochs. A Java consumer that has seen a
        # greater epoch than Metadata's ignores Metadata, and would never find a new leader: so there is none
        # to compare.
        "leader_epoch": NO_EPOCH if is_mirror(topic.config) else partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": tuple(
            replica
            for replica in partition.replicas
            if replica not in brokers or (is_offline and replica == partition.leader)
        ),
    }
