"""What keeps a partition's requests from its leader, in words: for errors of what was waited for in vain."""

from __future__ import annotations

from headrace.client.network import Network
from headrace.wire.errors import ErrorCode


def obstacle(network: Network, topic: str, partition: int) -> str | None:
    """Returns why no request can be sent to the partition's leader; None if one can, or while no broker has
    told of the topic. An address that a broker advertises, and that cannot be reached from here, is named
    only here: metadata comes from other addresses.
    """
    cluster = network.cluster
    leader = cluster.leader(topic, partition)
    if leader is None:
        return _unled(network, topic, partition)
    error = network.error_of(leader)  # before `ready`, which may try again
    if network.ready(leader):
        return None
    address = cluster.brokers[leader]
    return f"its leader is broker {leader}: {error or f'no connection to {address} yet'}"


def _unled(network: Network, topic: str, partition: int) -> str | None:
    info = network.cluster.topics.get(topic)
    if info is None:
        return None
    if info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"the brokers have no topic {topic!r}"
    if info.error is not ErrorCode.NONE:
        return f"the brokers answer {info.error.name} for the topic"
    if partition not in info.partitions:
        return f"the topic has {len(info.partitions)} partitions, numbered from 0"
    return "the partition has no leader"
