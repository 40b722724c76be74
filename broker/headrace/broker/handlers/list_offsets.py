"""ListOffsets: earliest, latest, by timestamp, greatest timestamp (KIP-734)."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.errors import Refused
from headrace.broker.partitions import Partition
from headrace.broker.state import BrokerState
from headrace.log.errors import LogError
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.messages import Request

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4  # nothing is tiered: the same as earliest
LATEST_TIERED: Final = -5

Tree = dict[str, Any]


def handle(state: BrokerState, request: Request) -> Tree:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(state, topic.name, each) for each in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


def _partition(state: BrokerState, topic: str, asked: Any) -> Tree:
    answer: Tree = {"partition_index": asked.partition_index, "error_code": ErrorCode.NONE}
    try:
        partition = state.led_partition(topic, asked.partition_index)
        state.check_leader_epoch(partition, getattr(asked, "current_leader_epoch", -1))
        timestamp_ms, offset = _find(partition, asked.timestamp)
    except Refused as refused:
        return answer | {"error_code": refused.code}
    except (LogError, WireError) as error:
        state.storage_failed(partition, error)
        return answer | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    return answer | {"timestamp": timestamp_ms, "offset": offset, "leader_epoch": partition.leader_epoch}


def _find(partition: Partition, timestamp_ms: int) -> tuple[int, int]:
    """`(timestamp, offset)`; -1 where there is none."""
    log = partition.log
    if timestamp_ms == LATEST:
        return -1, partition.visible_address
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_address
    if timestamp_ms == LATEST_TIERED:
        return -1, -1
    found = (
        log.max_timestamp_offset()
        if timestamp_ms == MAX_TIMESTAMP
        else log.offset_for_timestamp(timestamp_ms)
    )
    return (-1, -1) if found is None else (found.timestamp_ms, found.offset)
