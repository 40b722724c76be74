"""Produce requests and responses, both ways, packed by hand: v3 to v13.

Source: https://kafka.apache.org/protocol#The_Messages_Produce. v9 is the first flexible version, v13 names
topics by id (KIP-516). Decoded batches are views of the frame: nothing is copied.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.apis import ApiKey, read_response_head, request_head, response_head
from headrace.wire.errors import ErrorCode, MalformedMessageError
from headrace.wire.primitives import (
    BROKEN,
    INT32,
    NO_TAGS,
    NO_UUID,
    Buffer,
    ItemBound,
    LeaderAndEpoch,
    NodeEndpoint,
    bytes_length,
    count,
    node_endpoints,
    read_bytes,
    read_count,
    read_name,
    read_node_endpoints,
    read_string,
    read_tags,
    read_uuid,
    read_uvarint,
    skip_tags,
    string,
    tags,
)

VERSION_MIN: Final = 3
# ApiVersions says 0, as Apache Kafka 4 does: librdkafka 2.0.2 believes that a broker without version 0 knows
# no codec but zstd, and sends gzip, snappy and lz4 uncompressed without a word. It sends version 3 or later.
ADVERTISED_MIN: Final = 0
VERSION_MAX: Final = 13
GATHER_FROM_BYTES: Final = 16 * 1024  # below, copying is cheaper than a piece of its own
FLEXIBLE_FROM: Final = 9
LEADER_HINTS_FROM: Final = 10
TOPIC_IDS_FROM: Final = 13
# Topics and partitions of one request, together: the broker handles all of them in one turn of its loop.
REQUEST_PARTITIONS_MAX: Final = 5_000
# Of a name in a flexible version: no more than in the older ones, as Apache Kafka reads it.
STRING_MAX_BYTES: Final = 0x7FFF
TOPIC_MIN_BYTES: Final = 3  # an empty name, no partition, no tagged fields
PARTITION_MIN_BYTES: Final = 5  # its number, and null records

_ACKS_TIMEOUT = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqqq")  # partition, error, base offset, log append time, log start offset (v5 on)
_RESULT_V3 = struct.Struct(">ihqq")
_LEADER = struct.Struct(">ii")


class ProducePartition(NamedTuple):
    """`records`: one or more batches, or null."""

    partition: int
    records: Buffer | None


class ProduceTopic(NamedTuple):
    """`name` up to v12 (else empty), `topic_id` from v13 (else zero)."""

    name: str
    topic_id: UUID
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    """`acks`: 0, 1 or -1 (all in-sync replicas)."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(NamedTuple):
    """The record that is the cause of a refused batch (KIP-467)."""

    batch_index: int
    message: str | None


class ProducePartitionResult(NamedTuple):
    """The result for one partition. `base_offset` is -1 if nothing was stored."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    current_leader: LeaderAndEpoch | None = None


class ProduceTopicResult(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[ProducePartitionResult]


class ProduceResponse(NamedTuple):
    topics: list[ProduceTopicResult]
    throttle_time_ms: int = 0
    node_endpoints: tuple[NodeEndpoint, ...] = ()


def decode_request(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """Reads the request body at `at`. The caller has checked the version. Raises `MalformedMessageError`."""
    flexible = version >= FLEXIBLE_FROM
    items = ItemBound(REQUEST_PARTITIONS_MAX)
    try:
        _check_string(frame, at, flexible)
        transactional_id, at = read_string(frame, at, flexible)
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
        topic_count, at = read_count(frame, at + 6, flexible)
        items.take(topic_count, len(frame) - at, TOPIC_MIN_BYTES)
        topics = []
        for _ in range(topic_count):
            name, topic_id = "", NO_UUID
            if version >= TOPIC_IDS_FROM:
                topic_id, at = read_uuid(frame, at)
            else:
                _check_string(frame, at, flexible)
                name, at = read_name(frame, at, flexible)
            partition_count, at = read_count(frame, at, flexible)
            items.take(partition_count, len(frame) - at, PARTITION_MIN_BYTES)
            partitions = []
            for _ in range(partition_count):
                partition = INT32.unpack_from(frame, at)[0]
                records, at = read_bytes(frame, at + 4, flexible)
                if flexible:
                    at = skip_tags(frame, at)
                partitions.append(ProducePartition(partition, records))
            if flexible:
                at = skip_tags(frame, at)
            topics.append(ProduceTopic(name, topic_id, partitions))
        if flexible:
            skip_tags(frame, at)
    except BROKEN as error:
        raise MalformedMessageError(f"Produce v{version} request: {error}") from None
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _check_string(frame: memoryview, at: int, flexible: bool) -> None:
    """Raises `MalformedMessageError` for a string that no client sends, before it is read: a frame may be one
    of 100 MB, which costs the broker's loop a second in names and messages.
    """
    if flexible and (length := read_uvarint(frame, at)[0] - 1) > STRING_MAX_BYTES:
        raise MalformedMessageError(f"a name of {length} bytes, at most {STRING_MAX_BYTES} are allowed")


def encode_request(
    request: ProduceRequest, *, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Returns the framed request."""
    return b"".join(
        encode_request_pieces(request, version=version, correlation_id=correlation_id, client_id=client_id)
    )


