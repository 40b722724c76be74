"""Fetch requests and responses, both ways, packed by hand: v4 to v17.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch. v12 is the first flexible version, v13 names
topics by id (KIP-516). A response may leave out its records: the broker sends them by sendfile between the
encoded pieces. Fetch sessions (KIP-227): session id 0 in a response means that the broker has none, and
clients then send every partition in each request.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.apis import (
    ApiKey,
    body_position,
    frame_request,
    read_request_head,
    read_response_head,
    response_head,
)
from headrace.wire.errors import MalformedMessageError
from headrace.wire.fetch_partitions import (
    ADDRESS_TAG,
    decode_result,
    encode_result,
    from_numbers,
    request_shape,
    result_tags,
    to_numbers,
)
from headrace.wire.fetch_partitions import FLEXIBLE_FROM as FLEXIBLE_FROM
from headrace.wire.fetch_partitions import FetchPartition as FetchPartition
from headrace.wire.fetch_partitions import FetchPartitionResult as FetchPartitionResult
from headrace.wire.primitives import (
    BROKEN,
    INT32,
    NO_TAGS,
    NO_UUID,
    Buffer,
    ItemBound,
    NodeEndpoint,
    bytes_length,
    count,
    node_endpoints,
    read_count,
    read_name,
    read_node_endpoints,
    read_tags,
    read_uuid,
    skip_tags,
    string,
    tags,
)

VERSION_MIN: Final = 4
VERSION_MAX: Final = 17
TOPIC_IDS_FROM: Final = 13
ENDPOINTS_FROM: Final = 16
# Topics and partitions of one request, together: the broker handles all of them in one turn of its loop.
REQUEST_PARTITIONS_MAX: Final = 5_000
TOPIC_MIN_BYTES: Final = 3  # an empty name, no partition, no tagged fields

CONSUMER_REPLICA_ID: Final = -1
SESSIONLESS_EPOCH: Final = -1
FULL_EPOCHS: Final = (0, SESSIONLESS_EPOCH)  # of requests that name all partitions: with 0 for a new session

_WAIT = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_REPLICA = struct.Struct(">iq")  # id and epoch of the follower that asks


class FetchTopic(NamedTuple):
    """`name` up to v12 (else empty), `topic_id` from v13 (else zero)."""

    name: str
    topic_id: UUID
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[int]


class FetchRequest(NamedTuple):
    """`replica_id` is -1 for a consumer; session 0 with epoch -1 requests no session. `replica_epoch`: which
    registration of the follower asks (KIP-903, from v15). `wants_addresses`: whether the answer is to say
    where in the log its records begin (from v12; a field of our own, which other brokers skip).
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    topics: list[FetchTopic]
    replica_id: int = CONSUMER_REPLICA_ID
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = SESSIONLESS_EPOCH
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    replica_epoch: int = -1
    wants_addresses: bool = False


