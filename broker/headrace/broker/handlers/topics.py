"""CreateTopics, DeleteTopics, CreatePartitions: the broker that gets the request writes to ZooKeeper, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and the other two messages there.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import NewTopic
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

NO_ID: Final = UUID(int=0)
PARTITIONS_PER_REQUEST_MAX: Final = 10_000  # as in Apache Kafka


def create(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Creates topics; responds when every new topic is usable, or at the request's timeout."""
    body = request.body
    deadline_s = time.monotonic() + body.timeout.total_seconds()
    wanted = [
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {setting.name: setting.value for setting in topic.configs if setting.value is not None},
            {chosen.partition_index: tuple(chosen.broker_ids) for chosen in topic.assignments},
        )
        for topic in body.topics
    ]
    named = Counter(new.name for new in wanted)
    partitions = sum(max(0, state.topics.partition_count(new)) for new in wanted)

    def run(refusal: Refused | None) -> list[Tree]:
        if partitions > PARTITIONS_PER_REQUEST_MAX:
            refusal = Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions in one request, at most {PARTITIONS_PER_REQUEST_MAX}: "
                "send several requests",
            )
        created = [
            _create_one(
                state,
                new,
                _duplicate(new.name) if named[new.name] > 1 else refusal,
                body.validate_only,
                # The first one is always tried: clients that give no time want no wait for it.
                deadline_s if at else math.inf,
            )
            for at, new in enumerate(wanted)
        ]
        return [_await_one(state, one, body.validate_only, deadline_s) for one in created]

    return state.later("topics", run)


def _duplicate(name: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"{name} is named twice in one request")


def _create_one(
    state: BrokerState, new: NewTopic, refusal: Refused | None, validate_only: bool, deadline_s: float
) -> tuple[Tree, TopicState | None]:
    """Returns the beginning of a topic's result, and the topic unless it is refused."""
    result: Tree = {"name": new.name, "topic_id": None, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        _check_time(refusal, deadline_s)
        return result, state.topics.create(new, validate_only=validate_only)
    except Refused as refused:
        return result | refused.fields | {"configs": None}, None


def _await_one(
    state: BrokerState, one: tuple[Tree, TopicState | None], validate_only: bool, deadline_s: float
) -> Tree:
    """Returns a topic's whole result once it is usable."""
    result, created = one
    if created is None:
        return result
    try:
        if not validate_only:
            state.topics.wait_usable(created, deadline_s - time.monotonic())
    except Refused as refused:
        return result | refused.fields | {"configs": None}
    return result | {
        "topic_id": None if validate_only else created.topic_id,
        "num_partitions": len(created.partitions),
        "replication_factor": len(next(iter(created.partitions.values())).replicas),
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
    deadline_s = time.monotonic() + body.timeout.total_seconds()

    def run(refusal: Refused | None) -> list[Tree]:
        results: list[Tree] = []
        for name, topic_id in wanted:
            result: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                _check_time(refusal, deadline_s if results else math.inf)
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
                state.topics.delete(found, timeout_s=deadline_s - time.monotonic())
                result["name"] = found
            except Refused as refused:
                result |= refused.fields
            results.append(result)
        return results

    return state.later("responses", run)


def create_partitions(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Raises topics' numbers of partitions."""
    body = request.body
    deadline_s = time.monotonic() + body.timeout.total_seconds()

    def run(refusal: Refused | None) -> list[Tree]:
        results: list[Tree] = []
        for topic in body.topics:
            result: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
                _check_time(refusal, deadline_s if results else math.inf)
                chosen = (
                    None
                    if topic.assignments is None
                    else [tuple(new.broker_ids) for new in topic.assignments]
                )
                state.topics.add_partitions(
                    topic.name,
                    topic.count,
                    chosen,
                    validate_only=body.validate_only,
                    timeout_s=deadline_s - time.monotonic(),
                )
            except Refused as refused:
                result |= refused.fields
            results.append(result)
        return results

    return state.later("results", run)


def _check_time(refusal: Refused | None, deadline_s: float) -> None:
    """Raises the refusal, or `Refused` when the request's time is over."""
    if refusal is not None:
        raise refusal
    if time.monotonic() >= deadline_s:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the request's timeout is over: nothing was done; retry")
