"""What a leader does with a follower's Fetch before it answers: who asks, and how far its log agrees.

The offset that a follower asks for is what it has, flushed: so its fetch is its report. Source: KIP-101,
KIP-320, KIP-903 (a broker that was started again has another epoch than the one that asked before).
"""

from __future__ import annotations

from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.handlers import leader_epochs, replica_reads
from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest

NOTHING_TOLD: Final = -1


def note(state: BrokerState, partition: Partition, part: FetchPartition, body: FetchRequest) -> None:
    """Notes how far the follower is, if its log agrees with this one up to there. Raises `Refused`."""
    replicas = partition.replicas
    if replicas is None or body.replica_id not in replicas.replicas or body.replica_id == replicas.broker_id:
        # As Kafka: this leader may not know yet that the follower is a replica. It follows nobody itself.
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
    if part.fetch_offset < log.start_address:
        # The high watermark is not below that start, so this follower lacks something.
        replicas.lost(body.replica_id, part.fetch_offset)
        return
    agrees = part.fetch_offset <= log.end_address
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


def awaits_news(state: BrokerState, body: FetchRequest) -> bool:
    """Whether consumers may wait at the follower for a higher high watermark, and it is the registered one:
    else anybody could say that the follower knows it already.
    """
    return replica_reads.selects(state) and state.is_registered_epoch(body.replica_id, body.replica_epoch)


def told(partition: Partition, body: FetchRequest) -> int:
    """Returns the high watermark of this leader's last answer to the follower."""
    return partition.told.get(body.replica_id, NOTHING_TOLD)


def tell(partition: Partition, body: FetchRequest) -> None:
    """Notes that the answer to the follower holds the present high watermark."""
    partition.told[body.replica_id] = partition.visible_address


class Allowance:
    """What one answer may hold for a follower whose replicas are not in sync and throttled (KIP-73). One that
    is in sync, or may be, gets everything: what is acknowledged waits for it.
    """

    __slots__ = ("_follower", "_state", "_taken_bytes")

    def __init__(self, state: BrokerState, body: FetchRequest) -> None:
        self._state = state
        self._follower = body.replica_id
        self._taken_bytes = 0

    def left_bytes(self, partition: Partition) -> int | None:
        """Returns how much of a partition the answer may still hold; None if it is not throttled."""
        quota, replicas = self._state.throttles.leader, partition.replicas
        throttled = partition.config.leader_throttled
        if not quota.is_bounded or not throttled.cover(partition.index, self._state.broker_id):
            return None
        if replicas is None or self._follower in replicas.maximal:
            return None
        return max(0, quota.available_bytes(self._state.monotonic_ms()) - self._taken_bytes)

    def begin(self) -> None:
        """Begins the answer, perhaps once more."""
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Notes what the answer holds of a throttled partition."""
        self._taken_bytes += size_bytes

    def send(self) -> None:
        """Notes that the answer is sent."""
        if self._taken_bytes:
            self._state.throttles.leader.took(self._taken_bytes)
