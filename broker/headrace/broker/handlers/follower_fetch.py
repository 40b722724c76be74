"""What a leader does with a follower's Fetch before it answers: who asks, and how far its log agrees.

The offset that a follower asks for is what it has, flushed: so its fetch is its report. Source: KIP-101,
KIP-320, KIP-903 (a broker that was started again has another epoch than the one that asked before).
"""

from __future__ import annotations

from headrace.broker.errors import Refused
from headrace.broker.handlers import leader_epochs
from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest


def note(state: BrokerState, partition: Partition, part: FetchPartition, body: FetchRequest) -> None:
    """Notes how far the follower is, if its log agrees with this one up to there. Raises `Refused`."""
    replicas = partition.replicas
    if replicas is None or body.replica_id not in replicas.replicas:
        # As Kafka: this leader may not know yet that the follower is a replica.
        raise Refused(
            ErrorCode.UNKNOWN_LEADER_EPOCH
            if part.current_leader_epoch >= 0
            else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {body.replica_id} is no follower of {partition.name}",
        )
    if state.is_past_epoch(body.replica_id, body.replica_epoch):
        raise Refused(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{partition.name}: broker {body.replica_id} was registered again since: its epoch "
            f"{body.replica_epoch} is over",
        )
    if part.current_leader_epoch < 0 or not state.is_registered_epoch(body.replica_id, body.replica_epoch):
        # It may speak of another leader's log, or only say that it is this broker: what is acknowledged must
        # not rest on it. It gets batches, and counts for nothing until this broker has seen its registration.
        return
    log = partition.log
    agrees = log.start_address <= part.fetch_offset <= log.end_address
    if agrees and part.last_fetched_epoch >= 0:
        agrees = (
            leader_epochs.diverging(partition, part.last_fetched_epoch, part.fetch_offset, for_follower=True)
            is None
        )
    if not agrees:
        replicas.lost(body.replica_id)
        return
    replicas.asked(
        body.replica_id, part.fetch_offset, log.end_address, state.monotonic_ms(), body.replica_epoch
    )
    state.partitions.advance(partition)
    state.follower_asked(partition, body.replica_id)
