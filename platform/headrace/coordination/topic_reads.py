"""Reads topics from ZooKeeper: any number at once, in a few requests.

Their nodes are described in `coordination.topics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError, TopicNotRegisteredError
from headrace.coordination.nodes import Node, NodeStat
from headrace.coordination.partition_state import (
    DOCUMENTS_PER_REQUEST_MAX,
    PartitionState,
    parse_state,
    parse_topic,
    present_node,
    read_documents,
)
from headrace.coordination.session import ZooKeeperSession

READS_MAX: Final = 5
"""A topic whose node changes during so many reads is taken as the last one shows it: a watch fires again."""


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: UUID
    partitions: dict[int, PartitionState]
    config: dict[str, str] = field(default_factory=dict)


class UnreadSettingsError(CorruptNodeError):
    """Nothing of a topic but its settings is damaged. `topic`: the topic without any."""

    def __init__(self, cause: CorruptNodeError, topic: TopicState) -> None:
        super().__init__(str(cause))
        self.topic = topic


Problem = TopicNotRegisteredError | CorruptNodeError


class TopicRead(NamedTuple):
    """`stat`: of the topic's node, as it was when the rest was read."""

    topic: TopicState
    stat: NodeStat


def read_topics(
    session: ZooKeeperSession, known: Mapping[str, Node | None]
) -> dict[str, TopicRead | Problem]:
    """Returns the topics by name, or why one cannot be read. `known`: their nodes, just read.

    A topic's node is looked at once more after its partitions: it may have been made again under its name
    meanwhile, and no partition of one topic is taken for that of the other. If that node is there, the topic
    was not deleted, whichever other node is missing: all are deleted in one transaction.
    """
    found: dict[str, TopicRead | Problem] = {}
    left = dict(known)
    for _ in range(READS_MAX):
        read = _read(session, left)
        stats = dict(zip(left, session.stat_many(map(znodes.topic, left)), strict=True))
        moved: list[str] = []
        for name, result in read.items():
            document, stat = left[name], stats[name]
            if document is None or stat == document.stat:
                found[name] = result
                continue
            moved.append(name)
            is_same = stat is not None and stat.created_zxid == document.stat.created_zxid
            found[name] = result if is_same else _gone(name)
        if not moved:
            break
        left = dict(zip(moved, read_documents(session, moved), strict=True))
    return found


def _read(session: ZooKeeperSession, nodes: Mapping[str, Node | None]) -> dict[str, TopicRead | Problem]:
    found: dict[str, TopicRead | Problem] = {}
    listed: dict[str, tuple[UUID, dict[int, PartitionState]]] = {}
    for name, node in nodes.items():
        try:
            if node is None:
                found[name] = _gone(name)
            else:
                listed[name] = parse_topic(znodes.topic(name), node.data)
        except CorruptNodeError as error:
            found[name] = error
    configs = session.get_many_small(
        map(znodes.topic_config, listed), per_request_max=DOCUMENTS_PER_REQUEST_MAX
    )
    states = iter(
        session.get_many_small(
            znodes.partition_state(name, index)
            for name, (_, partitions) in listed.items()
            for index in partitions
        )
    )
    for (name, (topic_id, partitions)), config in zip(listed.items(), configs, strict=True):
        of_topic = {index: next(states) for index in partitions}
        node = nodes[name]
        assert node is not None
        try:
            found[name] = TopicRead(_topic(name, topic_id, partitions, config, of_topic), node.stat)
        except CorruptNodeError as error:
            found[name] = error
    return found


def _topic(
    name: str,
    topic_id: UUID,
    listed: Mapping[int, PartitionState],
    config: Node | None,
    nodes: Mapping[int, Node | None],
) -> TopicState:
    """Raises `CorruptNodeError`."""
    partitions: dict[int, PartitionState] = {}
    for index in sorted(listed):
        path = znodes.partition_state(name, index)
        partitions[index] = parse_state(path, present_node(path, nodes[index]), listed[index])
    path = znodes.topic_config(name)
    try:
        settings = parse_config(path, present_node(path, config))
    except CorruptNodeError as error:
        raise UnreadSettingsError(error, TopicState(name, topic_id, partitions)) from None
    return TopicState(name, topic_id, partitions, settings)


def _gone(name: str) -> TopicNotRegisteredError:
    return TopicNotRegisteredError(f"there is no topic {name!r}, or it is being deleted")


def parse_config(path: str, node: Node) -> dict[str, str]:
    """Returns a topic's settings. Raises `CorruptNodeError`."""
    config = documents.decode(path, node.data).get("config")
    if not isinstance(config, dict):
        raise CorruptNodeError(f"{path}: no config in {node.data[:80]!r}")
    return {str(key): str(value) for key, value in config.items()}
