"""The records inside a batch: packing and unpacking. `wire.batch` owns the batch around them.

A record (v2): length, attributes (0), timestamp delta, offset delta, key, value, headers; lengths and deltas
are zigzag varints, length -1 means null.

This is the hot path of producers and consumers: appending a record is one `join` of pieces that mostly come
from a table of varints, and unpacking reads short varints without a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.wire import batch as batches
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.compression import Codec, compress, decompress
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

Header = tuple[str, bytes | None]

# Five varints of 5 bytes, one of 10 (the timestamp delta), attributes; without key, value and headers.
RECORD_OVERHEAD_MAX_BYTES: Final = 35
RECORD_SIZE_MIN_BYTES: Final = 7
DECODE_LIMIT_BYTES: Final = 128 * 1024 * 1024

_TABLE_SIZE: Final = 1 << 14


class Record(NamedTuple):
    """One record. `offset` is absolute; header names may repeat."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def zigzag(value: int) -> bytes:
    """Encodes `value` (any int64) as the shortest zigzag varint."""
    unsigned = (value << 1) ^ (value >> 63)
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)


_ZIGZAG: Final = tuple(zigzag(value) for value in range(_TABLE_SIZE))
_NULL: Final = zigzag(-1)
_NO_HEADERS: Final = b"\x00"


def _varint(value: int) -> bytes:
    return _ZIGZAG[value] if 0 <= value < _TABLE_SIZE else zigzag(value)


def _pack_headers(headers: Sequence[Header]) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
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
            b"\x00",
            _varint(timestamp_delta_ms),
            _varint(offset_delta),
            *((_NULL,) if key is None else (_varint(len(key)), key)),
            *((_NULL,) if value is None else (_varint(len(value)), value)),
            _pack_headers(headers) if headers else _NO_HEADERS,
        )
    )
    return _varint(len(body)) + body


class BatchBuilder:
    """Collects records: `append` until it returns False, then `build`.

    `size_bytes` is the size without compression. `limit_bytes` bounds it, but the first record is always
    taken (the caller limits the size of a record). The base timestamp is the first record's; later ones may
    be older.
    """

    __slots__ = (
        "_parts",
        "base_timestamp_ms",
        "limit_bytes",
        "max_timestamp_ms",
        "record_count",
        "size_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = HEADER_SIZE_BYTES
        self.record_count = 0
        self.base_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self._parts: list[bytes] = []

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> bool:
        """Takes the record; returns False if the batch is full."""
        count = self.record_count
        if count:
            delta_ms = timestamp_ms - self.base_timestamp_ms
        else:
            delta_ms = 0
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        table = _ZIGZAG
        try:
            # A negative number would index the table from its end: use `pack_record`, as for large numbers.
            if delta_ms < 0 or headers:
                raise IndexError
            key_length = _NULL if key is None else table[len(key)]
            value_length = _NULL if value is None else table[len(value)]
            body = b"".join(
                (
                    b"\x00",
                    table[delta_ms],
                    table[count],
                    key_length,
                    key or b"",
                    value_length,
                    value or b"",
                    _NO_HEADERS,
                )
            )
            packed = table[len(body)] + body
        except IndexError:
            packed = pack_record(count, delta_ms, key, value, headers)
        size_bytes = self.size_bytes + len(packed)
        if size_bytes > self.limit_bytes and count:
            return False
        self._parts.append(packed)
        self.size_bytes = size_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        return True

    def build(
        self,
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        base_offset: int = 0,
        transactional: bool = False,
    ) -> bytes:
        """Returns the batch. May be called again, with another epoch and sequence."""
        payload, stored_as = _pack_payload(b"".join(self._parts), codec, self.record_count)
        return batches.seal(
            payload,
            record_count=self.record_count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            attributes=stored_as | (batches.TRANSACTIONAL_BIT if transactional else 0),
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


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
    payload, stored_as = _pack_payload(b"".join(packed), codec, len(records))
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


def _pack_payload(packed: bytes, codec: Codec, record_count: int) -> tuple[bytes, Codec]:
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


def decode_records(buffer: Buffer, at: int = 0, *, limit_bytes: int = DECODE_LIMIT_BYTES) -> list[Record]:
    """Returns the records of the batch at `at`, with absolute offsets.

    Does not check the checksum (`batch.verify` does). Control batches (`header.is_control`) have records
    too, but these are not data. `limit_bytes` bounds the decompressed records. Raises `CorruptBatchError`.
    """
    header = batches.read_header(buffer, at)
    data = _payload(buffer, at, header, limit_bytes)
    try:
        records, end = _unpack(data, header)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"batch at offset {header.base_offset} has broken records: {error}") from None
    if end != len(data):
        raise CorruptBatchError(
            f"batch at offset {header.base_offset} has {len(data) - end} bytes after its last record"
        )
    return records


def _unpack(data: bytes, header: BatchHeader) -> tuple[list[Record], int]:
    base_offset = header.base_offset
    base_timestamp_ms = header.base_timestamp_ms
    append_time_ms = header.max_timestamp_ms if header.is_log_append_time else None
    records: list[Record] = []
    add = records.append
    make = Record._make
    at = 0
    size = len(data)
    for _ in range(header.record_count):
        # Most varints have one byte: read those here, without a call.
        raw = data[at]
        at += 1
        if raw > 0x7F:
            raw, at = _read_more(data, at, raw)
        length = raw >> 1
        end = at + length
        if raw & 1 or end > size:
            raise CorruptBatchError(f"record of {(raw >> 1) ^ -(raw & 1)} bytes, {size - at} left")
        raw = data[at + 1]  # after the attributes, which are 0
        at += 2
        if raw > 0x7F:
            raw, at = _read_more(data, at, raw)
        timestamp_ms = base_timestamp_ms + ((raw >> 1) ^ -(raw & 1))
        raw = data[at]
        at += 1
        if raw > 0x7F:
            raw, at = _read_more(data, at, raw)
        offset = base_offset + ((raw >> 1) ^ -(raw & 1))
        raw = data[at]
        at += 1
        if raw > 0x7F:
            raw, at = _read_more(data, at, raw)
        if raw & 1:
            key = None
        else:
            after = at + (raw >> 1)
            key = data[at:after]
            at = after
        raw = data[at]
        at += 1
        if raw > 0x7F:
            raw, at = _read_more(data, at, raw)
        if raw & 1:
            value = None
        else:
            after = at + (raw >> 1)
            value = data[at:after]
            at = after
        raw = data[at]
        at += 1
        headers: Sequence[Header] = ()
        if raw:
            headers, at = _unpack_headers(data, at, raw, end)
        if at != end:
            raise CorruptBatchError(f"record at offset {offset} does not end at its length")
        add(make((offset, timestamp_ms if append_time_ms is None else append_time_ms, key, value, headers)))
    return records, at


def _read_more(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Reads a varint of several bytes after its first one; returns its unsigned value and where it ends."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise CorruptBatchError("varint of more than 10 bytes")


def _unpack_headers(data: bytes, at: int, raw: int, end: int) -> tuple[tuple[Header, ...], int]:
    if raw > 0x7F:
        raw, at = _read_more(data, at, raw)
    count = raw >> 1
    if raw & 1 or count > end - at:
        raise CorruptBatchError(f"record claims {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        if name is None:
            raise CorruptBatchError("record header without a name")
        headers.append((name.decode(), value))
    return tuple(headers), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    raw = data[at]
    at += 1
    if raw > 0x7F:
        raw, at = _read_more(data, at, raw)
    if raw & 1:
        return None, at
    after = at + (raw >> 1)
    return data[at:after], after
