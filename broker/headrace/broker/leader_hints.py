"""Who leads instead, said with an error (KIP-951): a client goes there without asking for metadata first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.broker.cluster import ClusterView
from headrace.broker.settings.usable import is_mirror
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import LeaderAndEpoch, NodeEndpoint

HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def hint(state: BrokerState, topic: str | None, partition: int, code: ErrorCode) -> LeaderAndEpoch | None:
    """Returns the leader to name with this error; None if it is another error, or no other broker leads.

    A mirror's copy has none, since its batches have the source's leader epochs: see `handlers.metadata`.
    """
    found = None if topic is None or code not in HINTED else state.view.topics.get(topic)
    if found is None or is_mirror(found.config):
        return None
    known = found.partitions.get(partition)
    if known is None or known.leader == state.broker_id or known.leader not in state.view.brokers:
        return None
    return LeaderAndEpoch(known.leader, known.leader_epoch)


def endpoints(view: ClusterView, hints: Iterable[LeaderAndEpoch | None]) -> tuple[NodeEndpoint, ...]:
    """Returns where the leaders listen that a response names: clients do not use a hint without that."""
    leaders = {each.leader_id for each in hints if each is not None}
    if not leaders:
        return ()
    found = ((leader, view.brokers[leader]) for leader in sorted(leaders & view.brokers.keys()))
    return tuple(NodeEndpoint(leader, each.host, each.port, each.shown_rack) for leader, each in found)