def encode_request_pieces(
    request: ProduceRequest, *, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Returns the framed request in pieces, to be sent one after the other: records of `GATHER_FROM_BYTES` or
    more are not copied, and must not change until they are sent.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Buffer] = [
        string(request.transactional_id, flexible),
        _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms),
        count(len(request.topics), flexible),
    ]
    for topic in request.topics:
        parts.append(topic.topic_id.bytes if version >= TOPIC_IDS_FROM else string(topic.name, flexible))
        parts.append(count(len(topic.partitions), flexible))
        for partition, records in topic.partitions:
            parts.append(INT32.pack(partition))
            parts.append(bytes_length(None if records is None else len(records), flexible))
            if records is not None:
                parts.append(records)
            if flexible:
                parts.append(NO_TAGS)
        if flexible:
            parts.append(NO_TAGS)
    if flexible:
        parts.append(NO_TAGS)
    size_bytes = sum(map(len, parts))
    pieces: list[Buffer] = []
    small: list[Buffer] = [
        request_head(ApiKey.PRODUCE, version, correlation_id, client_id, flexible, size_bytes)
    ]
    for part in parts:
        if len(part) >= GATHER_FROM_BYTES:
            pieces += (b"".join(small), part)
            small = []
        else:
            small.append(part)
    return [*pieces, b"".join(small)] if small else pieces


def encode_response(response: ProduceResponse, *, version: int, correlation_id: int) -> bytes:
    """Returns the framed response."""
    flexible = version >= FLEXIBLE_FROM
    parts = [count(len(response.topics), flexible)]
    for topic in response.topics:
        parts.append(topic.topic_id.bytes if version >= TOPIC_IDS_FROM else string(topic.name, flexible))
        parts.append(count(len(topic.partitions), flexible))
        for result in topic.partitions:
            _encode_result(parts, result, version, flexible)
        if flexible:
            parts.append(NO_TAGS)
    parts.append(INT32.pack(response.throttle_time_ms))
    if flexible:
        hints = version >= LEADER_HINTS_FROM and response.node_endpoints
        parts.append(tags({0: node_endpoints(response.node_endpoints)}) if hints else NO_TAGS)
    body = b"".join(parts)
    return response_head(correlation_id, flexible, len(body)) + body


def _encode_result(parts: list[bytes], result: ProducePartitionResult, version: int, flexible: bool) -> None:
    if version >= 5:
        parts.append(_RESULT.pack(*result[:5]))
    else:
        parts.append(_RESULT_V3.pack(*result[:4]))
    if version >= 8:
        parts.append(count(len(result.record_errors), flexible))
        for record_error in result.record_errors:
            parts.append(INT32.pack(record_error.batch_index))
            parts.append(string(record_error.message, flexible))
            if flexible:
                parts.append(NO_TAGS)
        parts.append(string(result.error_message, flexible))
    if flexible:
        hint = result.current_leader if version >= LEADER_HINTS_FROM else None
        parts.append(tags({0: _LEADER.pack(*hint) + NO_TAGS}) if hint else NO_TAGS)


def decode_response(frame: memoryview, *, version: int) -> tuple[int, ProduceResponse]:
    """Returns correlation id and response. Raises `MalformedMessageError`."""
    flexible = version >= FLEXIBLE_FROM
    correlation_id, at = read_response_head(frame, flexible)
    try:
        topic_count, at = read_count(frame, at, flexible)
        topics = []
        for _ in range(topic_count):
            name, topic_id = "", NO_UUID
            if version >= TOPIC_IDS_FROM:
                topic_id, at = read_uuid(frame, at)
            else:
                name, at = read_name(frame, at, flexible)
            partition_count, at = read_count(frame, at, flexible)
            partitions = []
            for _ in range(partition_count):
                result, at = _decode_result(frame, at, version, flexible)
                partitions.append(result)
            if flexible:
                at = skip_tags(frame, at)
            topics.append(ProduceTopicResult(name, topic_id, partitions))
        throttle_time_ms = INT32.unpack_from(frame, at)[0]
        endpoints: tuple[NodeEndpoint, ...] = ()
        if flexible:
            fields, _ = read_tags(frame, at + 4)
            if 0 in fields:
                endpoints = read_node_endpoints(fields[0])
    except BROKEN as error:
        raise MalformedMessageError(f"Produce v{version} response: {error}") from None
    return correlation_id, ProduceResponse(topics, throttle_time_ms, endpoints)


def _decode_result(
    frame: memoryview, at: int, version: int, flexible: bool
) -> tuple[ProducePartitionResult, int]:
    shape = _RESULT if version >= 5 else _RESULT_V3
    numbers = shape.unpack_from(frame, at)
    at += shape.size
    message = None
    record_errors = []
    if version >= 8:
        error_count, at = read_count(frame, at, flexible)
        for _ in range(error_count):
            batch_index = INT32.unpack_from(frame, at)[0]
            record_message, at = read_string(frame, at + 4, flexible)
            if flexible:
                at = skip_tags(frame, at)
            record_errors.append(RecordError(batch_index, record_message))
        message, at = read_string(frame, at, flexible)
    leader = None
    if flexible:
        fields, at = read_tags(frame, at)
        if 0 in fields:
            leader = LeaderAndEpoch._make(_LEADER.unpack_from(fields[0]))
    result = ProducePartitionResult(
        partition=numbers[0],
        error_code=numbers[1],
        base_offset=numbers[2],
        log_append_time_ms=numbers[3],
        log_start_offset=numbers[4] if version >= 5 else -1,
        error_message=message,
        record_errors=tuple(record_errors),
        current_leader=leader,
    )
    return result, at


def refuse(request: ProduceRequest, code: ErrorCode, message: str | None = None) -> ProduceResponse:
    """Returns a response that refuses every partition of `request` with `code`."""
    return ProduceResponse(
        [
            ProduceTopicResult(
                topic.name,
                topic.topic_id,
                [
                    ProducePartitionResult(part.partition, code, error_message=message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
