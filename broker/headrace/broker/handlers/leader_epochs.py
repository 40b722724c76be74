"""OffsetForLeaderEpoch: where a leader's epoch ends in a log.

With it a client, or a copy, finds out whether what it has read is still there after a new leader was elected.

Source: https://kafka.apache.org/protocol#The_Messages_OffsetForLeaderEpoch, KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.partition import Partition
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.state import BrokerState
from headrace.log.epochs import NO_EPOCH, EpochEnd
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request


def handle(state: BrokerState, request: Request) -> Tree:
    """Responds at once: epochs are held in memory."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_answer(state, topic.topic, asked) for asked in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


def _answer(state: BrokerState, topic: str, asked: Any) -> Tree:
    try:
        partition = state.led_partition(topic, asked.partition)
        state.check_leader_epoch(partition, asked.current_leader_epoch)
    except Refused as refused:
        return {"partition": asked.partition, "error_code": refused.code}
    found = end_of(partition, asked.leader_epoch)
    return {
        "partition": asked.partition,
        "error_code": ErrorCode.NONE,
        "leader_epoch": found.epoch,
        "end_offset": found.end_address,
    }


def end_of(partition: Partition | FollowedPartition, epoch: int, *, for_follower: bool = False) -> EpochEnd:
    """Returns the largest epoch up to `epoch` that the log has, and where it ends.

    The present leader's epoch ends at the log's end, and begins there as long as it has written nothing. A
    mirror's copy has its source's epochs, so nobody knows of one that no batch has; a follower that has some
    goes by what its leader has. A log without any batch may have lost all to retention: any epoch ended here.
    """
    log = partition.log
    is_empty = log.start_address == log.end_address and log.epochs.latest == NO_EPOCH
    is_unwritten = log.epochs.latest < epoch and (
        for_follower or is_empty if partition.config.mirror else epoch <= partition.leader_epoch
    )
    if is_unwritten:
        is_present = epoch == partition.leader_epoch and not partition.config.mirror
        has_batches = log.epochs.latest >= 0 and not is_present
        return EpochEnd(log.epochs.latest if has_batches else epoch, log.end_address)
    return log.epochs.end_of(epoch, log.end_address)


def diverging(
    partition: Partition | FollowedPartition,
    last_fetched_epoch: int,
    fetch_offset: int,
    *,
    for_follower: bool = False,
) -> EpochEnd | None:
    """Returns where a reader's log and this one part (KIP-595); None if what it has read is still here. A
    follower that has all before a gap of this log learns, too, where that ends: behind its own end.

    Raises `Refused` (OFFSET_OUT_OF_RANGE) for an epoch that this log does not know.
    """
    log = partition.log
    has_all = last_fetched_epoch == log.epochs.latest and fetch_offset == log.end_address
    if last_fetched_epoch < 0 or has_all:
        return None
    found = end_of(partition, last_fetched_epoch, for_follower=for_follower)
    if found.epoch < 0:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.name}: nothing is known of leader epoch {last_fetched_epoch}",
        )
    if found.epoch < last_fetched_epoch or found.end_address < fetch_offset:
        return found
    gap_end = log.gap_end(fetch_offset) if for_follower else None
    return None if gap_end is None else EpochEnd(last_fetched_epoch, gap_end)
