"""CreateTopics, DeleteTopics, CreatePartitions: written to ZooKeeper by whichever broker is asked, on a
control thread.

Source: https://kafka.apache.org/protocol#The_Messages_CreateTopics and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Answers when every new topic is usable, or at the request's timeout."""
    body = request.body
    timeout_s = body.timeout.total_seconds()
    jobs = []
    names = [topic.name for topic in body.topics]
    for topic in body.topics:
        new = NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {each.name: each.value for each in topic.configs if each.value is not None},
            {each.partition_index: tuple(each.broker_ids) for each in topic.assignments},
        )
        jobs.append((new, names.count(topic.name) > 1))

    def run() -> list[Tree]:
        return [_create_one(state, new, doubled, body.validate_only, timeout_s) for new, doubled in jobs]

    return _answer(state, run, "topics")


def _create_one(
    state: BrokerState, new: NewTopic, doubled: bool, validate_only: bool, timeout_s: float
) -> Tree:
    answer: Tree = {"name": new.name, "topic_id": None, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        if doubled:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{new.name} is named twice in one request")
        created = state.topics.create(new, validate_only=validate_only, timeout_s=timeout_s)
    except Refused as refused:
        return answer | {"error_code": refused.code, "error_message": refused.message, "configs": None}
    return answer | {
        "topic_id": None if validate_only else created.topic_id,
        "num_partitions": len(created.partitions),
        "replication_factor": len(created.partitions[0].replicas),
        "configs": [
            {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
            for name, value, source in state.topics.explain(created.config)
        ],
    }


def delete(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Answers when the topics are gone from ZooKeeper; their logs vanish as the leaders see it."""
    body = request.body
    if hasattr(body, "topic_names"):
        asked = [(name, None) for name in body.topic_names]
    else:
        asked = [(topic.name, topic.topic_id) for topic in body.topics]
    timeout_s = body.timeout.total_seconds()

    def run() -> list[Tree]:
        answers = []
        for name, topic_id in asked:
            answer: Tree = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                found = state.view.names_by_id.get(topic_id or NO_ID) if name is None else name
                if found is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
                state.topics.delete(found, timeout_s=timeout_s)
                answer["name"] = found
            except Refused as refused:
                answer |= {"error_code": refused.code, "error_message": refused.message}
            answers.append(answer)
        return answers

    return _answer(state, run, "responses")


def create_partitions(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Raise topics' partition counts."""
    body = request.body
    timeout_s = body.timeout.total_seconds()

    def run() -> list[Tree]:
        answers = []
        for topic in body.topics:
            answer: Tree = {"name": topic.name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
                chosen = (
                    None
                    if topic.assignments is None
                    else [tuple(each.broker_ids) for each in topic.assignments]
                )
                state.topics.add_partitions(
                    topic.name, topic.count, chosen, validate_only=body.validate_only, timeout_s=timeout_s
                )
            except Refused as refused:
                answer |= {"error_code": refused.code, "error_message": refused.message}
            answers.append(answer)
        return answers

    return _answer(state, run, "results")


def _answer(state: BrokerState, run: Callable[[], list[Tree]], field: str) -> Promise[Tree | Exception]:
    promise: Promise[Tree | Exception] = Promise()
    state.later(run).then(
        lambda done: promise.resolve(done if isinstance(done, Exception) else {field: done})
    )
    return promise
