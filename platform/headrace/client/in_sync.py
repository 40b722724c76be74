"""What a broker has in sync: noted before its restart, and compared after it.

Owns the rule by which a restarted broker is back: each partition that it had in sync it has in sync again,
unless it leads it, or nobody does. Who waits, and for how long, the caller says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.client.cluster import TopicInfo, TopicPartition


def in_sync_of(broker_id: int, topics: Mapping[str, TopicInfo]) -> frozenset[TopicPartition]:
    """Returns the partitions of which the broker is a replica in sync, as metadata tells them."""
    return frozenset(
        (name, number)
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
        if broker_id in partition.isr
    )


def behind(
    broker_id: int, topics: Mapping[str, TopicInfo], before: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Returns those partitions of `before` that the broker still has to fetch, in order.

    One that was deleted or moved to others meanwhile is none of them, nor is one without a leader: there is
    nothing to fetch from.
    """
    late = []
    for name, number in before:
        topic = topics.get(name)
        partition = topic.partitions.get(number) if topic is not None else None
        if partition is None or partition.leader < 0:
            continue
        if broker_id in partition.replicas and broker_id not in partition.isr:
            late.append((name, number))
    return sorted(late)
