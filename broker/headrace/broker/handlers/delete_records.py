"""DeleteRecords: deletes the records of a partition before an offset.

A log is deleted by whole segments, so the one that the offset lies in stays, and the response says where the
log begins now. An offset at the log's end deletes all. Kafka Streams asks for it, to purge the topics through
which it repartitions.

Source: https://kafka.apache.org/protocol#The_Messages_DeleteRecords, KIP-107.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, NamedTuple

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.partition import Partition
from headrace.broker.promise import Promise
from headrace.broker.settings import cleanup
from headrace.broker.state import WHEN_MAX_S, BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

HIGH_WATERMARK: Final = -1
UNKNOWN: Final = -1
# Of one turn of the loop, some ms. A deletion takes out up to 100 segments.
SLICE_PARTITIONS: Final = 500
TURN_DELETIONS_MAX: Final = 10
LOOK_AGAIN_MS: Final = 50.0


class _Deletion(NamedTuple):
    """What is to be deleted: all before `address` of a partition that is led here. `start_address`: where its
    log began before.
    """

    partition: Partition
    address: int
    start_address: int


class _Job:
    """A request in progress. A partition that is named twice is answered once, by the last offset, as in
    Apache Kafka.
    """

    def __init__(self, state: BrokerState, request: Request) -> None:
        self.promise: Promise[Tree] = Promise()
        self._state = state
        self._client = state.peer
        self._results: dict[TopicPartition, Tree] = {}
        self._asked = {
            (topic.name, part.partition_index): part.offset
            for topic in request.body.topics
            for part in topic.partitions
        }
        timeout_ms = request.body.timeout.total_seconds() * 1000
        self._deadline_ms = state.monotonic_ms() + min(timeout_ms, WHEN_MAX_S * 1000)
        self._left: deque[tuple[TopicPartition, _Deletion | None]] = deque((key, None) for key in self._asked)
        self._unfinished: list[tuple[TopicPartition, _Deletion | None]] = []
        self._take_turn()

    def _take_turn(self) -> None:
        left_deletions = TURN_DELETIONS_MAX
        for _ in range(min(len(self._left), SLICE_PARTITIONS)):
            key, deletion = self._left.popleft()
            try:
                deletion = self._checked(key, deletion)
                result = self._delete(key, deletion)
            except Refused as refused:
                self._results[key] = _refused(key, refused.code)
                continue
            if result is None:
                self._unfinished.append((key, deletion))
            else:
                self._results[key] = result
            left_deletions -= 1
            if not left_deletions:
                break
        if self._left:
            self._state.loop.call_later(0, self._take_turn)
        elif self._unfinished:
            self._left.extend(self._unfinished)
            self._unfinished.clear()
            self._state.loop.call_later(LOOK_AGAIN_MS, self._take_turn)
        else:
            self._respond()

    def _checked(self, key: TopicPartition, deletion: _Deletion | None) -> _Deletion:
        """Returns what is to be deleted, as long as this broker leads the partition. Raises `Refused`."""
        partition = self._state.led_partition(*key)
        self._state.check_not_cut_off(partition)
        if deletion is None:
            address = _address(partition, self._asked[key])
            return _Deletion(partition, address, partition.log.start_address)
        if deletion.partition is not partition:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} was opened again")
        return deletion

    def _delete(self, key: TopicPartition, deletion: _Deletion) -> Tree | None:
        """Returns the partition's result; None if some must be flushed first, or is left for the next round.
        Raises `Refused`.
        """
        partition, address, before = deletion
        if not self._state.delete_before(partition, address):
            if self._state.monotonic_ms() < self._deadline_ms:
                return None
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"{partition.name}: not all is deleted yet")
        start = partition.log.start_address
        if start != before:
            logger.info(
                "%s: %s deleted the records before %d: the log begins at %d",
                *(partition.name, self._client, address, start),
            )
        return {"partition_index": key[1], "low_watermark": start, "error_code": ErrorCode.NONE}

    def _respond(self) -> None:
        by_topic: dict[str, list[Tree]] = {}
        for key in self._asked:
            by_topic.setdefault(key[0], []).append(self._results[key])
        self.promise.resolve(
            {"topics": [{"name": name, "partitions": found} for name, found in by_topic.items()]}
        )


def handle(state: BrokerState, request: Request) -> Promise[Tree]:
    """Responds once all is deleted, or the client's timeout is over. What is left then stays until it asks
    again.
    """
    return _Job(state, request).promise


def _address(partition: Partition, offset: int) -> int:
    """Returns the address that an offset means. Raises `Refused`."""
    policy = partition.config.cleanup
    if policy.compacts and not policy.deletes:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{partition.name} has {cleanup.NAME}={cleanup.COMPACT}: records of a compacted topic stay",
        )
    end = partition.visible_address
    if offset == HIGH_WATERMARK:
        return end
    if not 0 <= offset <= end:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.name}: offset {offset}, of 0 to {end}")
    return offset


def _refused(key: TopicPartition, code: ErrorCode) -> Tree:
    return {"partition_index": key[1], "low_watermark": UNKNOWN, "error_code": code}
