"""Decodes the payloads of a read into an event's Arrow columns.

Owns the Arrow layout of decoded events, and which rows are sound: decoded, with texts in UTF-8, with times in
the years 1 to 9999, and with an event time in the range of the warehouse's hours.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.warehouse.layout import (
    DAY_MAX,
    DAY_MIN,
    DEAD_HOUR,
    HOUR_MS,
    HOUR_NUMBER_MAX,
    TIME_MAX_US,
    TIME_MIN_US,
)
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.program import EventColumn, Program

EVENT_TIME: Final = ("header", "time")
TEXTS_SIZE_MAX_BYTES: Final = (1 << 31) - 1
"""Arrow's limit for the texts of one column in one batch."""


@dataclass(frozen=True)
class Payloads:
    """Avro records in `data`: where each starts and ends, and its schema id."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    schema_ids: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Events:
    """The decoded columns, and each row's hour: `DEAD_HOUR` if it could not be decoded."""

    columns: list[pa.Array]
    hours: npt.NDArray[np.int32]


def decode(payloads: Payloads, program: Program, timestamps_us: npt.NDArray[np.int64] | None) -> Events:
    """Decodes the payloads. The hour is that of `header.time`, or of `timestamps_us` if they are given."""
    # Imported here because importing numba takes half a second, and the driver does not need it.
    from headrace.warehouse.source import interpreter

    rows = payloads.starts.size
    cells = interpreter.empty_cells(program.integers, program.reals, program.texts, program.valids, rows)
    sound = np.empty(rows, np.bool_)
    records = (payloads.data, payloads.starts, payloads.ends, _entries(payloads.schema_ids, program))
    interpreter.run(records, program.ops, program.tables, tuple(cells), sound)
    _refuse(_with_impossible_times(program.columns, cells, rows), cells, sound)
    columns = _arrays(payloads.data, program, cells, rows)
    is_invalid = _with_invalid_texts(columns, rows)
    if is_invalid.any():
        _refuse(is_invalid, cells, sound)
        columns = _arrays(payloads.data, program, cells, rows)
    if timestamps_us is None:
        time = program.leaf(*EVENT_TIME)
        timestamps_us = cells.integers[time.slot]
        sound &= cells.valids[time.valid_slot].astype(np.bool_)
    hours = timestamps_us // (HOUR_MS * 1000)
    sound &= (hours >= 0) & (hours <= HOUR_NUMBER_MAX)
    return Events(columns, np.where(sound, hours, DEAD_HOUR).astype(np.int32))


def _arrays(data: Any, program: Program, cells: Any, rows: int) -> list[pa.Array]:
    """Returns the columns with what the interpreter wrote into the cells."""
    # Imported here because importing numba takes half a second, and the driver does not need it.
    from headrace.warehouse.source import interpreter

    def texts(column: EventColumn) -> tuple[Any, Any]:
        starts, sizes = cells.text_starts[column.slot], cells.text_sizes[column.slot]
        if (total := int(sizes.sum())) > TEXTS_SIZE_MAX_BYTES:
            raise SourceError(
                f"{rows} values of {column.name} have {total} bytes: too many for one Arrow batch"
            )
        target, ends = np.empty(total, np.uint8), np.empty(rows + 1, np.int32)
        interpreter.copy_texts(data, program.pool, starts, sizes, ends, target)
        return ends, target

    def array(column: EventColumn) -> pa.Array:
        valid = cells.valids[column.valid_slot]
        validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if column.kind == "record":
            children = [array(child) for child in column.children]
            return pa.Array.from_buffers(column.type, rows, [validity], children=children)
        if column.kind == "text":
            ends, target = texts(column)
            buffers = [validity, pa.py_buffer(ends), pa.py_buffer(target)]
            return pa.Array.from_buffers(column.type, rows, buffers)
        held = cells.reals if column.kind == "real" else cells.integers
        numbers = pa.py_buffer(_narrow(held[column.slot], column.type))
        return pa.Array.from_buffers(column.type, rows, [validity, numbers])

    return [array(column) for column in program.columns]


# --- values that no reader of the table could show ---


def _refuse(is_refused: npt.NDArray[np.bool_], cells: Any, sound: npt.NDArray[np.bool_]) -> None:
    """Leaves nothing of these rows, as if they could not be decoded."""
    if not is_refused.any():
        return
    sound[is_refused] = False
    for values in cells:
        values[:, is_refused] = 0


def _with_impossible_times(columns: Iterable[EventColumn], cells: Any, rows: int) -> npt.NDArray[np.bool_]:
    """Returns which rows have a time or a date outside of the years 1 to 9999; null is 0, the year 1970."""
    is_refused = np.zeros(rows, np.bool_)
    for column in columns:
        if column.kind == "record":
            is_refused |= _with_impossible_times(column.children, cells, rows)
        elif pa.types.is_temporal(column.type):
            is_date = pa.types.is_date(column.type)
            least, most = (DAY_MIN, DAY_MAX) if is_date else (TIME_MIN_US, TIME_MAX_US)
            numbers = cells.integers[column.slot]
            is_refused |= (numbers < least) | (numbers > most)
    return is_refused


def _with_invalid_texts(columns: Iterable[pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    """Returns which rows have a string that is not UTF-8.

    Arrow checks a column at once, at the speed of reading it; the rows of a bad one are looked at in turn.
    """
    is_invalid = np.zeros(rows, np.bool_)
    for column in columns:
        if pa.types.is_struct(column.type):
            children = (column.field(index) for index in range(column.type.num_fields))
            is_invalid |= _with_invalid_texts(children, rows)
        elif pa.types.is_string(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                values = column.view(pa.binary()).to_pylist()
                is_invalid |= np.fromiter(map(_is_not_utf8, values), np.bool_, rows)
    return is_invalid


def _is_not_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def _entries(schema_ids: npt.NDArray[np.int32], program: Program) -> npt.NDArray[np.int64]:
    """Where the program of each row begins; -1 for an id without one."""
    entries = np.full(schema_ids.size, -1, np.int64)
    for schema_id, entry in program.entries.items():
        entries[schema_ids == schema_id] = entry
    return entries


def _narrow(numbers: Any, kind: pa.DataType) -> Any:
    """The numbers in the width that Arrow has for this type."""
    if pa.types.is_boolean(kind):
        return np.packbits(numbers.astype(np.bool_), bitorder="little")
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return numbers.astype(np.int32)
    return numbers.astype(np.float32) if pa.types.is_float32(kind) else numbers