class FetchTopicResult(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[FetchPartitionResult]


class FetchResponse(NamedTuple):
    topics: list[FetchTopicResult]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: tuple[NodeEndpoint, ...] = ()


def decode_request(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Reads the request body at `at`. The caller has checked the version. Raises `MalformedMessageError`."""
    flexible = version >= FLEXIBLE_FROM
    items = ItemBound(REQUEST_PARTITIONS_MAX)
    shape = request_shape(version)
    try:
        replica_id = CONSUMER_REPLICA_ID
        if version < 15:
            replica_id = INT32.unpack_from(frame, at)[0]
            at += 4
        max_wait_ms, min_bytes, max_bytes, isolation_level = _WAIT.unpack_from(frame, at)
        at += _WAIT.size
        session_id, session_epoch = 0, SESSIONLESS_EPOCH
        if version >= 7:
            session_id, session_epoch = _SESSION.unpack_from(frame, at)
            at += _SESSION.size
        topic_count, at = read_count(frame, at, flexible)
        items.take(topic_count, len(frame) - at, TOPIC_MIN_BYTES)
        topics = []
        for _ in range(topic_count):
            name, topic_id, at = _read_topic(frame, at, version)
            partition_count, at = read_count(frame, at, flexible)
            items.take(partition_count, len(frame) - at, shape.size)
            partitions = []
            for _ in range(partition_count):
                partitions.append(from_numbers(shape.unpack_from(frame, at), version))
                at += shape.size
                if flexible:
                    at = skip_tags(frame, at)
            if flexible:
                at = skip_tags(frame, at)
            topics.append(FetchTopic(name, topic_id, partitions))
        forgotten: tuple[ForgottenTopic, ...] = ()
        if version >= 7:
            forgotten, at = _read_forgotten(frame, at, version, items)
        rack_id, replica_epoch, wants_addresses = "", -1, False
        if version >= 11:
            rack_id, at = read_name(frame, at, flexible)
        if flexible:
            fields, at = read_tags(frame, at)
            if version >= 15 and 1 in fields:
                replica_id, replica_epoch = _REPLICA.unpack_from(fields[1])
            wants_addresses = ADDRESS_TAG in fields
    except BROKEN as error:
        raise MalformedMessageError(f"Fetch v{version} request: {error}") from None
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=topics,
        replica_id=replica_id,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        forgotten=forgotten,
        rack_id=rack_id,
        replica_epoch=replica_epoch,
        wants_addresses=wants_addresses,
    )


def offset_position(frame: memoryview, version: int) -> int:
    """Returns where a request that was decoded already has the fetch offset of its first partition."""
    flexible = version >= FLEXIBLE_FROM
    at = body_position(frame, read_request_head(frame), flexible)
    at += (INT32.size if version < 15 else 0) + _WAIT.size + (_SESSION.size if version >= 7 else 0)
    _, at = read_count(frame, at, flexible)
    *_, at = _read_topic(frame, at, version)
    _, at = read_count(frame, at, flexible)
    return at + (8 if version >= 9 else 4)  # after the partition, and the leader's epoch


def _read_topic(frame: memoryview, at: int, version: int) -> tuple[str, UUID, int]:
    if version >= TOPIC_IDS_FROM:
        topic_id, at = read_uuid(frame, at)
        return "", topic_id, at
    name, at = read_name(frame, at, version >= FLEXIBLE_FROM)
    return name, NO_UUID, at


def _topic(name: str, topic_id: UUID, version: int) -> bytes:
    return topic_id.bytes if version >= TOPIC_IDS_FROM else string(name, version >= FLEXIBLE_FROM)


def _read_forgotten(
    frame: memoryview, at: int, version: int, items: ItemBound
) -> tuple[tuple[ForgottenTopic, ...], int]:
    flexible = version >= FLEXIBLE_FROM
    topic_count, at = read_count(frame, at, flexible)
    items.take(topic_count, len(frame) - at, TOPIC_MIN_BYTES)
    topics = []
    for _ in range(topic_count):
        name, topic_id, at = _read_topic(frame, at, version)
        partition_count, at = read_count(frame, at, flexible)
        items.take(partition_count, len(frame) - at, INT32.size)
        partitions = list(struct.unpack_from(f">{partition_count}i", frame, at))
        at += 4 * partition_count
        if flexible:
            at = skip_tags(frame, at)
        topics.append(ForgottenTopic(name, topic_id, partitions))
    return tuple(topics), at


def encode_request(
    request: FetchRequest, *, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Returns the framed request."""
    flexible = version >= FLEXIBLE_FROM
    end = [NO_TAGS] if flexible else []
    parts = [] if version >= 15 else [INT32.pack(request.replica_id)]
    parts.append(_WAIT.pack(*request[:3], request.isolation_level))
    if version >= 7:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    parts.append(count(len(request.topics), flexible))
    shape = request_shape(version)
    for topic in request.topics:
        parts.append(_topic(topic.name, topic.topic_id, version))
        parts.append(count(len(topic.partitions), flexible))
        for partition in topic.partitions:
            parts.append(shape.pack(*to_numbers(partition, version)))
            parts += end
        parts += end
    if version >= 7:
        parts.append(count(len(request.forgotten), flexible))
        for forgotten in request.forgotten:
            parts.append(_topic(forgotten.name, forgotten.topic_id, version))
            parts.append(count(len(forgotten.partitions), flexible))
            parts.append(struct.pack(f">{len(forgotten.partitions)}i", *forgotten.partitions))
            parts += end
    if version >= 11:
        parts.append(string(request.rack_id, flexible))
    if flexible:
        fields = {ADDRESS_TAG: b""} if request.wants_addresses else {}
        if version >= 15 and request.replica_id != CONSUMER_REPLICA_ID:
            fields[1] = _REPLICA.pack(request.replica_id, request.replica_epoch) + NO_TAGS
        parts.append(tags(fields))
    return frame_request(ApiKey.FETCH, version, correlation_id, client_id, flexible, parts)


def encode_response(response: FetchResponse, *, version: int, correlation_id: int) -> list[Buffer | int]:
    """Returns the framed response in pieces, to be sent one after the other.

    A piece is bytes, or a number: the `records` of a partition that gave only their size. The caller sends so
    many bytes from a file in its place. The frame's length includes them.
    """
    flexible = version >= FLEXIBLE_FROM
    pieces: list[Buffer | int] = []
    parts = [INT32.pack(response.throttle_time_ms)]
    if version >= 7:
        parts.append(_CODE_AND_SESSION.pack(response.error_code, response.session_id))
    parts.append(count(len(response.topics), flexible))
    for topic in response.topics:
        parts.append(_topic(topic.name, topic.topic_id, version))
        parts.append(count(len(topic.partitions), flexible))
        for result in topic.partitions:
            encode_result(parts, result, version)
            records = result.records
            if records is not None and not isinstance(records, int):
                parts.append(bytes_length(len(records), flexible))
                if records:
                    _flush(pieces, parts)
                    pieces.append(records)
            elif records:
                parts.append(bytes_length(records, flexible))
                _flush(pieces, parts)
                pieces.append(records)
            else:
                parts.append(bytes_length(records, flexible))
            if flexible:
                parts.append(result_tags(result))
        if flexible:
            parts.append(NO_TAGS)
    if flexible:
        hints = version >= ENDPOINTS_FROM and response.node_endpoints
        parts.append(tags({0: node_endpoints(response.node_endpoints)}) if hints else NO_TAGS)
    _flush(pieces, parts)
    size_bytes = sum(piece if isinstance(piece, int) else len(piece) for piece in pieces)
    return [response_head(correlation_id, flexible, size_bytes), *pieces]


_CODE_AND_SESSION = struct.Struct(">hi")


def _flush(pieces: list[Buffer | int], parts: list[bytes]) -> None:
    pieces.append(b"".join(parts))
    parts.clear()


def decode_response(frame: memoryview, *, version: int) -> tuple[int, FetchResponse]:
    """Returns correlation id and response; records are views of `frame`. Raises `MalformedMessageError`."""
    flexible = version >= FLEXIBLE_FROM
    correlation_id, at = read_response_head(frame, flexible)
    try:
        throttle_time_ms = INT32.unpack_from(frame, at)[0]
        at += 4
        error_code = session_id = 0
        if version >= 7:
            error_code, session_id = _CODE_AND_SESSION.unpack_from(frame, at)
            at += _CODE_AND_SESSION.size
        topic_count, at = read_count(frame, at, flexible)
        topics = []
        for _ in range(topic_count):
            name, topic_id, at = _read_topic(frame, at, version)
            partition_count, at = read_count(frame, at, flexible)
            partitions = []
            for _ in range(partition_count):
                result, at = decode_result(frame, at, version)
                partitions.append(result)
            if flexible:
                at = skip_tags(frame, at)
            topics.append(FetchTopicResult(name, topic_id, partitions))
        endpoints: tuple[NodeEndpoint, ...] = ()
        if flexible:
            fields, at = read_tags(frame, at)
            if 0 in fields:
                endpoints = read_node_endpoints(fields[0])
    except BROKEN as error:
        raise MalformedMessageError(f"Fetch v{version} response: {error}") from None
    return correlation_id, FetchResponse(topics, error_code, session_id, throttle_time_ms, endpoints)
