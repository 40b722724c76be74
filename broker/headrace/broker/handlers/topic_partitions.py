"""DescribeTopicPartitions (KIP-966): partitions of topics, some at a time, and the replicas eligible to lead.

Topics are sorted by their names. An answer that is full says where the next one begins.
Source: https://kafka.apache.org/protocol#The_Messages_DescribeTopicPartitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.handlers import allowed
from headrace.broker.handlers.metadata import LISTED_HERE_MAX, Cluster, partition_tree
from headrace.broker.state import BrokerState
from headrace.broker.topics import TopicAdmin
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

PARTITIONS_MAX: Final = 2_000
"""Of one answer, as Apache Kafka's max.request.partition.size.limit by default."""


class Place(NamedTuple):
    """Where an answer begins."""

    topic: str
    partition: int


def handle(state: BrokerState, request: Request) -> Tree | Callable[[], Tree]:
    """Returns the response's tree, or how to make it if it is large."""
    body = request.body
    cluster = Cluster(state.view, state.cluster_id, state.leaderless())
    first = (
        Place("", 0) if body.cursor is None else Place(body.cursor.topic_name, body.cursor.partition_index)
    )
    named = {topic.name for topic in body.topics}
    names = named or cluster.view.topics.keys()
    if first.partition < 0 or (body.cursor is not None and named and first.topic not in named):
        refused = [_refused(name, ErrorCode.INVALID_REQUEST) for name in sorted(named)]
        return {"throttle_time": 0, "topics": refused, "next_cursor": None}
    most = max(1, min(body.response_partition_limit, PARTITIONS_MAX))
    wanted = sorted(name for name in names if name >= first.topic)
    if len(wanted) + min(most, _count(cluster, wanted)) <= LISTED_HERE_MAX:
        return respond(cluster, wanted, first, most)
    return lambda: respond(cluster, wanted, first, most)


def _count(cluster: Cluster, names: Sequence[str]) -> int:
    known = (cluster.view.topics.get(name) for name in names)
    return sum(0 if topic is None else len(topic.partitions) for topic in known)


def respond(cluster: Cluster, names: Sequence[str], first: Place, most: int) -> Tree:
    """Returns the response's tree: at most `most` partitions, from `first` on. Any thread may call it."""
    topics: list[Tree] = []
    left, cursor = most, None
    for name in names:
        if not left:
            cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = cluster.view.topics.get(name)
        if topic is None:
            topics.append(_unknown(name))
            continue
        begin = first.partition if name == first.topic else 0
        partitions = list(_partitions(cluster, topic, begin, left))
        left -= len(partitions)
        topics.append(
            {
                "error_code": ErrorCode.NONE,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": False,
                "partitions": partitions,
                "topic_authorized_operations": allowed.ON_TOPIC,  # always: a request cannot ask
            }
        )
        after = partitions[-1]["partition_index"] + 1 if partitions else begin
        if after in topic.partitions:
            cursor = {"topic_name": name, "partition_index": after}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": cursor}


def _partitions(cluster: Cluster, topic: TopicState, begin: int, most: int) -> Iterator[Tree]:
    """Partitions are numbered without gaps."""
    for index in range(begin, min(len(topic.partitions), begin + most)):
        elr = topic.partitions[index].elr
        shown = partition_tree(cluster, topic, index)
        yield {**shown, "eligible_leader_replicas": elr, "last_known_elr": ()}


def _unknown(name: str) -> Tree:
    try:
        TopicAdmin.check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except Refused as refused:
        code = refused.code
    return _refused(name, code)


def _refused(name: str, code: ErrorCode) -> Tree:
    return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}
