"""CreateTopics, DeleteTopics, CreatePartitions: the broker that gets the request writes to ZooKeeper, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and the other two messages there.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import NewTopic, TopicAdmin
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

NO_ID: Final = UUID(int=0)
PARTITIONS_PER_REQUEST_MAX: Final = 10_000  # as in Apache Kafka


def create(state: BrokerState, request: Request) -> Promise[Any]:
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

    too_many = None
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        too_many = Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions in one request, at most {PARTITIONS_PER_REQUEST_MAX}: "
            "send several requests",
        )

    def step(new: NewTopic, at: int) -> Callable[[Refused | None], _Creation]:
        known = _duplicate(new.name) if named[new.name] > 1 else too_many
        return lambda refusal: _create_one(
            state.topics,
            new,
            known or refusal,
            body.validate_only,
            # The first one is always tried: clients that give no time want no wait for it.
            deadline_s if at else math.inf,
        )

    promise: Promise[Any] = Promise()

    def created(found: list[_Creation] | Exception) -> None:
        if isinstance(found, Exception):
            promise.resolve(found)
            return
        state.when(lambda: _are_usable(state.topics, found), deadline_s).then(
            lambda _: promise.resolve(lambda: {"topics": [_created(state.topics, one) for one in found]})
        )

    state.in_steps([step(new, at) for at, new in enumerate(wanted)]).then(created)
    return promise


def _duplicate(name: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"{name} is named twice in one request")


class _Creation:
    """A topic of a request: the beginning of its result, the topic unless it was refused, and its partitions
    that are not known to be served yet.
    """

    __slots__ = ("left", "result", "topic", "validate_only")

    def __init__(self, result: Tree, topic: TopicState | None, *, validate_only: bool) -> None:
        self.result = result
        self.topic = topic
        self.validate_only = validate_only
        self.left = {} if topic is None or validate_only else dict(topic.partitions)


def _create_one(
    topics: TopicAdmin, new: NewTopic, refusal: Refused | None, validate_only: bool, deadline_s: float
) -> _Creation:
    result: Tree = {"name": new.name, "topic_id": None, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        _check_time(refusal, deadline_s)
        return _Creation(result, topics.create(new, validate_only=validate_only), validate_only=validate_only)
    except Refused as refused:
        return _Creation(result | refused.fields | {"configs": None}, None, validate_only=validate_only)


def _are_usable(topics: TopicAdmin, creations: list[_Creation]) -> bool:
    """Looks at all of them: those that are served are known to be, even if others never are."""
    waiting = [(one.topic, one.left) for one in creations if one.topic is not None and one.left]
    return not [topic for topic, left in waiting if not topics.is_usable(topic, left)]


def _created(topics: TopicAdmin, one: _Creation) -> Tree:
    """Returns a topic's whole result."""
    topic = one.topic
    if topic is None:
        return one.result
    if one.left:
        return one.result | topics.not_usable(topic, one.left).fields | {"configs": None}
    return one.result | {
        "topic_id": None if one.validate_only else topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(next(iter(topic.partitions.values())).replicas),
        "configs": [
            {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
            for name, value, source in topics.explain(topic.config)
        ],
    }


def delete(state: BrokerState, request: Request) -> Promise[Any]:
    """Deletes topics from ZooKeeper; their leaders delete the logs when they see it."""
    body = request.body
    if hasattr(body, "topic_names"):
        wanted = [(name, None) for name in body.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in body.topics]
    deadline_s = time.monotonic() + body.timeout.total_seconds()
    deleted: list[str] = []

    def step(name: str | None, topic_id: UUID | None, at: int) -> Callable[[Refused | None], Tree]:
        def run(refusal: Refused | None) -> Tree:
            result: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                _check_time(refusal, deadline_s if at else math.inf)
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
                state.topics.delete(found)
                deleted.append(found)
                return result | {"name": found}
            except Refused as refused:
                return result | refused.fields

        return run

    promise: Promise[Any] = Promise()

    def ended(found: list[Tree] | Exception) -> None:
        made = found if isinstance(found, Exception) else {"responses": found}
        state.when(lambda: state.topics.sees_none_of(deleted), deadline_s).then(
            lambda _: promise.resolve(made)
        )

    state.in_steps([step(name, topic_id, at) for at, (name, topic_id) in enumerate(wanted)]).then(ended)
    return promise


def create_partitions(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Raises topics' numbers of partitions."""
    body = request.body
    deadline_s = time.monotonic() + body.timeout.total_seconds()

    def step(topic: Any, at: int) -> Callable[[Refused | None], Tree]:
        def run(refusal: Refused | None) -> Tree:
            result: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            assigned = topic.assignments
            try:
                _check_time(refusal, deadline_s if at else math.inf)
                state.topics.add_partitions(
                    topic.name,
                    topic.count,
                    None if assigned is None else [tuple(new.broker_ids) for new in assigned],
                    validate_only=body.validate_only,
                    timeout_s=deadline_s - time.monotonic(),
                )
            except Refused as refused:
                result |= refused.fields
            return result

        return run

    return state.later("results", [step(topic, at) for at, topic in enumerate(body.topics)])


def _check_time(refusal: Refused | None, deadline_s: float) -> None:
    """Raises the refusal, or `Refused` when the request's time is over."""
    if refusal is not None:
        raise refusal
    if time.monotonic() >= deadline_s:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the request's timeout is over: nothing was done; retry")
