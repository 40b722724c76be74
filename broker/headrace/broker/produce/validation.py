"""What a produced batch must be, wherever it is stored. Pure: bytes and settings in, bytes or a refusal out.

Owns headers and checksums, and what is stored instead of a batch that cannot be stored as it came. `opening`
looks inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.produce.opening import Opened
from headrace.broker.settings.config import TopicConfig
from headrace.wire.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    hop,
    read_header,
    seal,
    verify,
)
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, ErrorCode, UnsupportedMagicError
from headrace.wire.primitives import Buffer

COPIED_BATCHES_MAX: Final = 300_000  # of one request, for mirrors' copies: a mirror sends up to 12 MB
# Bit 6 changes what the base timestamp means, and only brokers set it; the others have no meaning yet.
UNKNOWN_ATTRIBUTES: Final = ~(CODEC_MASK | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)


Batches = list[tuple[memoryview, BatchHeader]]


def split(records: memoryview) -> Batches:
    """Returns the batches of records that were verified before."""
    return [(records[at : at + header.size_bytes], header) for at, header in hop(records)]


def split_verified(records: memoryview | None, most: Callable[[], int] = lambda: 1) -> Batches:
    """Returns the batches of a partition's records, checksums verified. Raises `Refused`.

    `most`: how many there may be; asked once there is a second one. The rest is not looked at if there are
    more: one request holds a million of them.
    """
    if records is None or not len(records):
        raise Refused(
            ErrorCode.INVALID_RECORD, "a Produce request must hold a record batch for each partition"
        )
    batches: Batches = []
    end = 0
    try:
        batches_max = 1
        for at, header in hop(records):
            if len(batches) == 1:
                batches_max = most()
            if len(batches) >= batches_max:
                raise Refused(
                    ErrorCode.INVALID_RECORD if batches_max == 1 else ErrorCode.MESSAGE_TOO_LARGE,
                    f"more than {batches_max} batches for a partition: exactly one is allowed, and for a "
                    f"mirror's copy {COPIED_BATCHES_MAX} in one request",
                )
            verify(records, at, header)
            end = at + header.size_bytes
            batches.append((records[at:end], header))
        if end != len(records):
            read_header(records, end)
            raise CorruptBatchError(f"{len(records) - end} bytes after the last whole batch")
    except UnsupportedMagicError as error:
        raise Refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from None
    except CorruptBatchError as error:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return batches


def check_header(header: BatchHeader, config: TopicConfig) -> None:
    """Raises `Refused` for a batch that may not be stored."""
    if header.size_bytes > config.max_message_bytes:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size_bytes} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    if header.is_control:
        raise Refused(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.is_transactional:
        raise Refused(
            ErrorCode.INVALID_TXN_STATE, "headrace has no transactions: send without a transactional id"
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records with last offset delta {header.last_offset_delta}",
        )
    if header.attributes & UNKNOWN_ATTRIBUTES:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"a batch with attributes {header.attributes:#x}: producers may set the codec's bits only",
        )
    if header.attributes & CODEC_MASK > max(Codec):
        raise Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.attributes & CODEC_MASK} is unknown"
        )
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} with epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence}",
        )


def to_store(
    batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, opened: Opened | None
) -> tuple[Buffer, BatchHeader]:
    """Returns the batch as it is to be stored: usually unchanged, with its producer's checksum. It is
    rewritten for LogAppendTime, to give each record an address, and if its header has another largest
    timestamp than its records (some clients leave it out; Kafka corrects it, too).

    `opened` is None if the batch did not need opening.
    """
    uncompress = header.record_count >= header.size_bytes
    max_timestamp_ms = header.max_timestamp_ms if opened is None else opened.max_timestamp_ms
    if (
        not uncompress
        and not config.log_append_time
        and not header.is_log_append_time
        and max_timestamp_ms == header.max_timestamp_ms
    ):
        return batch, header
    records: Buffer = batch[HEADER_SIZE_BYTES:]
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT
    if uncompress:
        assert opened is not None and opened.records is not None
        records = opened.records
        attributes &= ~CODEC_MASK
    if config.log_append_time:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp_ms = now_ms
    stored = bytearray(
        seal(
            records,
            record_count=header.record_count,
            base_timestamp_ms=header.base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            attributes=attributes,
            last_offset_delta=header.last_offset_delta,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    )
    return memoryview(stored), read_header(stored)
