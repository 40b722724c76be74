"""API keys, and the headers of requests and responses, packed by hand.

Source: https://kafka.apache.org/protocol#protocol_messages. Flexible versions have tagged fields in their
headers: request header 2 instead of 1, response header 1 instead of 0. ApiVersions responses always have
response header 0.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from headrace.wire.errors import MalformedMessageError
from headrace.wire.primitives import BROKEN, INT32, NO_TAGS, read_string, skip_tags, string


class ApiKey(IntEnum):
    """The APIs that headrace names; any other API key is a plain int."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    CONSUMER_GROUP_HEARTBEAT = 68
    DESCRIBE_TOPIC_PARTITIONS = 75


class RequestHead(NamedTuple):
    """A request's header up to the client id; `end` is the position after it (tagged fields may follow)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


_HEAD = struct.Struct(">hhi")
_FRAMED_HEAD = struct.Struct(">ihhi")
_FRAMED_ID = struct.Struct(">ii")


def read_request_head(frame: memoryview) -> RequestHead:
    """Reads the head of any request, also of an unknown API. Raises `MalformedMessageError`."""
    try:
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        client_id, end = read_string(frame, 8, False)
    except BROKEN as error:
        raise MalformedMessageError(f"no request header in a frame of {len(frame)} bytes: {error}") from None
    return RequestHead(api_key, version, correlation_id, client_id, end)


def body_position(frame: memoryview, head: RequestHead, flexible: bool) -> int:
    """Returns where the request's body begins. Raises `MalformedMessageError`."""
    try:
        return skip_tags(frame, head.end) if flexible else head.end
    except BROKEN as error:
        raise MalformedMessageError(f"broken tagged fields in a request header: {error}") from None


def frame_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool, body: list[bytes]
) -> bytes:
    """Returns the framed request whose body is the joined parts of `body`."""
    head = request_head(api_key, version, correlation_id, client_id, flexible, sum(map(len, body)))
    return b"".join((head, *body))


def request_head(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    flexible: bool,
    body_size_bytes: int,
) -> bytes:
    """Returns frame length and header of a request whose body has that size."""
    client = string(client_id, False)
    size_bytes = 8 + len(client) + (1 if flexible else 0) + body_size_bytes
    head = _FRAMED_HEAD.pack(size_bytes, api_key, version, correlation_id)
    return head + client + (NO_TAGS if flexible else b"")


def response_head(correlation_id: int, flexible: bool, body_size_bytes: int) -> bytes:
    """Returns frame length and header of a response whose body has that size."""
    if flexible:
        return _FRAMED_ID.pack(5 + body_size_bytes, correlation_id) + NO_TAGS
    return _FRAMED_ID.pack(4 + body_size_bytes, correlation_id)


def read_response_head(frame: memoryview, flexible: bool) -> tuple[int, int]:
    """Returns the correlation id and where the body begins. Raises `MalformedMessageError`."""
    try:
        correlation_id: int = INT32.unpack_from(frame)[0]
        return correlation_id, skip_tags(frame, 4) if flexible else 4
    except BROKEN as error:
        raise MalformedMessageError(f"no response header in a frame of {len(frame)} bytes: {error}") from None
