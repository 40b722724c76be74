"""The compiled loop of the decoder: runs a `program` over Avro records and fills columns.

Owns the meaning of the operations. One compiled function serves all schemas, so a new schema costs no
compilation. A record that does not fit its schema exactly, or does not end where its bytes end, fails: all
its columns become null.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.warehouse.source.kernel import (
    PAST_ANY_END,
    Bytes,
    Int64s,
    compiled,
    copy_bytes,
    inlined,
    read_varint,
)
from headrace.warehouse.source.opcodes import Op

# Plain numbers, which numba compiles in as constants.
_END, _LONG, _TEXT, _INT = int(Op.END), int(Op.LONG), int(Op.TEXT), int(Op.INT)
_BRANCH, _JUMP, _BOOLEAN, _ENUM = int(Op.BRANCH), int(Op.JUMP), int(Op.BOOLEAN), int(Op.ENUM)
_FIXED, _REAL_OF_INT, _REAL_OF_LONG = int(Op.FIXED), int(Op.REAL_OF_INT), int(Op.REAL_OF_LONG)
_REAL_OF_FLOAT, _REAL_OF_DOUBLE = int(Op.REAL_OF_FLOAT), int(Op.REAL_OF_DOUBLE)
_NULL_INTEGER, _NULL_REAL = int(Op.NULL_INTEGER), int(Op.NULL_REAL)
_NULL_TEXT, _NULL_RECORD = int(Op.NULL_TEXT), int(Op.NULL_RECORD)
_CONSTANT_INTEGER, _CONSTANT_REAL = int(Op.CONSTANT_INTEGER), int(Op.CONSTANT_REAL)
_CONSTANT_TEXT, _SKIP_INT, _SKIP_LONG = int(Op.CONSTANT_TEXT), int(Op.SKIP_INT), int(Op.SKIP_LONG)
_SKIP_TEXT, _SKIP_BOOLEAN, _SKIP_FIXED = int(Op.SKIP_TEXT), int(Op.SKIP_BOOLEAN), int(Op.SKIP_FIXED)

_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1


class Cells(NamedTuple):
    """The decoded values: an array for each kind of column, with a row for each column (slot).

    A text is where its bytes are: from `text_starts` in the data, or, if that is negative, from
    `-1 - text_starts` in the program's pool. `valids` is 0 where a column is null.
    """

    integers: npt.NDArray[np.int64]
    reals: npt.NDArray[np.float64]
    text_starts: npt.NDArray[np.int64]
    text_sizes: npt.NDArray[np.int64]
    valids: npt.NDArray[np.uint8]


def empty_cells(integers: int, reals: int, texts: int, valids: int, rows: int) -> Cells:
    """Returns room for so many columns and rows."""
    return Cells(
        np.empty((integers, rows), np.int64),
        np.empty((reals, rows), np.float64),
        np.empty((texts, rows), np.int64),
        np.empty((texts, rows), np.int64),
        np.ones((valids, rows), np.uint8),
    )


@inlined
def _scaled(value: int, scale: int, at: int) -> tuple[int, int]:
    """Returns the product, and the position or, after an overflow, `PAST_ANY_END`."""
    if scale != 1 and not -(_LONG_MAX // scale) <= value <= _LONG_MAX // scale:
        return 0, PAST_ANY_END
    return value * scale, at


@inlined
def _int(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value, at = read_varint(data, at, end)
    if not _INT_MIN <= value <= _INT_MAX:
        return 0, PAST_ANY_END
    return value, at


@inlined
def _text(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Returns the start, the size, and the position after it."""
    size, start = read_varint(data, at, end)
    if start > end or size < 0 or size > end - start:
        return 0, 0, PAST_ANY_END
    return start, size, start + size


@inlined
def _little_endian(data: Bytes, at: int, size: int) -> Any:
    bits = np.int64(0)
    for index in range(size):
        bits |= np.int64(data[at + index]) << (8 * index)
    return bits


@inlined
def _read_value(op: Any, row: int, data: Bytes, at: int, end: int, cells: Any) -> int:
    """Runs an operation that reads a number or a text into a column; returns the position after it."""
    integers, _, text_starts, text_sizes, _ = cells
    code, slot = op[0], op[1]
    if code == _LONG:
        value, at = read_varint(data, at, end)
        integers[slot, row], at = _scaled(value, op[3], at)
    elif code == _TEXT:
        text_starts[slot, row], text_sizes[slot, row], at = _text(data, at, end)
    elif code == _INT:
        value, at = _int(data, at, end)
        integers[slot, row], at = _scaled(value, op[3], at)
    elif code == _BOOLEAN:
        if at < end and data[at] <= 1:
            integers[slot, row] = data[at]
            at += 1
        else:
            at = PAST_ANY_END
    else:
        fits = op[3] <= end - at
        text_starts[slot, row] = at
        text_sizes[slot, row] = op[3] if fits else 0
        at = at + op[3] if fits else PAST_ANY_END
    return at


