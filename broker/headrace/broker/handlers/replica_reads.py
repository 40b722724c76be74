"""Consumers that read from a replica of their own rack (KIP-392).

A consumer names its rack (`client.rack`). With `replica.selector.class` a leader answers with the in-sync
replica of that rack, and the consumer goes there. A follower shows what lies below the high watermark that
its leader has told: less than the leader shows, for a moment, and never anything else. If it does not hear
its leader, consumers that have read all of that are sent back (`replicas.cut_off`).

Unlike Apache Kafka, a follower serves only consumers that name a rack. Others have not been sent there: they
hold old metadata, and the error makes them ask for it again.
"""

from __future__ import annotations

from math import inf

from headrace.broker.errors import Refused
from headrace.broker.partition import Partition
from headrace.broker.replicas.cut_off import FOLLOWERS_SILENT_MS
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.settings.replication import RACK_AWARE
from headrace.broker.state import BrokerState
from headrace.log.directory import PartitionName
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import CONSUMER_REPLICA_ID, FetchRequest

Readable = Partition | FollowedPartition


def readable(state: BrokerState, name: PartitionName, body: FetchRequest, offset: int) -> Readable:
    """Returns the partition that this broker serves a reader from, from `offset` on. Raises `Refused`."""
    if body.rack_id and body.replica_id == CONSUMER_REPLICA_ID:
        followed = state.find_followed(name)
        if followed is not None and _follows(state, followed, offset):
            return followed
    partition = led(state, name)
    if body.replica_id == CONSUMER_REPLICA_ID:
        state.check_not_cut_off(partition)
    return partition


def led(state: BrokerState, name: PartitionName) -> Partition:
    """Returns the partition that this broker leads. Raises `Refused`, as Apache Kafka answers a Fetch.

    A leader that does not lead yet is none to a reader: LEADER_NOT_AVAILABLE is no answer to a Fetch, and
    ends Apache Kafka's own consumer (`Unexpected error code 5 while fetching`).
    """
    try:
        return state.led_partition(*name)
    except Refused as refused:
        if refused.code is not ErrorCode.LEADER_NOT_AVAILABLE:
            raise
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(refused)) from None


def is_readable(state: BrokerState, partition: Readable, offset: int) -> bool:
    """Whether it is still what this broker serves readers from."""
    if isinstance(partition, Partition):
        is_led = state.partitions.get(partition.topic, partition.index) is partition
        return is_led and not partition.cut_off
    return state.find_followed(partition.name) is partition and _follows(state, partition, offset)


def _follows(state: BrokerState, followed: FollowedPartition, offset: int) -> bool:
    """Whether a log serves readers as a follower's. One that is to lead here, in an epoch that has not begun
    yet, does not: who asks it takes it for the leader, and what it lacks for lost.
    """
    has_more = followed.hears_leader or offset < followed.visible_address
    return followed.is_readable and has_more and followed.leader != state.broker_id


def nearer(state: BrokerState, partition: Readable, body: FetchRequest, offset: int) -> int | None:
    """Returns the replica that a consumer should read from `offset` on instead of this one; None to stay."""
    if not body.rack_id or body.replica_id != CONSUMER_REPLICA_ID or not selects(state):
        return None
    if isinstance(partition, FollowedPartition) or partition.replicas is None:
        return None
    brokers, replicas = state.view.brokers, partition.replicas
    own = brokers.get(state.broker_id)
    if own is None or own.shown_rack == body.rack_id:
        return None
    found = [
        (replicas.end_address(each), each)
        for each in replicas.stored
        if each in brokers and brokers[each].shown_rack == body.rack_id and _is_heard(state, replicas, each)
    ]
    end_address, replica = max(found, default=(-1, None))
    return replica if offset <= end_address else None


def _is_heard(state: BrokerState, replicas: InSyncReplicas, replica: int) -> bool:
    """Whether a follower asks for more: one that does not, though in sync, has nothing new to show."""
    session = state.follower_sessions.get(replica)
    asked_ms = max(replicas.asked_ms(replica), -inf if session is None else session.asked_ms)
    return state.monotonic_ms() - asked_ms <= FOLLOWERS_SILENT_MS


def selects(state: BrokerState) -> bool:
    """Whether leaders send consumers to the replicas of their racks."""
    return bool(state.config["replica.selector.class"] == RACK_AWARE)
