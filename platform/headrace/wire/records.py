"""The records inside a batch: their format, packing single ones, unpacking.

`wire.batch` owns the batch around them, `wire.builder` the packing of a producer's many records.

A record (v2): length, attributes (0), timestamp delta, offset delta, key, value, headers; lengths and deltas
are zigzag varints (`wire.varints`), length -1 means null.

Unpacking is the hot path of consumers. Uniform records are unpacked many at a time (`wire.uniform`); the loop
for all others reads short varints without a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.wire import batch as batches
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.compression import Codec, compress, decompress
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer
from headrace.wire.uniform import unpack_uniform
from headrace.wire.varints import ATTRIBUTES, NO_HEADERS, NULL, read_more, varint

Header = tuple[str, bytes | None]

# Five varints of 5 bytes, one of 10 (the timestamp delta), attributes; without key, value and headers.
RECORD_OVERHEAD_MAX_BYTES: Final = 35
RECORD_SIZE_MIN_BYTES: Final = 7
DECODE_LIMIT_BYTES: Final = 128 * 1024 * 1024


class Record(NamedTuple):
    """One record. `offset` is absolute; header names may repeat."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def pack_headers(headers: Sequence[Header]) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def pack_record(
    offset_delta: int,
    timestamp_delta_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> bytes:
    """Encodes one record, with its length."""
    body = b"".join(
        (
            ATTRIBUTES,
            varint(timestamp_delta_ms),
            varint(offset_delta),
            *((NULL,) if key is None else (varint(len(key)), key)),
            *((NULL,) if value is None else (varint(len(value)), value)),
            pack_headers(headers) if headers else NO_HEADERS,
        )
    )
    return varint(len(body)) + body