@inlined
def _read_enum(op: Any, row: int, data: Bytes, at: int, end: int, tables: Int64s, cells: Any) -> int:
    index, at = _int(data, at, end)
    table, count = tables[op[3]], tables[op[3] + 1]
    if at > end or not 0 <= index < count or tables[table + 2 * index + 1] < 0:
        return PAST_ANY_END
    cells[2][op[1], row] = -1 - tables[table + 2 * index]
    cells[3][op[1], row] = tables[table + 2 * index + 1]
    return at


@inlined
def _read_real(op: Any, row: int, data: Bytes, at: int, end: int, bits: Int64s, reals: Any) -> int:
    code = op[0]
    if code in (_REAL_OF_INT, _REAL_OF_LONG):
        value, at = _int(data, at, end) if code == _REAL_OF_INT else read_varint(data, at, end)
        # Rounded once: by way of a double, a float could be rounded twice.
        reals[op[1], row] = np.float64(np.float32(value)) if op[3] else np.float64(value)
        return at
    size = 4 if code == _REAL_OF_FLOAT else 8
    if size > end - at:
        return PAST_ANY_END
    bits[0] = _little_endian(data, at, size)
    reals[op[1], row] = bits.view(np.float32)[0] if size == 4 else bits.view(np.float64)[0]
    return at + size


@inlined
def _set_constant(op: Any, row: int, tables: Int64s, bits: Int64s, cells: Any) -> None:
    integers, reals, text_starts, text_sizes, valids = cells
    code, slot = op[0], op[1]
    if code == _CONSTANT_INTEGER:
        integers[slot, row] = op[3]
    elif code == _CONSTANT_REAL:
        bits[0] = tables[op[3]]
        reals[slot, row] = bits.view(np.float64)[0]
    elif code == _CONSTANT_TEXT:
        text_starts[slot, row] = -1 - tables[op[3]]
        text_sizes[slot, row] = tables[op[3] + 1]
    else:
        valids[op[2], row] = 0
        if code == _NULL_INTEGER:
            integers[slot, row] = 0
        elif code == _NULL_REAL:
            reals[slot, row] = 0
        elif code == _NULL_TEXT:
            text_starts[slot, row] = text_sizes[slot, row] = 0


@inlined
def _skip(op: Any, data: Bytes, at: int, end: int) -> int:
    code = op[0]
    if code == _SKIP_TEXT:
        _, _, at = _text(data, at, end)
    elif code == _SKIP_LONG:
        _, at = read_varint(data, at, end)
    elif code == _SKIP_INT:
        value, at = _int(data, at, end)
        if op[1] >= 0 and not 0 <= value < op[1]:
            at = PAST_ANY_END
    elif code == _SKIP_BOOLEAN:
        at = at + 1 if at < end and data[at] <= 1 else PAST_ANY_END
    else:
        at = at + op[1] if op[1] <= end - at else PAST_ANY_END
    return at


@compiled
def run(
    records: tuple[Bytes, Int64s, Int64s, Int64s],
    ops: npt.NDArray[np.int64],
    tables: Int64s,
    cells: tuple[Any, ...],
    sound: npt.NDArray[np.bool_],
) -> None:
    """Decodes every record into its row of `cells` (`tuple(Cells)`), and sets `sound` where that succeeded.

    `records`: the data, where each record starts and ends in it, and where its program begins, or -1.
    """
    data, starts, ends, entries = records
    integers, reals, text_starts, text_sizes, valids = cells
    bits = np.zeros(1, np.int64)
    for row in range(starts.size):
        at, end, place = starts[row], ends[row], entries[row]
        if place < 0:
            at = PAST_ANY_END
        while at <= end:
            op = ops[place]
            code = op[0]
            place += 1
            if code == _END:
                break
            if code <= _INT or code in (_BOOLEAN, _FIXED):
                at = _read_value(op, row, data, at, end, cells)
            elif code == _BRANCH:
                index, at = read_varint(data, at, end)
                if 0 <= index < op[2]:
                    place = tables[op[1] + index]
                else:
                    at = PAST_ANY_END
            elif code == _JUMP:
                place = op[1]
            elif code == _ENUM:
                at = _read_enum(op, row, data, at, end, tables, cells)
            elif code <= _REAL_OF_DOUBLE:
                at = _read_real(op, row, data, at, end, bits, reals)
            elif code <= _CONSTANT_TEXT:
                _set_constant(op, row, tables, bits, cells)
            else:
                at = _skip(op, data, at, end)
        sound[row] = at == end
        if at != end:
            integers[:, row] = 0
            reals[:, row] = 0
            text_starts[:, row] = 0
            text_sizes[:, row] = 0
            valids[:, row] = 0


@compiled
def copy_texts(data: Bytes, pool: Bytes, starts: Int64s, sizes: Int64s, ends: Any, target: Bytes) -> None:
    """Copies the texts of one column one after the other; `ends[n + 1]` becomes the end of row `n`."""
    to = 0
    ends[0] = 0
    for row in range(starts.size):
        if starts[row] >= 0:
            to = copy_bytes(data, starts[row], sizes[row], target, to)
        else:
            to = copy_bytes(pool, -1 - starts[row], sizes[row], target, to)
        ends[row + 1] = to
