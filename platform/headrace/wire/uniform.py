"""Unpacks batches of uniform records many at a time: values of one length, without keys and headers.

Owns recognising such a batch. `wire.records` unpacks any batch, more slowly. Whatever does not have exactly
the expected bytes is left to it, broken records included.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace.wire.errors import CorruptBatchError
from headrace.wire.varints import NO_HEADERS, NULL, VARINT_TABLE, VARINT_TABLE_SIZE, read_zigzag

RUN_RECORDS_MIN: Final = 8
"""Records with shorter runs are not worth the search for the end of each run."""

# From these numbers on, the varint of an offset delta has one more byte.
_LONGER_FROM: Final = (64, 8192, VARINT_TABLE_SIZE)


class UniformRecords(NamedTuple):
    """Values and timestamp deltas of a batch whose offset deltas are 0, 1, 2 and so on."""

    timestamp_deltas_ms: list[int]
    values: list[bytes]


class _Shape(NamedTuple):
    """The bytes of a record: head (length, attributes, time), offset delta, middle (key, value's length),
    value, and one byte for no headers.
    """

    head_bytes: int
    delta_bytes: int
    middle_bytes: int
    value_bytes: int
    timestamp_delta_ms: int

    @property
    def size_bytes(self) -> int:
        return self.head_bytes + self.delta_bytes + self.middle_bytes + self.value_bytes + len(NO_HEADERS)


def unpack_uniform(data: bytes, record_count: int) -> UniformRecords | None:
    """Returns the records if all of `data` is `record_count` uniform records, else None."""
    if not RUN_RECORDS_MIN <= record_count <= VARINT_TABLE_SIZE:
        return None
    times: list[int] = []
    values: list[bytes] = []
    at = 0
    while len(values) < record_count:
        delta = len(values)
        shape = _shape_at(data, at, delta)
        if shape is None:
            return None
        end = min(record_count, next(limit for limit in _LONGER_FROM if limit > delta))
        run = _run_length(data, at, shape, end - delta)
        if run < min(RUN_RECORDS_MIN, end - delta):
            return None
        layout = "{}s{}s{}s{}s1s".format(*shape[:4])
        view = memoryview(data)[at : at + run * shape.size_bytes]
        heads, deltas, middles, run_values, tails = zip(*struct.iter_unpack(layout, view), strict=True)
        if (
            heads.count(heads[0]) != run
            or deltas != VARINT_TABLE[delta : delta + run]
            or middles.count(middles[0]) != run
            or tails.count(NO_HEADERS) != run
        ):
            return None
        times += [shape.timestamp_delta_ms] * run
        values += run_values
        at += len(view)
    return UniformRecords(times, values) if at == len(data) else None


def _shape_at(data: bytes, at: int, delta: int) -> _Shape | None:
    """Returns the shape of the record at `at` if it is a value alone, and has this offset delta."""
    try:
        length, after_length = read_zigzag(data, at)
        time_ms, head_end = read_zigzag(data, after_length + 1)  # after the attributes
        packed_delta = VARINT_TABLE[delta]
        middle_at = head_end + len(packed_delta)
        value_bytes, value_at = read_zigzag(data, middle_at + len(NULL))
    except (IndexError, CorruptBatchError):
        return None
    end = value_at + value_bytes + len(NO_HEADERS)
    is_plain = data[head_end:middle_at] == packed_delta and data[middle_at : middle_at + 1] == NULL
    if not is_plain or value_bytes < 0 or end != after_length + length or end > len(data):
        return None
    return _Shape(head_end - at, len(packed_delta), value_at - middle_at, value_bytes, time_ms)


def _run_length(data: bytes, at: int, shape: _Shape, count_max: int) -> int:
    """Returns how many records from `at` on seem to have the same head: exact if times never fall."""
    size_bytes = shape.size_bytes
    head = data[at : at + shape.head_bytes]
    count_max = min(count_max, (len(data) - at) // size_bytes)
    same, other = 1, count_max + 1
    probe = count_max  # most often they all have
    while same < probe < other:
        start = at + (probe - 1) * size_bytes
        if data[start : start + len(head)] == head:
            same = probe
        else:
            other = probe
        probe = (same + other) // 2
    return same
