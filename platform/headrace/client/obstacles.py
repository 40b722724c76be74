"""What keeps a partition's requests from its leader, in words: for errors of what was waited for in vain."""

from __future__ import annotations

from headrace.client.network import Network


def obstacle(network: Network, topic: str, partition: int) -> str | None:
    """Returns why no request can be sent to the partition's leader; None if one can. An address that a broker
    advertises, and that cannot be reached from here, is named only here: metadata comes from other addresses.
    """
    cluster = network.cluster
    leader = cluster.leader(topic, partition)
    if leader is None:
        return "the partition has no leader" if topic in cluster.topics else None
    error = network.error_of(leader)  # before `ready`, which may try again
    if network.ready(leader):
        return None
    address = cluster.brokers[leader]
    return f"its leader is broker {leader}: {error or f'no connection to {address} yet'}"
