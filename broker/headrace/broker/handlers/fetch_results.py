"""The answer to a Fetch in pieces: encoded bytes, and slices of segment files between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from headrace.broker.core import ClientConnection, Part
from headrace.broker.handlers.replica_reads import Readable
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


class Session(Protocol):
    """A follower's session, in which an answer leaves out what the follower knows."""

    @property
    def id(self) -> int: ...

    def tells(self, topic_id: UUID, result: FetchPartitionResult) -> bool: ...

    def answered(self, results: Iterable[tuple[UUID, FetchPartitionResult, Readable | None]]) -> None:
        """Notes what the answer looked at; it holds those results that `tells` chose."""


def answer_parts(request: Request, response: FetchResponse, slices: Sequence[FileSlice] = ()) -> list[Part]:
    """Encodes the answer to `request`. A result whose records are a number of bytes gets the next slices."""
    pieces = encode_response(response, version=request.version, correlation_id=request.correlation_id)
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
    connection.open_slot().fill(answer_parts(request, FetchResponse(topics)))


def out_of_range(partition: Readable, part: FetchPartition) -> FetchPartitionResult:
    """Returns the answer for an offset that the log does not hold."""
    return FetchPartitionResult(
        part.partition,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        partition.visible_address,
        0,
        log_start_offset=partition.log.start_address,
    )
