"""CreateTopics, DeleteTopics, CreatePartitions: the broker that gets the request writes to ZooKeeper, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and the other two messages there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import NewTopic
from headrace.coordination.topics import is_topic_name
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

NO_ID: Final = UUID(int=0)


def create(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Creates topics; responds when every new topic is usable, or at the request's timeout."""
    body = request.body
    timeout_s = body.timeout.total_seconds()
    jobs = []
    counts = Counter(topic.name for topic in body.topics)
    for topic in {topic.name: topic for topic in body.topics}.values():
        new = NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {setting.name: setting.value or "" for setting in topic.configs},
            {chosen.partition_index: tuple(chosen.broker_ids) for chosen in topic.assignments},
        )
        jobs.append((new, _problem(topic, counts[topic.name])))

    def run() -> list[Tree]:
        return [_create_one(state, new, problem, body.validate_only, timeout_s) for new, problem in jobs]

    return state.later("topics", run)


def _problem(topic: Any, count: int) -> Refused | None:
    """Returns what is wrong with a new topic by the request alone."""
    if count > 1:
        return Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is named {count} times in one request")
    for setting in topic.configs:
        if setting.value is None:
            return Refused(ErrorCode.INVALID_CONFIG, f"{setting.name} has a null value; leave it out instead")
    if not topic.assignments:
        return None
    if (topic.num_partitions, topic.replication_factor) != (-1, -1):
        return Refused(
            ErrorCode.INVALID_REQUEST, "with an assignment, partitions and replication factor must be -1"
        )
    indexes = sorted(chosen.partition_index for chosen in topic.assignments)
    if indexes != list(range(len(indexes))):
        return Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "an assignment must name each partition from 0 on once, without a gap",
        )
    return None


def _create_one(
    state: BrokerState, new: NewTopic, problem: Refused | None, validate_only: bool, timeout_s: float
) -> Tree:
    result: Tree = {"name": new.name, "topic_id": None, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        if problem is not None:
            raise problem
        created = state.topics.create(new, validate_only=validate_only, timeout_s=timeout_s)
    except Refused as refused:
        return result | refused.fields | {"configs": None}
    return result | {
        "topic_id": None if validate_only else created.topic_id,
        "num_partitions": len(created.partitions),
        "replication_factor": len(created.partitions[0].replicas),
        "configs": [
            {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
            for name, value, source in state.topics.explain(created.config)
        ],
    }


def delete(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Deletes topics from ZooKeeper; their leaders delete the logs when they see it."""
    body = request.body
    if hasattr(body, "topic_names"):
        wanted = [(name, None) for name in body.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in body.topics]
    timeout_s = body.timeout.total_seconds()
    counts = Counter(wanted)

    def run() -> list[Tree]:
        results = []
        for (name, topic_id), count in counts.items():
            result: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                if count > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is named {count} times in one request")
                if name is not None and topic_id not in (None, NO_ID):
                    raise Refused(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
                if not is_topic_name(found):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {found!r}")
                state.topics.delete(found, timeout_s=timeout_s)
                result["name"] = found
            except Refused as refused:
                result |= refused.fields
            results.append(result)
        return results

    return state.later("responses", run)


def create_partitions(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Raises topics' numbers of partitions."""
    body = request.body
    timeout_s = body.timeout.total_seconds()

    counts = Counter(topic.name for topic in body.topics)

    def run() -> list[Tree]:
        results = []
        for topic in {topic.name: topic for topic in body.topics}.values():
            result: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
                if counts[topic.name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is named twice in one request")
                if not is_topic_name(topic.name):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
                chosen = (
                    None
                    if topic.assignments is None
                    else [tuple(new.broker_ids) for new in topic.assignments]
                )
                state.topics.add_partitions(
                    topic.name, topic.count, chosen, validate_only=body.validate_only, timeout_s=timeout_s
                )
            except Refused as refused:
                result |= refused.fields
            results.append(result)
        return results

    return state.later("results", run)
