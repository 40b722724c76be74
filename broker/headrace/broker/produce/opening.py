"""Opens a produced batch: decompresses it within bounds and checks its records. Any thread may do it.

Owns how much a batch may unpack to, and which error a bad record gets. Pure: bytes, settings and the time in,
a result or a refusal out. `wire.checking` owns what a valid record is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.broker.errors import Refused
from headrace.broker.settings.config import TopicConfig
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.checking import (
    ANY_TIMESTAMP,
    InvalidRecordError,
    InvalidTimestampError,
    Scanner,
    TimestampDeltas,
    check_record,
    deltas_within,
)
from headrace.wire.compression import Codec, decompress_view
from headrace.wire.errors import CorruptBatchError, DecompressionLimitError, ErrorCode
from headrace.wire.records import DECODE_LIMIT_BYTES

# A batch may always unpack to a few times max.message.bytes, and to more if it does not look like a bomb:
# clients limit batches by their compressed size, and text shrinks to a twentieth.
UNPACKED_ALWAYS_FACTOR: Final = 4
UNPACKED_MAX_FACTOR: Final = 32
RATIO_MAX: Final = 256


class Opened(NamedTuple):
    """A batch that may be stored. `records`: uncompressed, if they are to be stored so, else None."""

    records: memoryview | None
    max_timestamp_ms: int


def needs_opening(header: BatchHeader, config: TopicConfig) -> bool:
    """Whether a header does not suffice: the batch's records are to be checked, or stored uncompressed."""
    return config.checks_records or header.record_count >= header.size_bytes


def unpacked_limit_bytes(max_message_bytes: int, packed_bytes: int) -> int:
    """Returns how much a batch may unpack to."""
    always = UNPACKED_ALWAYS_FACTOR * max_message_bytes
    most = min(UNPACKED_MAX_FACTOR * max_message_bytes, RATIO_MAX * packed_bytes)
    return min(max(always, most), max(DECODE_LIMIT_BYTES, max_message_bytes))


def open_batch(
    batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, scan: Scanner
) -> Opened:
    """Returns what storing the batch needs to know. Its checksum and header are valid. Raises `Refused`."""
    limit_bytes = unpacked_limit_bytes(config.max_message_bytes, header.size_bytes)
    try:
        records = unpack(batch, header, limit_bytes)
    except DecompressionLimitError:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size_bytes} bytes unpacks to more than {limit_bytes}; "
            f"max.message.bytes is {config.max_message_bytes}",
        ) from None
    except CorruptBatchError as error:
        # Not CORRUPT_MESSAGE: the checksum is right, and clients would send the same bytes again.
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from None
    return check_opened(records, header, config, now_ms, scan)


def unpack(batch: memoryview, header: BatchHeader, limit_bytes: int) -> memoryview:
    """Returns the batch's records; a view of it if they are not compressed. Raises `CorruptBatchError`."""
    payload = batch[HEADER_SIZE_BYTES : header.size_bytes]
    if header.codec is Codec.NONE:
        return payload
    return decompress_view(header.codec, payload, limit_bytes=limit_bytes)


def check_opened(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, scan: Scanner
) -> Opened:
    """Checks the records of a batch. Raises `Refused`, with the first bad record's number and problem."""
    uncompressed = records if header.record_count >= header.size_bytes else None
    if uncompressed is not None:
        _check_uncompressed_size(HEADER_SIZE_BYTES + len(records), header, config)
    if not config.checks_records:
        return Opened(uncompressed, header.max_timestamp_ms)
    deltas = ANY_TIMESTAMP if config.log_append_time else _allowed_deltas(header, config, now_ms)
    needs_keys = config.cleanup.compacts
    index, at, latest_ms = scan(records, header.record_count, deltas, needs_keys=needs_keys)
    if index == header.record_count and at == len(records):
        return Opened(uncompressed, header.base_timestamp_ms + (latest_ms or 0))
    try:
        if index == header.record_count:
            raise InvalidRecordError(index - 1, f"{len(records) - at} bytes after it, the batch's last one")
        check_record(records, at, index, deltas, needs_key=needs_keys)
    except InvalidTimestampError as error:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            _timestamp_problem(error, header, config, now_ms),
            record_index=error.index,
        ) from None
    except InvalidRecordError as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error), record_index=error.index) from None
    raise AssertionError(f"record {index} at {at} is valid for one scanner only")


def timestamp_bounds_ms(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    """Returns the earliest and the latest timestamp that a record may have."""
    low_ms = now_ms - config.timestamp_before_max_ms
    return low_ms if low_ms > 0 else 0, now_ms + config.timestamp_after_max_ms


def _allowed_deltas(header: BatchHeader, config: TopicConfig, now_ms: int) -> TimestampDeltas:
    return deltas_within(*timestamp_bounds_ms(config, now_ms), header.base_timestamp_ms)


def _timestamp_problem(
    error: InvalidTimestampError, header: BatchHeader, config: TopicConfig, now_ms: int
) -> str:
    low_ms, high_ms = timestamp_bounds_ms(config, now_ms)
    return (
        f"record {error.index}: timestamp {header.base_timestamp_ms + error.delta_ms} ms is out of range; "
        f"this topic takes {low_ms} to {high_ms} (message.timestamp.before.max.ms="
        f"{config.timestamp_before_max_ms}, message.timestamp.after.max.ms={config.timestamp_after_max_ms})"
    )


def _check_uncompressed_size(size_bytes: int, header: BatchHeader, config: TopicConfig) -> None:
    """Raises `Refused` for a batch that cannot be stored uncompressed either."""
    if size_bytes > config.max_message_bytes:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header.record_count} records in a batch of {header.size_bytes} bytes: each needs an address, "
            f"and uncompressed they take {size_bytes} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    if header.record_count >= size_bytes:
        raise Refused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size_bytes} bytes")
