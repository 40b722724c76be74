"""Fetch: slices of log files, at once or as soon as enough is visible.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch, KIP-74 (the first batch is given whole, however
large). No sessions (KIP-227): session id 0 tells clients to name every partition each time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.broker.core import ClientConnection, Part, Slot
from headrace.broker.errors import Refused
from headrace.broker.loop import Timer
from headrace.broker.partitions import Partition
from headrace.broker.state import BrokerState
from headrace.log.errors import AddressOutOfRangeError, LogError
from headrace.log.files import FileSlice
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
    encode_response,
)
from headrace.wire.messages import Request

WAIT_MAX_MS: Final = 300_000


class _Asked(NamedTuple):
    """One partition of a request: the partition to read, or why not."""

    part: FetchPartition
    partition: Partition | None
    code: ErrorCode


class FetchWait:
    """A fetch that waits for `min_bytes`. Registered as a reader of all its partitions until answered."""

    __slots__ = ("_asked", "_limit_bytes", "_names", "_request", "_slot", "_state", "_timer")

    def __init__(self, state: BrokerState, slot: Slot, request: Request) -> None:
        body: FetchRequest = request.body
        self._state = state
        self._slot = slot
        self._request = request
        self._limit_bytes = min(body.max_bytes, state.config["fetch.max.bytes"])
        self._asked = [
            _look_up(state, topic.name or state.view.names_by_id.get(topic.topic_id), part)
            for topic in body.topics
            for part in topic.partitions
        ]
        self._timer: Timer | None = None
        if body.max_wait_ms <= 0 or self._is_ready():
            self._answer()
            return
        self._timer = state.loop.call_later(min(body.max_wait_ms, WAIT_MAX_MS), self._answer)
        for asked in self._asked:
            if asked.partition is not None:
                asked.partition.readers[self] = None
                state.partitions.wanted(asked.partition)

    def more(self) -> None:
        """Something became visible, or a partition is gone."""
        if self._slot.connection.closed or self._is_ready():
            self._answer()

    def _is_ready(self) -> bool:
        """Enough bytes are visible, or something must be told at once."""
        available = 0
        for asked in self._asked:
            partition = asked.partition
            if (
                partition is None
                or self._state.partitions.get(partition.topic, partition.index) is not partition
            ):
                return True
            if partition.log.offline is not None:
                return True
            try:
                available += partition.visible_address - partition.log.position(asked.part.fetch_offset)
            except LogError:
                return True
        body: FetchRequest = self._request.body
        return available >= body.min_bytes

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for asked in self._asked:
                if asked.partition is not None:
                    asked.partition.readers.pop(self, None)
        if self._slot.connection.closed:
            return
        body: FetchRequest = self._request.body
        left = self._limit_bytes
        slices: list[FileSlice] = []
        answers = iter(self._asked)
        topics = []
        for topic in body.topics:
            results = []
            for _ in topic.partitions:
                result, found = self._read(next(answers), left, first=not slices)
                slices += found
                left -= sum(each.length_bytes for each in found)
                results.append(result)
            topics.append(FetchTopicResult(topic.name, topic.topic_id, results))
        pieces = encode_response(
            FetchResponse(topics), version=self._request.version, correlation_id=self._request.correlation_id
        )
        self._slot.fill(_fill_holes(pieces, slices))

    def _read(
        self, asked: _Asked, left_bytes: int, *, first: bool
    ) -> tuple[FetchPartitionResult, list[FileSlice]]:
        partition, part = asked.partition, asked.part
        if (
            partition is not None
            and self._state.partitions.get(partition.topic, partition.index) is not partition
        ):
            partition, asked = None, asked._replace(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition is None:
            return FetchPartitionResult(part.partition, asked.code, -1), []
        log = partition.log
        if log.offline is not None:
            return FetchPartitionResult(part.partition, ErrorCode.KAFKA_STORAGE_ERROR, -1), []
        visible = partition.visible_address
        try:
            position = log.position(part.fetch_offset)
            if position > visible:
                raise AddressOutOfRangeError(
                    f"{partition.name}: offset {part.fetch_offset} is beyond {visible}"
                )
            limit = min(part.max_bytes, left_bytes)
            slices = log.slices(position, limit) if first or limit > 0 else []
            if slices and not first and sum(each.length_bytes for each in slices) > limit:
                slices = []
        except AddressOutOfRangeError:
            return self._out_of_range(partition, part), []
        except LogError as error:
            self._state.storage_failed(partition, error)
            return FetchPartitionResult(part.partition, ErrorCode.KAFKA_STORAGE_ERROR, -1), []
        # A reader past the last record of the last visible batch has reached the end: clients compare the
        # two.
        end = part.fetch_offset if position == visible and part.fetch_offset < visible else visible
        size_bytes = sum(each.length_bytes for each in slices)
        return (
            FetchPartitionResult(
                part.partition,
                ErrorCode.NONE,
                end,
                size_bytes,
                last_stable_offset=end,
                log_start_offset=log.start_address,
            ),
            slices,
        )

    @staticmethod
    def _out_of_range(partition: Partition, part: FetchPartition) -> FetchPartitionResult:
        return FetchPartitionResult(
            part.partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partition.visible_address,
            log_start_offset=partition.log.start_address,
        )


def _look_up(state: BrokerState, name: str | None, part: FetchPartition) -> _Asked:
    if name is None:
        return _Asked(part, None, ErrorCode.UNKNOWN_TOPIC_ID)
    try:
        partition = state.led_partition(name, part.partition)
        state.check_leader_epoch(partition, part.current_leader_epoch)
    except Refused as refused:
        return _Asked(part, None, refused.code)
    return _Asked(part, partition, ErrorCode.NONE)


def _fill_holes(pieces: list[bytes | bytearray | memoryview | int], slices: list[FileSlice]) -> list[Part]:
    """Put the slices, in order, where the encoded response has holes of their size."""
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
    """Answer every partition with `code`."""
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
    connection.open_slot().fill(_fill_holes(pieces, []))


def handle(state: BrokerState, connection: ClientConnection, request: Request) -> None:
    """Answer now, or wait."""
    body: FetchRequest = request.body
    slot = connection.open_slot()
    if body.session_id != 0:
        response = FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        slot.fill(
            _fill_holes(
                encode_response(response, version=request.version, correlation_id=request.correlation_id), []
            )
        )
        return
    FetchWait(state, slot, request)
