"""CreateTopics, DeleteTopics, CreatePartitions: the broker that gets the request writes to ZooKeeper, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and the other two messages there.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import NewTopic
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

NO_ID: Final = UUID(int=0)


def create(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Creates topics; responds when every new topic is usable, or at the request's timeout."""
    body = request.body
    timeout_s = body.timeout.total_seconds()
    jobs = []
    names = [topic.name for topic in body.topics]
    for topic in body.topics:
        new = NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {setting.name: setting.value for setting in topic.configs if setting.value is not None},
            {chosen.partition_index: tuple(chosen.broker_ids) for chosen in topic.assignments},
        )
        jobs.append((new, names.count(topic.name) > 1))

    def run() -> list[Tree]:
        return [
            _create_one(state, new, is_duplicate, body.validate_only, timeout_s) for new, is_duplicate in jobs
        ]

    return state.later("topics", run)


def _create_one(
    state: BrokerState, new: NewTopic, is_duplicate: bool, validate_only: bool, timeout_s: float
) -> Tree:
    result: Tree = {"name": new.name, "topic_id": None, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        if is_duplicate:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{new.name} is named twice in one request")
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

    def run() -> list[Tree]:
        results = []
        for name, topic_id in wanted:
            result: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
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

    def run() -> list[Tree]:
        results = []
        for topic in body.topics:
            result: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
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
