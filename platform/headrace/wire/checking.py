"""Checks every record of a batch before a broker believes it, as Kafka's `LogValidator` does.

Owns what a valid record is. The loop here takes some microseconds a record; `wire.checking_fast`
gives the same answers many times as fast where the package `lupa` is installed.

A valid record has varints in their shortest form that fit their type and end inside the record, lengths of -1
(null) or more, no attributes, its number in the batch as its offset delta, a timestamp within bounds, and
ends exactly where its length says. Apache Kafka accepts longer forms of varints and ignores attributes; no
client writes either.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

RECORD_BODY_MIN_BYTES: Final = 6
"""Attributes, two deltas, two lengths, the number of headers."""

TIMESTAMP_DELTA_MAX_MS: Final = 2**48
"""Records of one batch that lie 8,900 years apart, or more, are refused: 7 bytes hold any smaller delta."""

NO_TIMESTAMP_MS: Final = -1

NULL: Final = 1
"""The varint of a length of -1."""

_LENGTH_SIZE_MAX_BYTES: Final = 5
_TIMESTAMP_SIZE_MAX_BYTES: Final = 7
_UINT32_MAX: Final = 2**32 - 1


TimestampDeltas = tuple[int, int, int]
"""The smallest and the largest timestamp delta that records may have, in ms, and that of one without a
timestamp.
"""

ANY_TIMESTAMP: Final = (-TIMESTAMP_DELTA_MAX_MS, TIMESTAMP_DELTA_MAX_MS, 0)


class Scan(NamedTuple):
    """How far the records of a batch are valid: `valid` of them are, and end at `at`, where an invalid one
    begins unless `valid` is the number of records.

    `latest_ms`: the largest timestamp delta of the valid records; None without any.
    """

    valid: int
    at: int
    latest_ms: int | None


class Scanner(Protocol):
    """Checks the first `count` records of a buffer."""

    def __call__(
        self, data: Buffer, count: int, deltas: TimestampDeltas, *, needs_keys: bool = False
    ) -> Scan: ...


class InvalidRecordError(CorruptBatchError):
    """A record that must not be stored: `index` is its place in the batch."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"record {index}: {problem}")
        self.index = index


class InvalidTimestampError(InvalidRecordError):
    """A record whose timestamp is out of bounds."""

    def __init__(self, index: int, delta_ms: int) -> None:
        super().__init__(index, f"a timestamp {delta_ms} ms after the batch's first one is out of bounds")
        self.delta_ms = delta_ms


def deltas_within(low_ms: int, high_ms: int, base_timestamp_ms: int) -> TimestampDeltas:
    """Returns the deltas of timestamps from `low_ms` to `high_ms`, and of records without a timestamp."""
    limit = TIMESTAMP_DELTA_MAX_MS
    return (
        max(-limit, min(limit, low_ms - base_timestamp_ms)),
        max(-limit, min(limit, high_ms - base_timestamp_ms)),
        max(-limit - 1, min(limit + 1, NO_TIMESTAMP_MS - base_timestamp_ms)),
    )


def scan_records(data: Buffer, count: int, deltas: TimestampDeltas, *, needs_keys: bool = False) -> Scan:
    """The `Scanner` in Python alone."""
    at = 0
    latest_ms: int | None = None
    for index in range(count):
        try:
            end, delta_ms = check_record(data, at, index, deltas, needs_key=needs_keys)
        except InvalidRecordError:
            return Scan(index, at, latest_ms)
        if latest_ms is None or delta_ms > latest_ms:
            latest_ms = delta_ms
        at = end
    return Scan(count, at, latest_ms)


