"""Which logs to open, to close and to delete, so that this broker has what the topics say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from headrace.coordination.topics import TopicState
from headrace.log.directory import PartitionName


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Partitions to open, to close (no replica is here now), and to delete (the topic was deleted or
    recreated). What is closed is deleted, too, if it has moved.
    """

    open: list[tuple[PartitionName, UUID]] = field(default_factory=list)
    close: list[PartitionName] = field(default_factory=list)
    delete: list[PartitionName] = field(default_factory=list)


def plan(
    broker_id: int, present: Mapping[PartitionName, UUID], topics: Mapping[str, TopicState]
) -> PartitionPlan:
    """Compares what is open (or being opened) here with the topics."""
    planned = PartitionPlan()
    wanted = {
        PartitionName(name, index): topic.topic_id
        for name, topic in topics.items()
        for index, state in topic.partitions.items()
        if state.leader == broker_id or broker_id in state.replicas
    }
    for name, topic_id in present.items():
        if wanted.get(name) == topic_id:
            continue
        topic = topics.get(name.topic)
        if topic is None or topic.topic_id != topic_id:
            planned.delete.append(name)
        else:
            planned.close.append(name)
    planned.open.extend(
        (name, topic_id) for name, topic_id in wanted.items() if present.get(name) != topic_id
    )
    return planned
