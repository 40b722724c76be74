"""Metadata: brokers, topics and leaders, from this broker's view of the whole cluster.

A request for an unknown topic creates it, if so configured.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_BROKER
from headrace.broker.config import is_mirror
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

AUTO_CREATE_WAIT_MS: Final = 5_000
NO_ID: Final = UUID(int=0)
NO_EPOCH: Final = -1


def handle(state: BrokerState, request: Request) -> Tree | Promise[Tree]:
    """Returns the response's tree, or a promise of it while topics are being created."""
    missing = _to_create(state, request)
    if not missing:
        return respond(state, request)
    promise: Promise[Tree] = Promise()
    state.loop.call_later(AUTO_CREATE_WAIT_MS, lambda: promise.resolve(respond(state, request)))
    left = len(missing)

    def created(_: object) -> None:
        nonlocal left
        left -= 1
        if not left and not promise.done:
            promise.resolve(respond(state, request))

    for name in missing:
        state.topics.create_on_demand(name).then(created)
    return promise


def _to_create(state: BrokerState, request: Request) -> list[str]:
    topics = request.body.topics
    allowed = getattr(request.body, "allow_auto_topic_creation", True)
    if not topics or not allowed or not state.config["auto.create.topics.enable"]:
        return []
    names = {topic.name for topic in topics if topic.name is not None}
    return sorted(
        name for name in names if name not in state.view.topics and state.topics.is_valid_name(name)
    )


def respond(state: BrokerState, request: Request) -> Tree:
    """Returns the response's tree from the present view."""
    view = state.view
    wanted = request.body.topics
    # An empty list means all topics in version 0, none in later ones; null means all.
    if wanted is None or (request.version == 0 and not wanted):
        topics = [_topic(state, topic) for topic in view.topics.values()]
    else:
        distinct = dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in wanted)
        topics = [_wanted(state, name, topic_id) for name, topic_id in distinct]
    return {
        "brokers": [
            {"node_id": broker_id, "host": broker.host, "port": broker.port, "rack": broker.datacenter}
            for broker_id, broker in sorted(view.brokers.items())
        ],
        "cluster_id": state.cluster_id,
        "controller_id": view.controller_id(),
        "topics": topics,
    }


def _wanted(state: BrokerState, name: str | None, topic_id: UUID | None) -> Tree:
    if name is None:
        name = state.view.names_by_id.get(topic_id or NO_ID)
        if name is None:
            return {
                "error_code": ErrorCode.UNKNOWN_TOPIC_ID,
                "name": None,
                "topic_id": topic_id,
                "partitions": (),
            }
    topic = state.view.topics.get(name)
    if topic is not None:
        return _topic(state, topic)
    try:
        state.topics.check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except Refused as refused:
        code = refused.code
    return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}


def _topic(state: BrokerState, topic: TopicState) -> Tree:
    brokers = state.view.brokers
    # The batches of a mirror's copy have the source's leader epochs. A Java consumer that has seen a greater
    # epoch than Metadata's ignores Metadata, and would never find a new leader: so there is none to compare.
    mirror = is_mirror(topic.config)
    partitions = []
    for index, partition in sorted(topic.partitions.items()):
        alive = partition.leader in brokers
        partitions.append(
            {
                "error_code": ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": index,
                "leader_id": partition.leader if alive else NO_BROKER,
                "leader_epoch": NO_EPOCH if mirror else partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "offline_replicas": tuple(
                    replica for replica in partition.replicas if replica not in brokers
                ),
            }
        )
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": False,
        "partitions": partitions,
    }