def is_plain_record(data: Buffer, at: int, end: int) -> bool:
    """Whether `data[at:end]` is exactly one valid record whose deltas are 0, with a short key or none and no
    headers: the usual batch of one record, in less time than a scanner takes to be called.
    """
    if end - at <= RECORD_BODY_MIN_BYTES or end > len(data):
        return False
    byte = data[at]
    length = data[at + 1] << 7 | byte & 0x7F if byte > 0x7F else byte
    is_long = byte > 0x7F
    at += 1 + is_long
    if length & 1 or at + (length >> 1) != end or (is_long and not 1 << 7 <= length < 1 << 14):
        return False
    if end - at < RECORD_BODY_MIN_BYTES or data[at] or data[at + 1] or data[at + 2]:
        return False
    at += 3
    for _ in ("key", "value"):
        byte = data[at]
        at += 1
        if byte == 1:
            continue
        if byte > 0x7F:
            if at >= end or not 0 < data[at] < 0x80:
                return False
            byte += (data[at] << 7) - 0x80
            at += 1
        at += byte >> 1
        if byte & 1 or at >= end:
            return False
    return at == end - 1 and not data[at]


def check_record(
    data: Buffer, at: int, index: int, deltas: TimestampDeltas, *, needs_key: bool = False
) -> tuple[int, int]:
    """Returns where the record at `at` ends, and its timestamp delta. Raises `InvalidRecordError`."""
    raw, at = _varint(data, at, len(data), index, "length")
    end = at + (raw >> 1)
    if raw & 1 or raw >> 1 < RECORD_BODY_MIN_BYTES or end > len(data):
        raise InvalidRecordError(index, f"a length of {_signed(raw)} bytes, {len(data) - at} left")
    if data[at]:
        raise InvalidRecordError(index, f"attributes {data[at]:#x}: no attribute of a record is defined")
    raw, at = _varint(data, at + 1, end, index, "timestamp delta", _TIMESTAMP_SIZE_MAX_BYTES)
    delta_ms = _signed(raw)
    low_ms, high_ms, none_ms = deltas
    if not low_ms <= delta_ms <= high_ms and delta_ms != none_ms:
        raise InvalidTimestampError(index, delta_ms)
    raw, at = _varint(data, at, end, index, "offset delta")
    if raw != 2 * index:
        raise InvalidRecordError(index, f"offset delta {_signed(raw)}, expected {index}")
    if needs_key and at < end and data[at] == NULL:
        raise InvalidRecordError(index, "it has no key; in a compacted topic each record must have one")
    at = _skip(data, at, end, index, "key")
    at = _skip(data, at, end, index, "value")
    raw, at = _varint(data, at, end, index, "number of headers")
    if raw & 1 or raw > 2 * (end - at):
        raise InvalidRecordError(index, f"{_signed(raw)} headers in {end - at} bytes")
    for _ in range(raw >> 1):
        at = _skip(data, at, end, index, "name of a header", may_be_null=False)
        at = _skip(data, at, end, index, "value of a header")
    if at != end:
        raise InvalidRecordError(index, f"{end - at} bytes after its last field")
    return end, delta_ms


def _signed(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def _skip(data: Buffer, at: int, end: int, index: int, name: str, *, may_be_null: bool = True) -> int:
    """Returns where the bytes at `at` end, which begin with their length."""
    raw, at = _varint(data, at, end, index, f"length of the {name}")
    if raw == NULL and may_be_null:
        return at
    if raw & 1 or raw >> 1 > end - at:
        raise InvalidRecordError(index, f"a {name} of {_signed(raw)} bytes, {end - at} left")
    return at + (raw >> 1)


def _varint(
    data: Buffer, at: int, end: int, index: int, name: str, size_max_bytes: int = _LENGTH_SIZE_MAX_BYTES
) -> tuple[int, int]:
    """Returns the unsigned value of a varint and where it ends."""
    value = shift = 0
    for place in range(size_max_bytes):
        if at >= end:
            raise InvalidRecordError(index, f"the {name} ends outside the record")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and place:
                raise InvalidRecordError(index, f"the {name} is a varint longer than it must be")
            if size_max_bytes == _LENGTH_SIZE_MAX_BYTES and value > _UINT32_MAX:
                raise InvalidRecordError(index, f"the {name} does not fit into 32 bits")
            return value, at
        shift += 7
    raise InvalidRecordError(index, f"the {name} is a varint of more than {size_max_bytes} bytes")