def encode_batch(
    records: Iterable[Record],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    attributes: int = 0,
) -> bytes:
    """Returns a batch of `records`. Raises `ValueError` if there are none.

    Record i gets offset `base_offset + i`, or, with `keep_offsets`, its own `offset`, which must not be below
    `base_offset`. `attributes` adds bits (transactional, control, log append time) to the codec's.
    """
    records = list(records)
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp_ms = records[0].timestamp_ms
    packed = []
    delta = -1
    for position, record in enumerate(records):
        delta = record.offset - base_offset if keep_offsets else position
        packed.append(
            pack_record(
                delta, record.timestamp_ms - base_timestamp_ms, record.key, record.value, record.headers
            )
        )
    payload, stored_as = pack_payload(b"".join(packed), codec, len(records))
    return batches.seal(
        payload,
        record_count=len(records),
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(record.timestamp_ms for record in records),
        attributes=attributes & ~batches.CODEC_MASK | stored_as,
        base_offset=base_offset,
        last_offset_delta=delta if last_offset_delta is None else last_offset_delta,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def pack_payload(packed: bytes, codec: Codec, record_count: int) -> tuple[bytes, Codec]:
    """Compresses the records, unless the batch would then have no more bytes than records.

    Offsets are byte addresses: each record has one of its batch's L bytes (see `wire.batch`).
    """
    if codec is Codec.NONE:
        return packed, codec
    payload = compress(codec, packed)
    if record_count >= HEADER_SIZE_BYTES + len(payload):
        return packed, Codec.NONE
    return payload, codec


def _payload(buffer: Buffer, at: int, header: BatchHeader, limit_bytes: int) -> bytes:
    end = at + header.size_bytes
    if end > len(buffer):
        raise CorruptBatchError(f"batch of {header.size_bytes} bytes, {len(buffer) - at} left")
    view = memoryview(buffer)[at + HEADER_SIZE_BYTES : end]
    payload = decompress(header.codec, view, limit_bytes=limit_bytes)
    if header.record_count * RECORD_SIZE_MIN_BYTES > len(payload):
        raise CorruptBatchError(f"batch claims {header.record_count} records in {len(payload)} bytes")
    return payload


class RecordColumns(NamedTuple):
    """The records of a batch, field by field. Absolute offsets; times in ms since the epoch."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[Header]]


def decode_records(buffer: Buffer, at: int = 0, *, limit_bytes: int = DECODE_LIMIT_BYTES) -> list[Record]:
    """Returns the records of the batch at `at`. Like `decode_columns`."""
    return list(map(_AS_RECORD, zip(*decode_columns(buffer, at, limit_bytes=limit_bytes), strict=True)))


def decode_columns(buffer: Buffer, at: int = 0, *, limit_bytes: int = DECODE_LIMIT_BYTES) -> RecordColumns:
    """Returns the records of the batch at `at`, with absolute offsets.

    Does not check the checksum (`batch.verify` does). Control batches (`header.is_control`) have records
    too, but these are not data. `limit_bytes` bounds the decompressed records. Raises `CorruptBatchError`.
    """
    header = batches.read_header(buffer, at)
    data = _payload(buffer, at, header, limit_bytes)
    try:
        columns, end = _unpack_many(data, header) or _unpack(data, header)
    except IndexError as error:
        raise CorruptBatchError(f"batch at offset {header.base_offset} has broken records: {error}") from None
    if end != len(data):
        raise CorruptBatchError(
            f"batch at offset {header.base_offset} has {len(data) - end} bytes after its last record"
        )
    if header.is_log_append_time:
        return columns._replace(timestamps_ms=[header.max_timestamp_ms] * header.record_count)
    return columns


# `Record._make` is a function in Python, and takes as long as reading two fields.
_AS_RECORD: Final = partial(tuple.__new__, Record)


def _unpack_many(data: bytes, header: BatchHeader) -> tuple[RecordColumns, int] | None:
    """Like `_unpack`, but only for uniform records."""
    count = header.record_count
    uniform = unpack_uniform(data, count)
    if uniform is None:
        return None
    base_timestamp_ms = header.base_timestamp_ms
    columns = RecordColumns(
        offsets=range(header.base_offset, header.base_offset + count),
        timestamps_ms=[base_timestamp_ms + delta_ms for delta_ms in uniform.timestamp_deltas_ms],
        keys=[None] * count,
        values=uniform.values,
        headers=[()] * count,
    )
    return columns, len(data)


def _unpack(data: bytes, header: BatchHeader) -> tuple[RecordColumns, int]:
    """Returns the columns and where the last record ends."""
    base_offset, base_timestamp_ms = header.base_offset, header.base_timestamp_ms
    offsets: list[int] = []
    timestamps_ms: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    all_headers: list[Sequence[Header]] = []
    at = 0
    size = len(data)
    for _ in range(header.record_count):
        # Most varints have one byte, or two: read those here, without a call.
        raw = data[at]
        at += 1
        if raw > 0x7F:
            if data[at] > 0x7F:
                raw, at = read_more(data, at, raw)
            else:
                raw += (data[at] << 7) - 0x80
                at += 1
        end = at + (raw >> 1)
        if raw & 1 or end > size:
            raise CorruptBatchError(f"record of {(raw >> 1) ^ -(raw & 1)} bytes, {size - at} left")
        raw = data[at + 1]  # after the attributes, which are 0
        at += 2
        if raw > 0x7F:
            raw, at = read_more(data, at, raw)
        timestamps_ms.append(base_timestamp_ms + ((raw >> 1) ^ -(raw & 1)))
        raw = data[at]
        at += 1
        if raw > 0x7F:
            if data[at] > 0x7F:
                raw, at = read_more(data, at, raw)
            else:
                raw += (data[at] << 7) - 0x80
                at += 1
        offset = base_offset + ((raw >> 1) ^ -(raw & 1))
        offsets.append(offset)
        key, at = _read_bytes(data, at) if data[at] != 1 else (None, at + 1)
        keys.append(key)
        raw = data[at]
        at += 1
        if raw > 0x7F:
            if data[at] > 0x7F:
                raw, at = read_more(data, at, raw)
            else:
                raw += (data[at] << 7) - 0x80
                at += 1
        after = at + (raw >> 1)
        values.append(None if raw & 1 else data[at:after])
        at = at if raw & 1 else after
        headers, at = _unpack_headers(data, at, end) if data[at] else ((), at + 1)
        all_headers.append(headers)
        if at != end:
            raise CorruptBatchError(f"record at offset {offset} does not end at its length")
    return RecordColumns(offsets, timestamps_ms, keys, values, all_headers), at


def _unpack_headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    raw = data[at]
    at += 1
    if raw > 0x7F:
        raw, at = read_more(data, at, raw)
    count = raw >> 1
    if raw & 1 or count > end - at:
        raise CorruptBatchError(f"record claims {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        if name is None:
            raise CorruptBatchError("record header without a name")
        # As Kafka's Java client: a name that is not UTF-8 must not make a stored record unreadable.
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    raw = data[at]
    at += 1
    if raw > 0x7F:
        raw, at = read_more(data, at, raw)
    if raw & 1:
        return None, at
    after = at + (raw >> 1)
    return data[at:after], after
