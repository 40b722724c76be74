"""CreateTopics, DeleteTopics, CreatePartitions: the broker that gets the request writes to ZooKeeper, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and the other two messages there.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import NewTopic, TopicAdmin
from headrace.coordination.topics import PartitionState, TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.topic_names import is_topic_name

NO_ID: Final = UUID(int=0)
PARTITIONS_PER_REQUEST_MAX: Final = 10_000  # as in Apache Kafka


def create(state: BrokerState, request: Request) -> Promise[Any]:
    """Creates topics; responds when every new topic is usable, or at the request's timeout."""
    body = request.body
    deadline_s = time.monotonic() + body.timeout.total_seconds()
    counts = Counter(topic.name for topic in body.topics)
    wanted: list[tuple[NewTopic, Refused | None]] = []
    for topic in {topic.name: topic for topic in body.topics}.values():
        new = NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {setting.name: setting.value or "" for setting in topic.configs},
            {chosen.partition_index: tuple(chosen.broker_ids) for chosen in topic.assignments},
        )
        wanted.append((new, _problem(topic, counts[topic.name])))
    partitions = sum(max(0, state.topics.partition_count(new)) for new, _ in wanted)

    too_many = None
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        too_many = Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions in one request, at most {PARTITIONS_PER_REQUEST_MAX}: "
            "send several requests",
        )

    def step(new: NewTopic, problem: Refused | None, at: int) -> Callable[[Refused | None], _Creation]:
        return lambda refusal: _create_one(
            state.topics,
            new,
            problem or too_many or refusal,
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

    state.in_steps([step(*each, at) for at, each in enumerate(wanted)]).then(created)
    return promise


class _Creation:
    """A topic of a request: the beginning of its result, the topic unless it was refused, and its partitions
    that are not known to be served yet.
    """

    __slots__ = ("left", "result", "topic", "validate_only")

    def __init__(
        self, result: Tree, topic: TopicState | None, *, validate_only: bool, new: Iterable[int] | None = None
    ) -> None:
        """`new`: the partitions that the request made; None: all."""
        self.result = result
        self.topic = topic
        self.validate_only = validate_only
        self.left: dict[int, PartitionState] = {}
        if topic is not None and not validate_only:
            made = topic.partitions if new is None else new
            self.left = {index: topic.partitions[index] for index in made}


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
            {
                "name": each.setting.name,
                "value": each.value,
                "read_only": False,
                "config_source": each.source,
                "is_sensitive": False,
            }
            for each in topics.explain(topic)
        ],
    }


def delete(state: BrokerState, request: Request) -> Promise[Any]:
    """Deletes topics from ZooKeeper; their leaders delete the logs when they see it."""
    body = request.body
    wanted: list[tuple[str | None, UUID | None]]
    if hasattr(body, "topic_names"):
        wanted = [(name, None) for name in body.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in body.topics]
    deadline_s = time.monotonic() + body.timeout.total_seconds()
    counts = Counter(wanted)
    deleted: list[str] = []

    def step(name: str | None, topic_id: UUID | None, at: int) -> Callable[[Refused | None], Tree]:
        count = counts[name, topic_id]

        def run(refusal: Refused | None) -> Tree:
            result: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                _check_time(refusal, deadline_s if at else math.inf)
                if count > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is named {count} times in one request")
                if name is not None and topic_id not in (None, NO_ID):
                    raise Refused(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
                if not is_topic_name(found):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {found!r}")
                _delete_one(state.topics, found, topic_id if name is None else None)
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

    state.in_steps([step(*each, at) for at, each in enumerate(counts)]).then(ended)
    return promise


def _delete_one(topics: TopicAdmin, name: str, topic_id: UUID | None) -> None:
    """Deletes a topic. By its id only that one: this broker may not know yet that it was made again."""
    try:
        topics.delete(name, topic_id)
    except Refused as refused:
        if topic_id is None or refused.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}") from None


def create_partitions(state: BrokerState, request: Request) -> Promise[Any]:
    """Raises topics' numbers of partitions; responds when the new ones are usable, or at the request's
    timeout. Of those that were there before, one may have no leader.
    """
    body = request.body
    deadline_s = time.monotonic() + body.timeout.total_seconds()
    counts = Counter(topic.name for topic in body.topics)
    distinct = [(topic, at) for at, topic in enumerate({each.name: each for each in body.topics}.values())]

    def step(topic: Any, at: int) -> Callable[[Refused | None], _Creation]:
        def run(refusal: Refused | None) -> _Creation:
            result: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            assigned = topic.assignments
            try:
                _check_time(refusal, deadline_s if at else math.inf)
                if counts[topic.name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is named twice in one request")
                if not is_topic_name(topic.name):
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
                topic_then, new = state.topics.add_partitions(
                    topic.name,
                    topic.count,
                    None if assigned is None else [tuple(new.broker_ids) for new in assigned],
                    validate_only=body.validate_only,
                )
                return _Creation(result, topic_then, validate_only=body.validate_only, new=new)
            except Refused as refused:
                return _Creation(result | refused.fields, None, validate_only=body.validate_only)

        return run

    promise: Promise[Any] = Promise()

    def raised(found: list[_Creation] | Exception) -> None:
        if isinstance(found, Exception):
            promise.resolve(found)
            return
        state.when(lambda: _are_usable(state.topics, found), deadline_s).then(
            lambda _: promise.resolve({"results": [_raised(state.topics, one) for one in found]})
        )

    state.in_steps([step(*each) for each in distinct]).then(raised)
    return promise


def _raised(topics: TopicAdmin, one: _Creation) -> Tree:
    """Returns the result of a topic with more partitions."""
    if one.topic is None or not one.left:
        return one.result
    return one.result | topics.not_usable(one.topic, one.left).fields


def _check_time(refusal: Refused | None, deadline_s: float) -> None:
    """Raises the refusal, or `Refused` when the request's time is over."""
    if refusal is not None:
        raise refusal
    if time.monotonic() >= deadline_s:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the request's timeout is over: nothing was done; retry")
