"""From Kafka's batches to Arrow record batches of a handy size.

Owns the Arrow layout, and the choice between the compiled loop (`kernel`) and a plain one, for small reads
and machines without numba. Both give the same columns.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.warehouse.source.errors import CorruptBatchesError
from headrace.warehouse.source.examining import Batch
from headrace.warehouse.source.options import PROBLEM_COLUMN, OnCorrupt
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import described, refusal
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.compression import Codec, decompress
from headrace.wire.errors import CorruptBatchError
from headrace.wire.records import RECORD_SIZE_MIN_BYTES, Record, decode_records

_log = logging.getLogger(__name__)

ROWS_TARGET: Final = 16_384
SIZE_BYTES_TARGET: Final = 4 << 20
UNPACKED_SIZE_MAX_BYTES: Final = 256 << 20
COMPILED_FROM_SIZE_BYTES: Final = 2 << 20
"""The plain loop reads so much in the time that importing numba takes."""

END_MARK: Final = b"\xe5\x9d\xc3\x17\x6a\x08\xf1\xb2"
"""The end of every `payload`. A decoder that does not stop exactly before it has misread the record."""
FRAMING_SIZE_BYTES: Final = 5
NO_SCHEMA_ID: Final = -1
"""The `schemaId` of a value without framing."""

KEPT_MAX_BYTES: Final = 1 << 20
"""Of a bad batch, as the value of its first row."""
PROBLEM_PREFIX: Final = "corrupt batch at addresses"
"""How the problem of a bad batch's row begins."""
OWN_TIMESTAMPS: Final = -(1 << 63)
TIMESTAMP_MAX_MS: Final = ((1 << 63) - 1) // 1000
"""The same as in `kernel`, whose import is slow."""

_CREATE_TIME: Final = 0
_LOG_APPEND_TIME: Final = 1


def record_batches(
    batches: Iterable[Batch],
    range_: Range,
    schema: pa.Schema,
    decode: Callable[[bytes | None, int], Any] | None = None,
    *,
    is_compiled: bool = False,
    on_corrupt: OnCorrupt = "fail",
) -> Iterator[pa.RecordBatch]:
    """Yields the records of `batches` in `range_`, with the columns of `schema` (names of `options`).

    `decode` turns a raw value and its offset into the column `value`; None leaves values as they are.
    `is_compiled`: the caller needs numba anyway, so the compiled loop reads small ranges, too.
    A batch is taken whole, or, if any of its records is broken, not at all: `on_corrupt` says what is done
    then. Raises `CorruptBatchesError`.
    """
    can_compile = decode is None and "headers" not in schema.names and find_spec("numba") is not None
    # The two reads of a load must agree on what is broken, and the loops need not in each case.
    is_compiled = is_compiled or (can_compile and on_corrupt == "keep")
    seen_bytes = 0
    rows: _Rows = _CompiledRows(range_, schema) if is_compiled else _PlainRows(range_, schema, decode)
    for batch in batches:
        if can_compile and isinstance(rows, _PlainRows) and seen_bytes >= COMPILED_FROM_SIZE_BYTES:
            if rows.count:
                yield rows.take()
            rows = _CompiledRows(range_, schema)
        if not rows.has_room(batch):
            yield rows.take()
        problem = batch.problem or _problem_of_append(rows, batch)
        if problem:
            if on_corrupt == "fail":
                raise CorruptBatchesError(refusal(range_, batch, problem))
            _log.warning("%s", described(range_, batch, problem))
            if on_corrupt == "keep":
                if rows.count:
                    yield rows.take()
                yield _kept(batch, problem, range_, schema)
        seen_bytes += batch.header.size_bytes
    if rows.count:
        yield rows.take()


def _problem_of_append(rows: "_Rows", batch: Batch) -> str:
    """Adds the batch's records to the rows; returns why that is impossible, or ""."""
    try:
        rows.append(batch)
    except CorruptBatchError as error:
        return str(error) or "its records are broken"
    return ""


