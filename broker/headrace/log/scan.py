"""Reading batch headers out of a segment file by hopping from one to the next.

Never searches for something that looks like a header: payloads can forge it. Reads through a window, so that
small batches cost one read for many and large ones are skipped without reading them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.log.errors import LogDamagedError
from headrace.log.files import OpenFile
from headrace.wire.batch import HEADER_SIZE_BYTES, LENGTH_END_BYTES, BatchHeader, read_header
from headrace.wire.errors import CorruptBatchError

WINDOW_BYTES: Final = 32 * 1024

_STEP = struct.Struct(">qi23xq14xi")  # baseOffset, batchLength, maxTimestamp, recordCount


class Step(NamedTuple):
    """What a lookup needs of a batch."""

    address: int
    size_bytes: int
    max_timestamp_ms: int
    record_count: int


def steps(file: OpenFile, base_address: int, address: int, end_address: int) -> Iterator[Step]:
    """Every batch from `address` (where one begins) to `end_address`; `base_address` is that of the file's
    start.

    Raises `LogDamagedError` where the stored address or the length is not what it must be.
    """
    window, window_address = b"", address
    while address < end_address:
        at = address - window_address
        if at + HEADER_SIZE_BYTES > len(window):
            window, window_address, at = os.pread(file.fd, WINDOW_BYTES, address - base_address), address, 0
            if len(window) < HEADER_SIZE_BYTES:
                raise LogDamagedError(f"{file.path}: cut inside the batch at address {address}")
        stored, length, max_timestamp_ms, count = _STEP.unpack_from(window, at)
        size_bytes = LENGTH_END_BYTES + length
        if stored != address or size_bytes < HEADER_SIZE_BYTES or address + size_bytes > end_address:
            raise LogDamagedError(
                f"{file.path}: no batch at address {address} (offset {stored}, length {length}); "
                "the file was changed after it was written: move the partition's directory away"
            )
        yield Step(address, size_bytes, max_timestamp_ms, count)
        address += size_bytes


def headers(file: OpenFile, base_address: int, address: int, end_address: int) -> Iterator[BatchHeader]:
    """Like `steps`, with the whole header (producer id, epoch and sequence too)."""
    window, window_address = b"", address
    while address < end_address:
        at = address - window_address
        if at + HEADER_SIZE_BYTES > len(window):
            window, window_address, at = os.pread(file.fd, WINDOW_BYTES, address - base_address), address, 0
        try:
            header = read_header(window, at)
        except CorruptBatchError as error:
            raise LogDamagedError(f"{file.path}: at address {address}: {error}") from None
        if header.base_offset != address or address + header.size_bytes > end_address:
            raise LogDamagedError(
                f"{file.path}: the batch at address {address} says offset {header.base_offset}"
            )
        yield header
        address += header.size_bytes
