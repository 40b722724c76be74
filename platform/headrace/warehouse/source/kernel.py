"""The inner loop of the source, compiled by numba: copies the records of an unpacked batch into columns.

Owns the only use of numba. Importing it costs half a second, so `columns` imports it only when there is
enough to read. Knows no Arrow, no Spark, no socket.

Format: Kafka's record v2, see `wire.records`.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

ROWS, KEY_BYTES, VALUE_BYTES, BROKEN = 0, 1, 2, 3
"""The indexes of `Columns.state`. `BROKEN` is not 0 if the last records did not fit their lengths."""

OWN_TIMESTAMPS: Final = -(1 << 63)
TIMESTAMP_MAX_MS: Final = ((1 << 63) - 1) // 1000
"""Later timestamps, and those before its negative, are stored as this one: more µs do not fit a column."""
_FRAMING_SIZE_BYTES: Final = 5
_NO_SCHEMA_ID: Final = -1
# The position after a field that does not fit. Later reads return it, too: one check per record is enough.
PAST_ANY_END: Final = 1 << 62


# Arguments are plain tuples: a call takes numba three times as long to type with NamedTuples.
BatchFields = tuple[int, int, int, int, int]
"""From a batch's header: record count, base offset, last offset delta, base timestamp in ms, and the
timestamp in ms that every record has (the broker's append time), or `OWN_TIMESTAMPS` if each has its own.
"""
Selection = tuple[int, int, bool, bool, Bytes]
"""Which records to copy, `[from offset, to offset)`; whether to copy keys; whether to take Confluent's
framing off values; the suffix to append to such a value. A value without framing becomes null, its schema
id -1.
"""


class Columns(NamedTuple):
    """The columns that records are appended to, and `state`: how far they are filled.

    Keys and values are in Arrow's layout (row `n` ends at `ends[n + 1]`) but for validity: a byte per row.
    """

    state: Int64s
    offsets: Int64s
    timestamps_us: Int64s
    key_ends: Int32s
    key_valid: Bytes
    keys: Bytes
    value_ends: Int32s
    value_valid: Bytes
    values: Bytes
    schema_ids: Int32s


class _Record(NamedTuple):
    """Where the fields of one record are. The length of a null is -1."""

    timestamp_delta_ms: int
    offset_delta: int
    key_at: int
    key_length: int
    value_at: int
    value_length: int
    headers_at: int


def empty_columns(rows: int, key_bytes: int, value_bytes: int) -> Columns:
    """Returns columns with room for so many rows and bytes."""
    return Columns(
        state=np.zeros(4, np.int64),
        offsets=np.empty(rows, np.int64),
        timestamps_us=np.empty(rows, np.int64),
        key_ends=np.zeros(rows + 1, np.int32),
        key_valid=np.empty(rows, np.uint8),
        keys=np.empty(key_bytes, np.uint8),
        value_ends=np.zeros(rows + 1, np.int32),
        value_valid=np.empty(rows, np.uint8),
        values=np.empty(value_bytes, np.uint8),
        schema_ids=np.empty(rows, np.int32),
    )


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Shipped to an executor in a zip, where there is no folder to keep the compiled code in.
        return numba.njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    return compiled(function, inline="always")


@inlined
def read_varint(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    value = np.int64(0)
    shift = np.int64(0)
    while at < end and shift < 64:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
        shift += 7
    return np.int64(0), PAST_ANY_END


@inlined
def _bytes_field(data: Bytes, at: int, end: int) -> tuple[int, Any, int]:
    """Returns the start and the length of a field, and the position after it."""
    length, start = read_varint(data, at, end)
    return start, length, start + max(length, 0) if length <= end - start else PAST_ANY_END


@inlined
def _read_record(data: Bytes, at: int, end: int) -> _Record:
    timestamp_delta_ms, at = read_varint(data, at, end)
    offset_delta, at = read_varint(data, at, end)
    key_at, key_length, at = _bytes_field(data, at, end)
    value_at, value_length, at = _bytes_field(data, at, end)
    return _Record(timestamp_delta_ms, offset_delta, key_at, key_length, value_at, value_length, at)


@inlined
def _timestamp_us(base_ms: int, delta_ms: int) -> int:
    """Returns the sum, within the bounds of a column."""
    sum_ms = base_ms + delta_ms
    if ((base_ms ^ sum_ms) & (delta_ms ^ sum_ms)) < 0:
        sum_ms = TIMESTAMP_MAX_MS if base_ms > 0 else -TIMESTAMP_MAX_MS
    return min(max(sum_ms, -TIMESTAMP_MAX_MS), TIMESTAMP_MAX_MS) * 1000


@intrinsic  # type: ignore[untyped-decorator]
def _memcpy(_context: Any, target: Any, to: Any, source: Any, at: Any, length: Any) -> Any:
    # A loop over bytes is not recognised as a copy and runs at a fifth of the speed.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, to_index, second, at_index, count = arguments
        into = context.make_array(signature.args[0])(context, builder, first).data
        out_of = context.make_array(signature.args[2])(context, builder, second).data
        cgutils.raw_memcpy(
            builder, builder.gep(into, [to_index]), builder.gep(out_of, [at_index]), count, itemsize=1
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@inlined
def copy_bytes(source: Bytes, at: int, length: int, target: Bytes, to: int) -> int:
    if length <= 0:
        return to
    _memcpy(target, to, source, at, length)
    return to + length


@inlined
def _int32(data: Bytes, at: int) -> Any:
    return (
        (np.int32(data[at]) << 24)
        | (np.int32(data[at + 1]) << 16)
        | (np.int32(data[at + 2]) << 8)
        | np.int32(data[at + 3])
    )


@compiled
def copy_records(
    data: Bytes, batch: BatchFields, selection: Selection, columns: tuple[npt.NDArray[Any], ...]
) -> None:
    """Appends the selected records of `data` to the columns (`tuple(Columns)`), from row `state[ROWS]` on.

    Records are sound if they fit their lengths, and their offsets rise within those of the batch. The
    columns must have room for all of `data` and for a suffix per record. `state` advances only if all of
    `data` was sound.
    """
    record_count, base_offset, last_offset_delta, base_timestamp_ms, append_time_ms = batch
    from_offset, to_offset, with_keys, is_unframing, suffix = selection
    # Arrays are named once: each access through the tuple would count a reference.
    state, offsets, timestamps_us, key_ends, key_valid, keys, value_ends, value_valid, values, schema_ids = (
        columns
    )
    row, key_bytes, value_bytes = state[ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    size = data.size
    at = 0
    last_delta = -1
    state[BROKEN] = 1
    for _ in range(record_count):
        length, at = read_varint(data, at, size)
        if length < 1 or length > size - at:
            return
        end = at + length
        # The first byte holds attributes, of which none is defined.
        record = _read_record(data, at + 1, end)
        if record.headers_at > end or not last_delta < record.offset_delta <= last_offset_delta:
            return
        at = end
        last_delta = record.offset_delta
        offset = base_offset + record.offset_delta
        if not from_offset <= offset < to_offset:
            continue
        offsets[row] = offset
        if append_time_ms == OWN_TIMESTAMPS:
            timestamps_us[row] = _timestamp_us(base_timestamp_ms, record.timestamp_delta_ms)
        else:
            timestamps_us[row] = _timestamp_us(append_time_ms, 0)
        if with_keys:
            key_valid[row] = record.key_length >= 0
            key_bytes = copy_bytes(data, record.key_at, record.key_length, keys, key_bytes)
            key_ends[row + 1] = key_bytes
        value_at, value_length = record.value_at, record.value_length
        if not is_unframing:
            value_valid[row] = value_length >= 0
            value_bytes = copy_bytes(data, value_at, value_length, values, value_bytes)
        elif value_length >= _FRAMING_SIZE_BYTES and data[value_at] == 0:
            value_valid[row] = 1
            schema_ids[row] = _int32(data, value_at + 1)
            payload_at, payload_length = value_at + _FRAMING_SIZE_BYTES, value_length - _FRAMING_SIZE_BYTES
            value_bytes = copy_bytes(data, payload_at, payload_length, values, value_bytes)
            value_bytes = copy_bytes(suffix, 0, suffix.size, values, value_bytes)
        else:
            value_valid[row] = 0
            schema_ids[row] = _NO_SCHEMA_ID
        value_ends[row + 1] = value_bytes
        row += 1
    if at == size:
        state[ROWS], state[KEY_BYTES], state[VALUE_BYTES], state[BROKEN] = row, key_bytes, value_bytes, 0
