"""The inner loop of the source, compiled by numba: records of an unpacked batch, copied column by column.

Owns the only use of numba. Importing it needs numba and costs half a second: `columns` does so only where
there is enough to read. Knows no Arrow, no Spark, no socket.

Format: Kafka's record v2, see `wire.records`.
"""

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

ROWS, KEY_BYTES, VALUE_BYTES, BROKEN = 0, 1, 2, 3
"""What the four numbers of `state` are. `BROKEN` is not 0 where records don't fit their lengths."""
STATE_SIZE: Final = 4

RAW: Final = 0
UNFRAMED: Final = 1


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Shipped to an executor in a zip: there is no folder to keep the compiled code in.
        return numba.njit(**options)(function)


def _read_varint(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    value = np.int64(0)
    shift = np.int64(0)
    while at < end and shift < 64:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
        shift += 7
    return np.int64(0), -1


_varint = _compiled(_read_varint, inline="always")


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


def _copy_bytes(source: Bytes, at: int, length: int, target: Bytes, to: int) -> int:
    if length <= 0:
        return to
    _memcpy(target, to, source, at, length)
    return to + length


_copy = _compiled(_copy_bytes, inline="always")


def _copy_records(
    data: Bytes,
    record_count: int,
    base_offset: int,
    base_timestamp_ms: int,
    fixed_timestamp_ms: int,
    from_offset: int,
    to_offset: int,
    value_mode: int,
    with_keys: bool,
    suffix: Bytes,
    state: Int64s,
    offsets: Int64s,
    timestamps_us: Int64s,
    key_ends: Int32s,
    key_valid: Bytes,
    keys: Bytes,
    value_ends: Int32s,
    value_valid: Bytes,
    values: Bytes,
    schema_ids: Int32s,
    header_starts: Int64s,
) -> None:
    rows, key_bytes, value_bytes = state[0], state[1], state[2]
    size = data.size
    at = 0
    state[3] = 1
    for _ in range(record_count):
        length, at = _varint(data, at, size)
        end = at + length
        if at < 0 or length < 1 or end > size:
            return
        timestamp_delta, at = _varint(data, at + 1, end)
        if at < 0:
            return
        offset_delta, at = _varint(data, at, end)
        if at < 0:
            return
        key_length, at = _varint(data, at, end)
        if at < 0 or key_length > end - at:
            return
        key_at = at
        at += max(key_length, 0)
        value_length, at = _varint(data, at, end)
        if at < 0 or value_length > end - at:
            return
        value_at = at
        at += max(value_length, 0)
        offset = base_offset + offset_delta
        if from_offset <= offset < to_offset:
            offsets[rows] = offset
            if fixed_timestamp_ms >= 0:
                timestamps_us[rows] = fixed_timestamp_ms * 1000
            else:
                timestamps_us[rows] = (base_timestamp_ms + timestamp_delta) * 1000
            header_starts[rows] = at
            if with_keys:
                key_valid[rows] = key_length >= 0
                key_bytes = _copy(data, key_at, key_length, keys, key_bytes)
                key_ends[rows + 1] = key_bytes
            if value_mode == 0:
                value_valid[rows] = value_length >= 0
                value_bytes = _copy(data, value_at, value_length, values, value_bytes)
            elif value_length >= 5 and data[value_at] == 0:
                schema_ids[rows] = (
                    (np.int32(data[value_at + 1]) << 24)
                    | (np.int32(data[value_at + 2]) << 16)
                    | (np.int32(data[value_at + 3]) << 8)
                    | np.int32(data[value_at + 4])
                )
                value_valid[rows] = 1
                value_bytes = _copy(data, value_at + 5, value_length - 5, values, value_bytes)
                value_bytes = _copy(suffix, 0, suffix.size, values, value_bytes)
            else:
                schema_ids[rows] = -1
                value_valid[rows] = 0
            value_ends[rows + 1] = value_bytes
            rows += 1
        at = end
    if at == size:
        state[0], state[1], state[2], state[3] = rows, key_bytes, value_bytes, 0


copy_records = _compiled(_copy_records)
"""Append the records whose offsets lie in `[from_offset, to_offset)` to the columns, from row
`state[ROWS]` on.

The columns must have room for all of `data`, and for a `suffix` a record; `state` is changed only if all
of `data` was sound. `fixed_timestamp_ms` is -1 unless the batch's time is the broker's. Mode `UNFRAMED`
takes Confluent's framing off values, fills `schema_ids` (-1 where there is no framing: the value is then
null) and puts `suffix` behind each value. `header_starts` are positions in `data`.
"""
