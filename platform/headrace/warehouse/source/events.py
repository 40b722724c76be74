"""Decodes the payloads of a read into an event's Arrow columns.

Owns the Arrow layout of decoded events, and which rows are sound: decoded, with an event time in the range of
the warehouse's hours.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.warehouse.layout import DEAD_HOUR, HOUR_MS, HOUR_NUMBER_MAX
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

    def texts(column: EventColumn) -> tuple[Any, Any]:
        starts, sizes = cells.text_starts[column.slot], cells.text_sizes[column.slot]
        if (total := int(sizes.sum())) > TEXTS_SIZE_MAX_BYTES:
            raise SourceError(
                f"{rows} values of {column.name} have {total} bytes: too many for one Arrow batch"
            )
        target, ends = np.empty(total, np.uint8), np.empty(rows + 1, np.int32)
        interpreter.copy_texts(payloads.data, program.pool, starts, sizes, ends, target)
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

    columns = [array(column) for column in program.columns]
    if timestamps_us is None:
        time = program.leaf(*EVENT_TIME)
        timestamps_us = cells.integers[time.slot]
        sound &= cells.valids[time.valid_slot].astype(np.bool_)
    hours = timestamps_us // (HOUR_MS * 1000)
    sound &= (hours >= 0) & (hours <= HOUR_NUMBER_MAX)
    return Events(columns, np.where(sound, hours, DEAD_HOUR).astype(np.int32))


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
