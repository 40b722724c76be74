"""From batches to Arrow: columns filled batch by batch, given away as record batches of a handy size.

Owns the Arrow layout and the choice between the compiled loop (`kernel`) and a plain one for small reads
and for machines without numba. Both give the same columns.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import Batch
from headrace.wire.batch import HEADER_SIZE_BYTES
from headrace.wire.compression import Codec, decompress
from headrace.wire.records import Record, decode_records

ROWS_TARGET: Final = 16_384
SIZE_BYTES_TARGET: Final = 4 << 20
UNPACKED_SIZE_MAX_BYTES: Final = 256 << 20
COMPILED_FROM_SIZE_BYTES: Final = 2 << 20
"""Reading so much takes the plain loop as long as importing numba: a small read never does."""

END_MARK: Final = b"\xe5\x9d\xc3\x17\x6a\x08\xf1\xb2"
"""Stands behind every `payload`: a decoder that doesn't read exactly up to it has misread the record."""
FRAMING_SIZE_BYTES: Final = 5
NO_SCHEMA_ID: Final = -1
"""What `schemaId` is where a value has no framing."""

_CREATE_TIME: Final = 0
_LOG_APPEND_TIME: Final = 1


def record_batches(
    batches: Iterable[Batch],
    part: Range,
    schema: pa.Schema,
    decode: Callable[[bytes | None, int], Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of `batches` that lie in `part`, with the columns of `schema` (names of `options`).

    `decode` makes the column `value` of a raw value and its offset; None leaves values as they are.
    """
    can_compile = decode is None and "headers" not in schema.names and find_spec("numba") is not None
    seen_bytes = 0
    rows: _Rows = _PlainRows(part, schema, decode)
    for batch in batches:
        if can_compile and isinstance(rows, _PlainRows) and seen_bytes >= COMPILED_FROM_SIZE_BYTES:
            if rows.count:
                yield rows.take()
            rows = _CompiledRows(part, schema)
        if not rows.has_room(batch):
            yield rows.take()
        rows.append(batch)
        seen_bytes += batch.header.size_bytes
    if rows.count:
        yield rows.take()


class _Rows:
    """Rows on their way to one Arrow batch."""

    count = 0

    def __init__(self, part: Range, schema: pa.Schema) -> None:
        self._part = part
        self._schema = schema

    def has_room(self, batch: Batch) -> bool:
        """Whether `append(batch)` may be called; always true when empty."""
        raise NotImplementedError

    def append(self, batch: Batch) -> None:
        raise NotImplementedError

    def take(self) -> pa.RecordBatch:
        """Give away what is there, and be empty."""
        raise NotImplementedError

    def _same(self, value: Any, name: str, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(value, self._schema.field(name).type), count)


class _PlainRows(_Rows):
    def __init__(
        self, part: Range, schema: pa.Schema, decode: Callable[[bytes | None, int], Any] | None
    ) -> None:
        super().__init__(part, schema)
        self._decode = decode
        self._records: list[tuple[Record, int]] = []

    def has_room(self, batch: Batch) -> bool:
        return not self._records or len(self._records) + batch.header.record_count <= ROWS_TARGET

    def append(self, batch: Batch) -> None:
        header = batch.header
        kind = _LOG_APPEND_TIME if header.is_log_append_time else _CREATE_TIME
        for record in decode_records(batch.buffer, batch.at, limit_bytes=UNPACKED_SIZE_MAX_BYTES):
            if self._part.from_offset <= record.offset < self._part.to_offset:
                if kind == _LOG_APPEND_TIME:
                    record = record._replace(timestamp_ms=header.max_timestamp_ms)
                self._records.append((record, kind))
        self.count = len(self._records)

    def take(self) -> pa.RecordBatch:
        records, self._records, self.count = self._records, [], 0
        made = {name: self._column(name, records) for name in self._schema.names}
        return pa.RecordBatch.from_arrays(list(made.values()), schema=self._schema)

    def _column(self, name: str, records: list[tuple[Record, int]]) -> pa.Array:
        kind = self._schema.field(name).type
        if name == "topic":
            return self._same(self._part.topic, name, len(records))
        if name == "partition":
            return self._same(self._part.partition, name, len(records))
        if name == "timestamp":
            return pa.array([record.timestamp_ms * 1000 for record, _ in records], pa.int64()).cast(kind)
        values: list[Any]
        if name == "headers":
            values = [_headers(record) for record, _ in records]
        elif name == "value" and self._decode is not None:
            values = [self._decode(record.value, record.offset) for record, _ in records]
        elif name == "timestampType":
            values = [each for _, each in records]
        elif name == "payload":
            values = [_unframed(record.value)[1] for record, _ in records]
        elif name == "schemaId":
            values = [_unframed(record.value)[0] for record, _ in records]
        else:
            values = [getattr(record, name) for record, _ in records]
        return pa.array(values, kind)


class _CompiledRows(_Rows):
    """Columns as numpy arrays that `kernel.copy_records` fills; an Arrow batch takes them over as they
    are.
    """

    def __init__(self, part: Range, schema: pa.Schema) -> None:
        from headrace.warehouse.source import kernel

        super().__init__(part, schema)
        self._copy_records = kernel.copy_records
        self._mode = kernel.UNFRAMED if "payload" in schema.names else kernel.RAW
        self._with_keys = "key" in schema.names
        self._suffix = np.frombuffer(END_MARK if self._mode == kernel.UNFRAMED else b"", np.uint8)
        self._capacity = 0
        self._room_bytes = 0
        self._begin(ROWS_TARGET, SIZE_BYTES_TARGET)

    def _begin(self, rows: int, size_bytes: int) -> None:
        self._state = np.zeros(4, np.int64)
        self._capacity, self._room_bytes = rows, size_bytes
        self._kinds = np.empty(rows, np.int32)
        self._offsets = np.empty(rows, np.int64)
        self._timestamps = np.empty(rows, np.int64)
        self._key_ends = np.zeros(rows + 1, np.int32)
        self._key_valid = np.empty(rows, np.uint8)
        self._keys = np.empty(size_bytes if self._with_keys else 0, np.uint8)
        self._value_ends = np.zeros(rows + 1, np.int32)
        self._value_valid = np.empty(rows, np.uint8)
        self._values = np.empty(size_bytes, np.uint8)
        self._schema_ids = np.empty(rows, np.int32)
        self._header_starts = np.empty(rows, np.int64)

    def _needs_bytes(self, records_bytes: int, count: int) -> int:
        return records_bytes + count * len(self._suffix)

    def has_room(self, batch: Batch) -> bool:
        if not self.count:
            return True
        header = batch.header
        if self.count + header.record_count > self._capacity:
            return False
        if header.codec is not Codec.NONE:
            # How much it unpacks to is only known afterwards: `append` may have to make room.
            return int(self._state[2]) < self._room_bytes // 2
        used_bytes = max(int(self._state[1]), int(self._state[2]))
        return used_bytes + self._needs_bytes(header.size_bytes, header.record_count) <= self._room_bytes

    def append(self, batch: Batch) -> None:
        header, at = batch.header, batch.at
        packed = memoryview(batch.buffer)[at + HEADER_SIZE_BYTES : at + header.size_bytes]
        records: Any = packed
        if header.codec is not Codec.NONE:
            records = decompress(header.codec, packed, limit_bytes=UNPACKED_SIZE_MAX_BYTES)
        self._make_room(header.record_count, self._needs_bytes(len(records), header.record_count))
        before = self.count
        self._copy_records(
            np.frombuffer(records, np.uint8),
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            header.max_timestamp_ms if header.is_log_append_time else -1,
            self._part.from_offset,
            self._part.to_offset,
            self._mode,
            self._with_keys,
            self._suffix,
            self._state,
            self._offsets,
            self._timestamps,
            self._key_ends,
            self._key_valid,
            self._keys,
            self._value_ends,
            self._value_valid,
            self._values,
            self._schema_ids,
            self._header_starts,
        )
        if self._state[3]:
            # The plain reader says what is wrong with it.
            decode_records(batch.buffer, at, limit_bytes=UNPACKED_SIZE_MAX_BYTES)
            raise AssertionError(f"the compiled reader refused a sound batch at offset {header.base_offset}")
        self.count = int(self._state[0])
        self._kinds[before : self.count] = _LOG_APPEND_TIME if header.is_log_append_time else _CREATE_TIME

    def _make_room(self, rows: int, size_bytes: int) -> None:
        """Enough room for so much more: columns grow for a batch that is larger than a whole Arrow batch
        should be.
        """
        if self.count == 0 and (rows > self._capacity or size_bytes > self._room_bytes):
            self._begin(max(rows, ROWS_TARGET), max(size_bytes, SIZE_BYTES_TARGET))
            return
        used_bytes = max(int(self._state[1]), int(self._state[2]))
        if used_bytes + size_bytes > self._room_bytes:
            self._room_bytes = used_bytes + size_bytes
            self._values = _grown(self._values, self._room_bytes)
            if self._with_keys:
                self._keys = _grown(self._keys, self._room_bytes)

    def take(self) -> pa.RecordBatch:
        count = self.count
        arrays = [self._column(name, count) for name in self._schema.names]
        self.count = 0
        self._begin(ROWS_TARGET, SIZE_BYTES_TARGET)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, count: int) -> pa.Array:
        kind = self._schema.field(name).type
        if name == "topic":
            return self._same(self._part.topic, name, count)
        if name == "partition":
            return self._same(self._part.partition, name, count)
        if name == "key":
            return _binary(kind, count, self._key_ends, self._key_valid, self._keys)
        if name in ("value", "payload"):
            return _binary(kind, count, self._value_ends, self._value_valid, self._values)
        numbers = {
            "offset": self._offsets,
            "timestamp": self._timestamps,
            "timestampType": self._kinds,
            "schemaId": self._schema_ids,
        }[name]
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])


def _binary(kind: pa.DataType, count: int, ends: Any, valid: Any, data: Any) -> pa.Array:
    validity = None
    if not valid[:count].all():
        validity = pa.py_buffer(np.packbits(valid[:count], bitorder="little"))
    return pa.Array.from_buffers(
        kind, count, [validity, pa.py_buffer(ends), pa.py_buffer(data[: int(ends[count])])]
    )


def _grown(array: Any, size: int) -> Any:
    larger = np.empty(size, array.dtype)
    larger[: array.size] = array
    return larger


def _unframed(value: bytes | None) -> tuple[int, bytes | None]:
    if value is None or len(value) < FRAMING_SIZE_BYTES or value[0] != 0:
        return NO_SCHEMA_ID, None
    return int.from_bytes(value[1:5], "big", signed=True), value[FRAMING_SIZE_BYTES:] + END_MARK


def _headers(record: Record) -> list[dict[str, Any]] | None:
    # Spark's Kafka source gives null, not an empty list.
    return [{"key": key, "value": value} for key, value in record.headers] or None
