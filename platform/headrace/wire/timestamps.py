"""The times of a batch's records, one after the other: for a search that needs one record out of thousands.

Builds no record and no list, so the memory it takes is that of the unpacked batch. `wire.records` unpacks
whole records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.wire import batch as batches
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.compression import decompress
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer
from headrace.wire.varints import read_more

INT64_SPAN: Final = 1 << 64
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


def timestamps(buffer: Buffer, at: int = 0, *, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields `(offset, timestamp)` of each record of the batch at `at`.

    A sum beyond int64 wraps, as in Kafka. `limit_bytes` bounds the unpacked records. Raises
    `CorruptBatchError`, after the records before the broken one; `DecompressionLimitError`.
    """
    header = batches.read_header(buffer, at)
    view = memoryview(buffer)[at + HEADER_SIZE_BYTES : at + header.size_bytes]
    data = decompress(header.codec, view, limit_bytes=limit_bytes)
    try:
        yield from _read(data, header)
    except IndexError:
        raise CorruptBatchError(f"batch at offset {header.base_offset} ends inside a record") from None


def _read(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    base_ms, size, end = header.base_timestamp_ms, len(data), 0
    for offset in range(header.base_offset, header.base_offset + header.record_count):
        raw = data[end]
        start = end + 1
        if raw > 0x7F:
            raw, start = read_more(data, start, raw)
        end = start + (raw >> 1)
        if raw & 1 or end > size:
            raise CorruptBatchError(f"record of {(raw >> 1) ^ -(raw & 1)} bytes, {size - start} left")
        raw = data[start + 1]  # after the attributes
        if raw > 0x7F:
            raw, _ = read_more(data, start + 2, raw)
        timestamp_ms = base_ms + ((raw >> 1) ^ -(raw & 1))
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            timestamp_ms = (timestamp_ms - INT64_MIN) % INT64_SPAN + INT64_MIN
        yield offset, timestamp_ms
