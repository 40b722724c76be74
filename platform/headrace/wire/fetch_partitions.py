"""One partition of a Fetch request and of a Fetch response, and its encoding in each version.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace.wire.primitives import (
    INT32,
    INT64,
    NO_TAGS,
    Buffer,
    LeaderAndEpoch,
    bytes_length,
    count,
    read_bytes,
    read_nullable_count,
    read_tags,
    skip_tags,
    tags,
)

FLEXIBLE_FROM: Final = 12
ADDRESS_TAG: Final = 10_000  # ours: see `wire.own_fields`

_RESULT = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_RESULT_V12 = struct.Struct(">ihqqqBi")  # then log start offset, no aborted transactions, preferred replica
_ABORTED = struct.Struct(">qq")
_LEADER = struct.Struct(">ii")
_EPOCH_END = struct.Struct(">iq")


class FetchPartition(NamedTuple):
    """Where to read next. `max_bytes` bounds the response, but the first batch is always returned whole."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchPartitionResult(NamedTuple):
    """The result for one partition. `records`: batches, or their size if they are sent separately (to encode
    only). `aborted`: None, or `(producer_id, first_offset)` of aborted transactions. `address`: where the
    records begin in the log; -1 if it is not told.
    """

    partition: int
    error_code: int
    high_watermark: int
    records: Buffer | int | None = b""
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[tuple[int, int], ...] | None = None
    preferred_read_replica: int = -1
    current_leader: LeaderAndEpoch | None = None
    diverging_epoch: tuple[int, int] | None = None
    address: int = -1


_SHAPE_V4 = struct.Struct(">iqi")
_SHAPE_V5 = struct.Struct(">iqqi")
_SHAPE_V9 = struct.Struct(">iiqqi")
_SHAPE_V12 = struct.Struct(">iiqiqi")


def request_shape(version: int) -> struct.Struct:
    """Returns the layout of a requested partition in this version."""
    if version >= 12:
        return _SHAPE_V12
    if version >= 9:
        return _SHAPE_V9
    return _SHAPE_V5 if version >= 5 else _SHAPE_V4


def from_numbers(numbers: tuple[int, ...], version: int) -> FetchPartition:
    """Converts the numbers that `request_shape` unpacks."""
    if version >= 12:
        partition, leader_epoch, offset, fetched_epoch, start, max_bytes = numbers
        return FetchPartition(partition, offset, max_bytes, leader_epoch, fetched_epoch, start)
    if version >= 9:
        partition, leader_epoch, offset, start, max_bytes = numbers
        return FetchPartition(partition, offset, max_bytes, leader_epoch, -1, start)
    if version >= 5:
        partition, offset, start, max_bytes = numbers
        return FetchPartition(partition, offset, max_bytes, -1, -1, start)
    partition, offset, max_bytes = numbers
    return FetchPartition(partition, offset, max_bytes)


def to_numbers(partition: FetchPartition, version: int) -> tuple[int, ...]:
    """Returns the numbers that `request_shape` packs."""
    index, offset, max_bytes, leader_epoch, fetched_epoch, start = partition
    if version >= 12:
        return index, leader_epoch, offset, fetched_epoch, start, max_bytes
    if version >= 9:
        return index, leader_epoch, offset, start, max_bytes
    return (index, offset, start, max_bytes) if version >= 5 else (index, offset, max_bytes)


def encode_result(parts: list[bytes], result: FetchPartitionResult, version: int) -> None:
    """Appends the fields before the records to `parts`."""
    if version >= FLEXIBLE_FROM and result.aborted is None:  # nearly all: packed at once
        index, error_code, end, _, last_stable, start, _, replica, *_ = result
        parts.append(_RESULT_V12.pack(index, error_code, end, last_stable, start, 0, replica))
        return
    parts.append(_RESULT.pack(*result[:3], result.last_stable_offset))
    if version >= 5:
        parts.append(INT64.pack(result.log_start_offset))
    flexible = version >= FLEXIBLE_FROM
    if result.aborted is None:
        parts.append(bytes_length(None, flexible))
    else:
        parts.append(count(len(result.aborted), flexible))
        for aborted in result.aborted:
            parts.append(_ABORTED.pack(*aborted))
            if flexible:
                parts.append(NO_TAGS)
    if version >= 11:
        parts.append(INT32.pack(result.preferred_read_replica))


def result_tags(result: FetchPartitionResult) -> bytes:
    """Returns the tagged fields, which follow the records in flexible versions."""
    if result.current_leader is None and result.diverging_epoch is None and result.address < 0:
        return NO_TAGS
    fields = {}
    if result.diverging_epoch is not None:
        fields[0] = _EPOCH_END.pack(*result.diverging_epoch) + NO_TAGS
    if result.current_leader is not None:
        fields[1] = _LEADER.pack(*result.current_leader) + NO_TAGS
    if result.address >= 0:
        fields[ADDRESS_TAG] = INT64.pack(result.address)
    return tags(fields)


def decode_result(frame: memoryview, at: int, version: int) -> tuple[FetchPartitionResult, int]:
    """Reads the result at `at`, with records and tags; returns it and where it ends. Raises one of
    `BROKEN`."""
    flexible = version >= FLEXIBLE_FROM
    partition, error_code, high_watermark, last_stable_offset = _RESULT.unpack_from(frame, at)
    at += _RESULT.size
    log_start_offset = -1
    if version >= 5:
        log_start_offset = INT64.unpack_from(frame, at)[0]
        at += 8
    aborted, at = _read_aborted(frame, at, flexible)
    preferred_read_replica = -1
    if version >= 11:
        preferred_read_replica = INT32.unpack_from(frame, at)[0]
        at += 4
    records, at = read_bytes(frame, at, flexible)
    leader = diverging = None
    address = -1
    if flexible:
        fields, at = read_tags(frame, at)
        if 0 in fields:
            diverging = _EPOCH_END.unpack_from(fields[0])
        if 1 in fields:
            leader = LeaderAndEpoch._make(_LEADER.unpack_from(fields[1]))
        if ADDRESS_TAG in fields:
            (address,) = INT64.unpack_from(fields[ADDRESS_TAG])
    result = FetchPartitionResult(
        partition=partition,
        error_code=error_code,
        high_watermark=high_watermark,
        records=records,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted=aborted,
        preferred_read_replica=preferred_read_replica,
        current_leader=leader,
        diverging_epoch=diverging,
        address=address,
    )
    return result, at


def _read_aborted(
    frame: memoryview, at: int, flexible: bool
) -> tuple[tuple[tuple[int, int], ...] | None, int]:
    number, at = read_nullable_count(frame, at, flexible)
    if number < 0:
        return None, at
    aborted = []
    for _ in range(number):
        aborted.append(_ABORTED.unpack_from(frame, at))
        at += _ABORTED.size
        if flexible:
            at = skip_tags(frame, at)
    return tuple(aborted), at
