"""Fetch: slices of log files, at once or as soon as enough is visible.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch, KIP-74 (the first batch is returned whole,
however large). No sessions (KIP-227): session id 0 makes clients name every partition each time. A full
request, which begins or ends a session, is served whatever session it names. A follower gets what is written,
a consumer what is visible; `handlers.follower_fetch` has what else differs for a follower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker.core import ClientConnection, Part, Slot
from headrace.broker.errors import Refused
from headrace.broker.handlers import follower_fetch, leader_epochs
from headrace.broker.loop import Timer
from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.log.epochs import EpochEnd
from headrace.log.errors import AddressOutOfRangeError, LogDamagedError, LogError
from headrace.log.files import FileSlice
from headrace.log.segment import ColdSegmentError, Segment
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    FULL_EPOCHS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
    encode_response,
)
from headrace.wire.messages import Request
from headrace.wire.primitives import Buffer

logger = logging.getLogger(__name__)

WAIT_MAX_MS: Final = 300_000
LEARNING_MAX: Final = 1_000  # cold segments that one request waits for, one after the other


class _Target(NamedTuple):
    """One partition of a request: the partition to read, or the error instead."""

    part: FetchPartition
    partition: Partition | None
    code: ErrorCode


class FetchWait:
    """A fetch that waits for `min_bytes`: a reader of all its partitions until it responds.

    The available bytes are counted once; then each partition that changes is looked at alone.
    """

    __slots__ = (
        "_available",
        "_available_bytes",
        "_holds",
        "_is_follower",
        "_is_learning",
        "_learned",
        "_learning_left",
        "_limit_bytes",
        "_min_bytes",
        "_offsets",
        "_request",
        "_slot",
        "_state",
        "_targets",
        "_timer",
    )

    def __init__(self, state: BrokerState, slot: Slot, request: Request) -> None:
        body: FetchRequest = request.body
        self._state = state
        self._slot = slot
        self._request = request
        self._min_bytes = body.min_bytes
        self._limit_bytes = min(body.max_bytes, state.config["fetch.max.bytes"])
        self._is_follower = body.replica_id >= 0
        self._targets = [
            self._look_up(topic.name or state.view.names_by_id.get(topic.topic_id), part)
            for topic in body.topics
            for part in topic.partitions
        ]
        self._timer: Timer | None = None
        self._learning_left = LEARNING_MAX
        self._learned: dict[Segment, LogError | None] = {}  # cold ones, with what kept it from their end
        self._is_learning = False
        self._holds = False  # the later requests of its connection
        self._offsets: dict[Partition, int] = {}  # the lowest one that is asked for
        self._available: dict[Partition, int] = {}  # bytes that may be read from there on
        self._available_bytes = 0  # their sum
        if body.max_wait_ms <= 0 or slot.connection.nothing_follows or self._is_ready():
            self._respond()
            return
        self._hold()
        self._timer = state.loop.call_later(min(body.max_wait_ms, WAIT_MAX_MS), self.end)
        for partition in self._available:
            if self._is_follower:
                partition.follower_readers[self] = None
            else:
                partition.readers[self] = None
                state.partitions.request_flush(partition)

    def _look_up(self, name: str | None, part: FetchPartition) -> _Target:
        if name is None:
            return _Target(part, None, ErrorCode.UNKNOWN_TOPIC_ID)
        state = self._state
        try:
            partition = state.led_partition(name, part.partition)
            state.check_leader_epoch(partition, part.current_leader_epoch)
            if self._is_follower:
                follower_fetch.note(state, partition, part, self._request.body)
        except Refused as refused:
            return _Target(part, None, refused.code)
        return _Target(part, partition, ErrorCode.NONE)

    def _upto(self, partition: Partition) -> int:
        """Returns the end of what this reader may have."""
        return partition.log.end_address if self._is_follower else partition.visible_address

    def more(self, partition: Partition) -> None:
        """Called when there is more of a partition, its oldest segments were deleted, or it was removed."""
        self._guarded(self._look_at, partition)

    def end(self) -> None:
        """Responds with what is visible; called, too, when the connection ends."""
        if not self._is_learning:
            self._guarded(self._respond)

    def _guarded(self, call: Callable[..., None], *arguments: Partition) -> None:
        """A failure ends this fetch's connection alone: the caller wakes those of others, too."""
        try:
            call(*arguments)
        except Exception:
            connection = self._slot.connection
            logger.exception("%s: a waiting fetch failed", connection.peer)
            self._stop_waiting()
            connection.abort("a waiting fetch failed")

    def _look_at(self, partition: Partition) -> None:
        """Responds if enough bytes are visible now, or the partition has an error to report."""
        has_error = self._has_error(partition, self._offsets[partition])
        if has_error or self._available_bytes >= self._min_bytes:
            self._respond()

    def _is_ready(self) -> bool:
        """Whether enough bytes are visible, or a partition has an error to report at once."""
        for target in self._targets:
            partition = target.partition
            if partition is None or self._is_diverging(target.part, partition):
                return True
            if self._has_error(partition, target.part.fetch_offset):
                return True
            if self._available_bytes >= self._min_bytes:
                return True
        return self._available_bytes >= self._min_bytes

    def _has_error(self, partition: Partition, offset: int) -> bool:
        """Whether a partition has an error to report at once; else counts its visible bytes."""
        if self._was_removed(partition) or partition.log.offline is not None:
            return True
        try:
            position = partition.log.position(offset)
        except LogError:
            return True
        # Of a partition that is named several times the lowest offset counts. What is written, but not
        # flushed, may be asked for already.
        if offset <= self._offsets.get(partition, offset):
            self._offsets[partition] = offset
            available = max(0, self._upto(partition) - position)
            self._available_bytes += available - self._available.get(partition, 0)
            self._available[partition] = available
        return False

    def _hold(self) -> None:
        if not self._holds:
            self._holds = True
            self._slot.connection.wait(self)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for partition in self._available:
                partition.readers.pop(self, None)
                partition.follower_readers.pop(self, None)

    def _respond(self) -> None:
        self._stop_waiting()
        self._read_all()

    def _read_all(self) -> None:
        """Responds, as soon as it is known where the batches of the segments begin."""
        if self._slot.connection.closed:
            return
        body: FetchRequest = self._request.body
        left = self._limit_bytes
        slices: list[FileSlice] = []
        targets = iter(self._targets)
        topics = []
        for topic in body.topics:
            results = []
            for _ in topic.partitions:
                target = next(targets)
                try:
                    result = self._read(target, left, slices)
                except ColdSegmentError as cold:
                    self._learn(target, cold.segment)
                    return
                left -= result.records
                results.append(result)
            topics.append(FetchTopicResult(topic.name, topic.topic_id, results))
        pieces = encode_response(
            FetchResponse(topics), version=self._request.version, correlation_id=self._request.correlation_id
        )
        self._slot.fill(_insert_slices(pieces, slices))
        if self._holds:
            self._slot.connection.stop_waiting()

    def _learn(self, target: _Target, segment: Segment) -> None:
        """Begins again once a thread has read where the batches of a segment begin."""
        assert target.partition is not None
        self._learning_left -= 1
        self._is_learning = True
        self._hold()

        def learned(problem: LogError | None) -> None:
            self._is_learning = False
            self._learned[segment] = problem
            self._guarded(self._read_all)

        self._state.cold_reads.learn(target.partition.log, segment).then(learned)

    def _read(self, target: _Target, left_bytes: int, slices: list[FileSlice]) -> FetchPartitionResult:
        """Returns the result of one partition, whose records are a number of bytes; appends their slices.

        Raises `ColdSegmentError`, at most `LEARNING_MAX` times.
        """
        part, partition, code = target
        has_waited = self._timer is not None or self._learned
        if partition is not None and has_waited and self._was_removed(partition):
            code = self._code_of_removed(partition)
            partition = None
        if partition is None:
            return FetchPartitionResult(part.partition, code, -1, 0)
        log = partition.log
        if log.offline is not None:
            return FetchPartitionResult(part.partition, ErrorCode.KAFKA_STORAGE_ERROR, -1, 0)
        visible, upto = partition.visible_address, self._upto(partition)
        size_bytes = 0
        try:
            parting = self._parting(part, partition)
            position = upto if parting else log.position(part.fetch_offset)
            limit = min(part.max_bytes, left_bytes)
            # What is written and not visible yet is no error: a leader before may have shown it already.
            if position < upto and (limit > 0 or not slices):
                found = log.slices(position, limit, upto)
                size_bytes = sum([piece.length_bytes for piece in found])
                if size_bytes > limit and slices:
                    size_bytes = 0  # only the first batch of a response may exceed the limit
                else:
                    slices += found
        except (AddressOutOfRangeError, Refused):
            return self._out_of_range(partition, part)
        except ColdSegmentError as cold:
            problem = self._learned.get(cold.segment)
            if problem is None and self._learning_left:
                raise
            return self._unreadable(partition, part, problem or cold)
        except LogError as error:
            return self._unreadable(partition, part, error)
        return FetchPartitionResult(
            part.partition,
            ErrorCode.NONE,
            visible,
            size_bytes,
            visible,
            log.start_address,
            diverging_epoch=parting,
        )

    def _parting(self, part: FetchPartition, partition: Partition) -> EpochEnd | None:
        """See `leader_epochs.diverging`."""
        return leader_epochs.diverging(
            partition, part.last_fetched_epoch, part.fetch_offset, for_follower=self._is_follower
        )

    def _is_diverging(self, part: FetchPartition, partition: Partition) -> bool:
        """Whether the answer, at once, is that what was read last is not in this log."""
        if part.last_fetched_epoch in (-1, partition.log.epochs.latest):
            return False
        try:
            return self._parting(part, partition) is not None
        except Refused:
            return True

    def _code_of_removed(self, partition: Partition) -> ErrorCode:
        """Why a partition that this fetch waited for is not led here any more."""
        try:
            self._state.led_partition(partition.topic, partition.index)
        except Refused as refused:
            return refused.code
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # not as the leader that it was asked as

    def _unreadable(
        self, partition: Partition, part: FetchPartition, error: LogError
    ) -> FetchPartitionResult:
        """The answer where a batch is damaged or cannot be read. Producers, and readers of others, go on."""
        self._state.read_failed(partition, error)
        is_damaged = isinstance(error, LogDamagedError)
        code = ErrorCode.CORRUPT_MESSAGE if is_damaged else ErrorCode.KAFKA_STORAGE_ERROR
        return FetchPartitionResult(part.partition, code, -1, 0)

    def _was_removed(self, partition: Partition) -> bool:
        return self._state.partitions.get(partition.topic, partition.index) is not partition

    @staticmethod
    def _out_of_range(partition: Partition, part: FetchPartition) -> FetchPartitionResult:
        return FetchPartitionResult(
            part.partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partition.visible_address,
            0,
            log_start_offset=partition.log.start_address,
        )