def _kept(batch: Batch, problem: str, range_: Range, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a row for each record that a bad batch claims to have in the range.

    The first record's row has the batch's bytes as its value: nothing that was stored is thrown away.
    """
    header = batch.header
    base_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
    time_us = min(max(base_ms, -TIMESTAMP_MAX_MS), TIMESTAMP_MAX_MS) * 1000
    base_offset, next_offset = header.base_offset, header.next_offset
    if header.record_count < header.last_offset_delta + 1:
        base_offset = next_offset - max(1, header.record_count)
    offsets = range(max(base_offset, range_.from_offset), min(next_offset, range_.to_offset))
    data = batch.data
    text = f"{PROBLEM_PREFIX} {header.address} to {header.next_offset}: {problem}"
    if len(data) > KEPT_MAX_BYTES:
        text += f" (the value has only the first {KEPT_MAX_BYTES} of its {len(data)} bytes)"
    nothing: list[Any] = [None] * len(offsets)
    values = list(nothing)
    if offsets and offsets[0] == base_offset:
        values[0] = bytes(data[:KEPT_MAX_BYTES])
    same = {
        "topic": range_.topic,
        "partition": range_.partition,
        "timestampType": _timestamp_type(header),
        "schemaId": NO_SCHEMA_ID,
        PROBLEM_COLUMN: text,
    }
    arrays = []
    for field in schema:
        if field.name == "timestamp":
            array = pa.array([time_us] * len(offsets), pa.int64()).cast(field.type)
        elif field.name in same:
            array = pa.repeat(pa.scalar(same[field.name], field.type), len(offsets))
        else:
            array = pa.array({"offset": offsets, "value": values}.get(field.name, nothing), field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """The rows of the next Arrow batch."""

    count = 0

    def __init__(self, range_: Range, schema: pa.Schema) -> None:
        self._range = range_
        self._schema = schema

    def has_room(self, batch: Batch) -> bool:
        """Returns whether `append(batch)` may be called; always true without rows."""
        raise NotImplementedError

    def append(self, batch: Batch) -> None:
        raise NotImplementedError

    def take(self) -> pa.RecordBatch:
        """Returns the rows as an Arrow batch, and starts an empty one."""
        raise NotImplementedError

    def _same(self, value: Any, name: str, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(value, self._schema.field(name).type), count)


class _PlainRows(_Rows):
    def __init__(
        self, range_: Range, schema: pa.Schema, decode: Callable[[bytes | None, int], Any] | None
    ) -> None:
        super().__init__(range_, schema)
        self._decode = decode
        self._records: list[tuple[Record, int]] = []

    def has_room(self, batch: Batch) -> bool:
        return not self._records or len(self._records) + batch.header.record_count <= ROWS_TARGET

    def append(self, batch: Batch) -> None:
        header, kind = batch.header, _timestamp_type(batch.header)
        records = decode_records(batch.buffer, batch.at, limit_bytes=UNPACKED_SIZE_MAX_BYTES)
        _check_offsets(records, header)
        for record in records:
            if self._range.from_offset <= record.offset < self._range.to_offset:
                if kind == _LOG_APPEND_TIME:
                    record = record._replace(timestamp_ms=header.max_timestamp_ms)
                self._records.append((record, kind))
        self.count = len(self._records)

    def take(self) -> pa.RecordBatch:
        records, self._records, self.count = self._records, [], 0
        arrays = [self._column(name, records) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, records: list[tuple[Record, int]]) -> pa.Array:
        kind = self._schema.field(name).type
        if name == "topic":
            return self._same(self._range.topic, name, len(records))
        if name == "partition":
            return self._same(self._range.partition, name, len(records))
        if name == "timestamp":
            times_ms = (
                min(max(record.timestamp_ms, -TIMESTAMP_MAX_MS), TIMESTAMP_MAX_MS) for record, _ in records
            )
            return pa.array([time_ms * 1000 for time_ms in times_ms], pa.int64()).cast(kind)
        values: list[Any]
        if name == "headers":
            values = [_headers(record) for record, _ in records]
        elif name == "value" and self._decode is not None:
            values = [self._decode(record.value, record.offset) for record, _ in records]
        elif name == "timestampType":
            values = [timestamp_type for _, timestamp_type in records]
        elif name == "payload":
            values = [_unframed(record.value)[1] for record, _ in records]
        elif name == PROBLEM_COLUMN:
            values = [None] * len(records)
        elif name == "schemaId":
            values = [_unframed(record.value)[0] for record, _ in records]
        else:
            values = [getattr(record, name) for record, _ in records]
        return pa.array(values, kind)


class _CompiledRows(_Rows):
    """Numpy arrays that `kernel.copy_records` fills and an Arrow batch takes over without a copy."""

    def __init__(self, range_: Range, schema: pa.Schema) -> None:
        # Importing numba takes half a second, which only a large read gains back.
        from headrace.warehouse.source import kernel

        super().__init__(range_, schema)
        self._copy_records, self._empty_columns = kernel.copy_records, kernel.empty_columns
        self._with_keys = "key" in schema.names
        is_unframing = "payload" in schema.names
        self._suffix = np.frombuffer(END_MARK if is_unframing else b"", np.uint8)
        self._selection = (range_.from_offset, range_.to_offset, self._with_keys, is_unframing, self._suffix)
        self._begin(ROWS_TARGET, SIZE_BYTES_TARGET)

    def _begin(self, rows: int, size_bytes: int) -> None:
        self.count = self._key_bytes = self._value_bytes = 0
        self._capacity, self._room_bytes = rows, size_bytes
        self._columns = self._empty_columns(rows, size_bytes if self._with_keys else 0, size_bytes)
        self._timestamp_types = np.empty(rows, np.int32)

    def _needed_bytes(self, records_bytes: int, count: int) -> int:
        """Returns the size of the larger column after so many more records."""
        return max(self._key_bytes, self._value_bytes) + records_bytes + count * len(self._suffix)

    def has_room(self, batch: Batch) -> bool:
        if not self.count:
            return True
        header = batch.header
        if self.count + header.record_count > self._capacity:
            return False
        if header.codec is not Codec.NONE:
            # The unpacked size is known only after unpacking; `append` makes room if it has to.
            return self._value_bytes < self._room_bytes // 2
        return self._needed_bytes(header.size_bytes, header.record_count) <= self._room_bytes

    def append(self, batch: Batch) -> None:
        header, at = batch.header, batch.at
        packed = memoryview(batch.buffer)[at + HEADER_SIZE_BYTES : at + header.size_bytes]
        records: Any = packed
        if header.codec is not Codec.NONE:
            records = decompress(header.codec, packed, limit_bytes=UNPACKED_SIZE_MAX_BYTES)
        if header.record_count * RECORD_SIZE_MIN_BYTES > len(records):
            # Room is made for so many records, before any is read.
            raise CorruptBatchError(f"{header.record_count} records in {len(records)} bytes")
        self._make_room(header.record_count, self._needed_bytes(len(records), header.record_count))
        append_time_ms = header.max_timestamp_ms if header.is_log_append_time else OWN_TIMESTAMPS
        fields = (
            *(header.record_count, header.base_offset, header.last_offset_delta),
            *(header.base_timestamp_ms, append_time_ms),
        )
        columns = self._columns
        self._copy_records(np.frombuffer(records, np.uint8), fields, self._selection, tuple(columns))
        before = self.count
        self.count, self._key_bytes, self._value_bytes, is_broken = columns.state.tolist()
        if is_broken:
            # The plain reader names the problem, except that it allows longer varints.
            plain = decode_records(batch.buffer, at, limit_bytes=UNPACKED_SIZE_MAX_BYTES)
            _check_offsets(plain, header)
            raise CorruptBatchError("a record's numbers do not fit")
        self._timestamp_types[before : self.count] = _timestamp_type(header)

    def _make_room(self, rows: int, needed_bytes: int) -> None:
        """Enlarges the columns for a batch that is larger than a whole Arrow batch should be."""
        if self.count == 0 and (rows > self._capacity or needed_bytes > self._room_bytes):
            self._begin(max(rows, ROWS_TARGET), max(needed_bytes, SIZE_BYTES_TARGET))
        elif needed_bytes > self._room_bytes:
            self._room_bytes = needed_bytes
            self._columns = self._columns._replace(values=_grown(self._columns.values, needed_bytes))
            if self._with_keys:
                self._columns = self._columns._replace(keys=_grown(self._columns.keys, needed_bytes))

    def take(self) -> pa.RecordBatch:
        arrays = [self._column(name, self.count) for name in self._schema.names]
        self._begin(ROWS_TARGET, SIZE_BYTES_TARGET)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, count: int) -> pa.Array:
        kind, columns = self._schema.field(name).type, self._columns
        if name == "topic":
            return self._same(self._range.topic, name, count)
        if name == "partition":
            return self._same(self._range.partition, name, count)
        if name == "key":
            return _binary(kind, count, columns.key_ends, columns.key_valid, columns.keys)
        if name == PROBLEM_COLUMN:
            return pa.nulls(count, kind)
        if name in ("value", "payload"):
            return _binary(kind, count, columns.value_ends, columns.value_valid, columns.values)
        numbers = {
            "offset": columns.offsets,
            "timestamp": columns.timestamps_us,
            "timestampType": self._timestamp_types,
            "schemaId": columns.schema_ids,
        }[name]
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])


def _check_offsets(records: list[Record], header: BatchHeader) -> None:
    """Raises `CorruptBatchError` unless the offsets rise, within those of the batch."""
    before = header.base_offset - 1
    for record in records:
        if not before < record.offset < header.next_offset:
            raise CorruptBatchError(
                f"a record has offset {record.offset}, in a batch of the offsets {header.base_offset} to "
                f"{header.next_offset - 1}"
            )
        before = record.offset


def _timestamp_type(header: BatchHeader) -> int:
    return _LOG_APPEND_TIME if header.is_log_append_time else _CREATE_TIME


def _binary(kind: pa.DataType, count: int, ends: Any, valid: Any, data: Any) -> pa.Array:
    validity = None
    if not valid[:count].all():
        validity = pa.py_buffer(np.packbits(valid[:count], bitorder="little"))
    filled = pa.py_buffer(data[: int(ends[count])])
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(ends), filled])


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
