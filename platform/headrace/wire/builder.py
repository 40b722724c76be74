"""Builds a producer's batch: takes records one by one and packs many of them at once.

Owns the packing of many records. `append` only remembers a record and an upper bound of its size, because
packing a few hundred records in a few calls is faster than packing each by itself. `wire.records` owns the
format of a record, and packs a single one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.wire import batch as batches
from headrace.wire.batch import HEADER_SIZE_BYTES
from headrace.wire.compression import Codec
from headrace.wire.records import RECORD_OVERHEAD_MAX_BYTES, Header, pack_headers, pack_payload
from headrace.wire.varints import ATTRIBUTES, NO_HEADERS, NULL, VARINT_TABLE, VARINT_TABLE_SIZE, varint

SAME_TIME_RECORDS_MIN: Final = 8
"""With fewer records to a timestamp, on average, packing each by itself is faster."""

_ONE_BYTE_DELTAS: Final = 64
_TWO_BYTE_DELTAS: Final = 8192

PendingRecord = tuple[int, bytes | None, bytes | None, bytes]
"""Timestamp in ms since the epoch, key, value, and the headers as `pack_headers` packs them."""


def record_bound_bytes(key: bytes | None, value: bytes | None, packed_headers: bytes) -> int:
    """Returns a size that the packed record does not exceed."""
    return RECORD_OVERHEAD_MAX_BYTES + len(key or b"") + len(value or b"") + len(packed_headers)


class BatchBuilder:
    """Collects records: `append` until it returns False, then `build`.

    `limit_bytes` bounds the batch's size without compression, but the first record is always taken (the
    caller limits the size of a record). The base timestamp is the first record's; later ones may be older.
    """

    __slots__ = (
        "_max_timestamp_ms",
        "_packed",
        "_packed_bytes",
        "_packed_count",
        "_pending",
        "base_timestamp_ms",
        "bound_bytes",
        "limit_bytes",
        "record_count",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.record_count = 0
        self.base_timestamp_ms = -1
        self.bound_bytes = HEADER_SIZE_BYTES
        """A size that the batch does not exceed. Falls when records are packed."""
        self._max_timestamp_ms = -1
        self._pending: list[PendingRecord] = []
        self._packed: list[bytes] = []
        self._packed_bytes = HEADER_SIZE_BYTES
        self._packed_count = 0

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> bool:
        """Takes the record; returns False if the batch is full."""
        packed_headers = pack_headers(headers) if headers else NO_HEADERS
        record_bytes = record_bound_bytes(key, value, packed_headers)
        return bool(self.add((timestamp_ms, key, value, packed_headers), record_bytes))

    def add(self, record: PendingRecord, record_bytes: int) -> int:
        """Like `append`, for a caller that knows the record's `record_bound_bytes`.

        Returns how many records the batch has now, or 0 if it is full.
        """
        bound_bytes = self.bound_bytes + record_bytes
        count = self.record_count
        if not count:
            self.base_timestamp_ms = record[0]
        elif bound_bytes > self.limit_bytes:
            if not self._has_room(record):
                return 0
            bound_bytes = self.bound_bytes + record_bytes
        # A signal's handler may raise after any call: numbers and records change in one step.
        self.bound_bytes = bound_bytes
        self.record_count = count = count + 1
        self._pending.append(record)
        return count

    def remembers(self, record: PendingRecord) -> bool:
        """Whether this very record was taken, and is not packed yet."""
        return any(each is record for each in self._pending)

    def _has_room(self, record: PendingRecord) -> bool:
        """Decides by the exact sizes."""
        record_bytes = len(_pack_each((record,), self.record_count, self.base_timestamp_ms))
        return self.size_bytes + record_bytes <= self.limit_bytes

    def _pack(self) -> None:
        """Packs the remembered records. Then `bound_bytes` is the batch's exact size."""
        if not self._pending:
            return
        packed, latest_ms = _pack_records(self._pending, self._packed_count, self.base_timestamp_ms)
        pieces, pending = [*self._packed, packed], list[PendingRecord]()
        packed_bytes, latest_ms = self._packed_bytes + len(packed), max(self._max_timestamp_ms, latest_ms)
        # From here on without a call, after which a signal's handler may raise.
        self._packed, self._pending = pieces, pending
        self._packed_bytes = self.bound_bytes = packed_bytes
        self._packed_count, self._max_timestamp_ms = self.record_count, latest_ms

    @property
    def size_bytes(self) -> int:
        """The size of the batch without compression."""
        self._pack()
        return self._packed_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """-1 without records."""
        self._pack()
        return self._max_timestamp_ms

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
        self._pack()
        payload, stored_as = pack_payload(b"".join(self._packed), codec, self.record_count)
        return batches.seal(
            payload,
            record_count=self.record_count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self._max_timestamp_ms,
            attributes=stored_as | (batches.TRANSACTIONAL_BIT if transactional else 0),
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


# --- packing ---


def _pack_records(
    records: Sequence[PendingRecord], first_delta: int, base_timestamp_ms: int
) -> tuple[bytes, int]:
    """Returns the records packed one after the other, and their latest timestamp.

    The first one has the offset delta `first_delta`.
    """
    times, keys, values, headers = zip(*records, strict=True)
    distinct = set(times)
    latest_ms = max(distinct)
    if keys.count(None) != len(keys) or headers.count(NO_HEADERS) != len(headers):
        return _pack_each(records, first_delta, base_timestamp_ms), latest_ms
    try:
        lengths = list(map(len, values))
    except TypeError:  # a null value
        return _pack_each(records, first_delta, base_timestamp_ms), latest_ms
    is_uniform = lengths.count(lengths[0]) == len(lengths)
    longest = lengths[0] if is_uniform else max(lengths)
    in_table = (
        base_timestamp_ms <= min(distinct)
        and latest_ms - base_timestamp_ms < VARINT_TABLE_SIZE
        and longest < VARINT_TABLE_SIZE - RECORD_OVERHEAD_MAX_BYTES
        and first_delta + len(records) < VARINT_TABLE_SIZE
    )
    if not in_table:
        return _pack_each(records, first_delta, base_timestamp_ms), latest_ms
    if is_uniform and len(distinct) * SAME_TIME_RECORDS_MIN <= len(times):
        return _pack_uniform(times, values, first_delta, base_timestamp_ms), latest_ms
    return _pack_values(times, values, first_delta, base_timestamp_ms), latest_ms


def _pack_uniform(
    times: Sequence[int], values: Sequence[bytes], first_delta: int, base_timestamp_ms: int
) -> bytes:
    """Packs values of one length. All numbers are in the table, and few times differ.

    A record is five pieces: its length, attributes and time; its offset delta; the null key and the value's
    length; the value; the number of headers. Only the offset delta and the value change within a stretch.
    """
    table = VARINT_TABLE
    count = len(values)
    value_length = table[len(values[0])]
    pieces = [NO_HEADERS] * (5 * count)
    pieces[1::5] = table[first_delta : first_delta + count]
    pieces[2::5] = [NULL + value_length] * count
    pieces[3::5] = values
    start = 0
    while start < count:
        end = _stretch_end(times, start, first_delta)
        time = table[times[start] - base_timestamp_ms]
        length = 3 + len(time) + len(table[first_delta + start]) + len(value_length) + len(values[0])
        pieces[5 * start : 5 * end : 5] = [table[length] + ATTRIBUTES + time] * (end - start)
        start = end
    return b"".join(pieces)


def _stretch_end(times: Sequence[int], start: int, first_delta: int) -> int:
    """Returns where the time, or the number of bytes of the offset delta, changes after `start`."""
    end_max = len(times)
    for limit in (_ONE_BYTE_DELTAS, _TWO_BYTE_DELTAS):
        if first_delta + start < limit:
            end_max = min(end_max, limit - first_delta)
            break
    time_ms = times[start]
    if times[end_max - 1] == time_ms and times[start:end_max].count(time_ms) == end_max - start:
        return end_max
    end = start + 1
    while end < end_max and times[end] == time_ms:
        end += 1
    return end


def _pack_values(
    times: Sequence[int], values: Sequence[bytes], first_delta: int, base_timestamp_ms: int
) -> bytes:
    """Packs values without keys and headers. All numbers are in the table."""
    table = VARINT_TABLE
    pieces: list[bytes] = []
    for delta, (time_ms, value) in enumerate(zip(times, values, strict=True), first_delta):
        time = table[time_ms - base_timestamp_ms]
        packed_delta = table[delta]
        value_length = table[len(value)]
        length = 3 + len(time) + len(packed_delta) + len(value_length) + len(value)
        pieces += (table[length], ATTRIBUTES, time, packed_delta, NULL, value_length, value, NO_HEADERS)
    return b"".join(pieces)


def _pack_each(records: Iterable[PendingRecord], first_delta: int, base_timestamp_ms: int) -> bytes:
    """Packs records of any kind."""
    table, size = VARINT_TABLE, len(VARINT_TABLE)
    pieces: list[bytes] = []
    for delta, (timestamp_ms, key, value, packed_headers) in enumerate(records, first_delta):
        time_ms = timestamp_ms - base_timestamp_ms
        time = table[time_ms] if 0 <= time_ms < size else varint(time_ms)
        packed_delta = table[delta] if delta < size else varint(delta)
        key_length = NULL if key is None else varint(len(key))
        key = key or b""
        value_length = NULL if value is None else varint(len(value))
        value = value or b""
        length = 1 + len(time) + len(packed_delta) + len(key_length) + len(key)
        length += len(value_length) + len(value) + len(packed_headers)
        packed_length = table[length] if length < size else varint(length)
        pieces += (packed_length, ATTRIBUTES, time, packed_delta)
        pieces += (key_length, key, value_length, value, packed_headers)
    return b"".join(pieces)