def _insert_slices(pieces: list[Buffer | int], slices: list[FileSlice]) -> list[Part]:
    """Replaces each number in the encoded response, a gap of so many bytes, by the next slice."""
    parts: list[Part] = []
    at = 0
    for piece in pieces:
        if not isinstance(piece, int):
            parts.append(piece)
            continue
        left = piece
        while left:
            parts.append(slices[at])
            left -= slices[at].length_bytes
            at += 1
    return parts


def refuse(connection: ClientConnection, request: Request, code: ErrorCode) -> None:
    """Responds with `code` for every partition."""
    body: FetchRequest = request.body
    topics = [
        FetchTopicResult(
            topic.name,
            topic.topic_id,
            [FetchPartitionResult(part.partition, code, -1) for part in topic.partitions],
        )
        for topic in body.topics
    ]
    pieces = encode_response(
        FetchResponse(topics), version=request.version, correlation_id=request.correlation_id
    )
    connection.open_slot().fill(_insert_slices(pieces, []))


def handle(state: BrokerState, connection: ClientConnection, request: Request) -> None:
    """Responds now, or as soon as enough is visible."""
    body: FetchRequest = request.body
    slot = connection.open_slot()
    if body.session_epoch not in FULL_EPOCHS:
        response = FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        slot.fill(
            _insert_slices(
                encode_response(response, version=request.version, correlation_id=request.correlation_id), []
            )
        )
        return
    FetchWait(state, slot, request)
