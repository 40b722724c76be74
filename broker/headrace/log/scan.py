"""Reads the batch headers of a segment file one after the other.

Never searches for bytes that look like a header: a payload can contain such bytes. Reads through a window:
one read covers many small batches, and the content of large ones is not read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.log.errors import LogReadError, damaged
from headrace.log.files import FileSlice, OpenFile
from headrace.wire.batch import HEADER_SIZE_BYTES, LENGTH_END_BYTES, BatchHeader, read_header, verify
from headrace.wire.errors import CorruptBatchError, WireError

WINDOW_BYTES: Final = 32 * 1024
CHECKED_MAX_BYTES: Final = 16 * 1024 * 1024  # of a batch behind damage, whose checksum a lookup computes

# baseOffset, batchLength, lastOffsetDelta, maxTimestamp, recordCount
_STEP = struct.Struct(">qi11xi8xq14xi")


class Step(NamedTuple):
    """The fields of a batch that lookups need."""

    address: int
    size_bytes: int
    max_timestamp_ms: int
    record_count: int


def steps(file: OpenFile, base_address: int, address: int, end_address: int) -> Iterator[Step]:
    """Yields every batch from `address` (its start) to `end_address`; `base_address` is the file's first.

    Raises `LogDamagedError` if a stored address or length is wrong, `LogReadError`.
    """
    window, window_address = b"", address
    while address < end_address:
        at = address - window_address
        if at + HEADER_SIZE_BYTES > len(window):
            window, window_address, at = _read(file, base_address, address), address, 0
            if len(window) < HEADER_SIZE_BYTES:
                raise damaged(file.path, address, "the file ends inside a batch")
        base_offset, length, last_delta, max_timestamp_ms, count = _STEP.unpack_from(window, at)
        size_bytes = LENGTH_END_BYTES + length
        if (
            base_offset != address + size_bytes - count
            or last_delta != count - 1
            or size_bytes < HEADER_SIZE_BYTES
            or address + size_bytes > end_address
        ):
            raise damaged(
                file.path,
                address,
                f"no batch begins here (offsets {base_offset} + {last_delta}, length {length}, "
                f"{count} records)",
            )
        yield Step(address, size_bytes, max_timestamp_ms, count)
        address += size_bytes


def headers(file: OpenFile, base_address: int, address: int, end_address: int) -> Iterator[BatchHeader]:
    """Yields whole headers (with producer id, epoch and sequence); otherwise like `steps`."""
    window, window_address = b"", address
    while address < end_address:
        at = address - window_address
        if at + HEADER_SIZE_BYTES > len(window):
            window, window_address, at = _read(file, base_address, address), address, 0
        try:
            header = read_header(window, at)
        except CorruptBatchError as error:
            raise damaged(file.path, address, str(error)) from None
        if not header.is_stored_at(address) or address + header.size_bytes > end_address:
            raise damaged(
                file.path,
                address,
                f"the batch has {header.size_bytes} bytes and the offsets {header.base_offset} + "
                f"{header.last_offset_delta}",
            )
        yield header
        address += header.size_bytes


def has_batch_at(file: OpenFile, base_address: int, address: int, end_address: int) -> bool:
    """Whether a whole batch with this address and a right checksum begins there, and ends at `end_address` at
    the latest.

    For an address that a reader names, which got it from this log, or a checkpoint. Never to search: payloads
    can forge a batch.
    """
    at = address - base_address
    try:
        header = read_header(FileSlice(file, at, HEADER_SIZE_BYTES).read())
        if header.size_bytes > CHECKED_MAX_BYTES or address + header.size_bytes > end_address:
            return False
        verify(FileSlice(file, at, header.size_bytes).read(), 0, header)
    except (WireError, OSError):
        return False
    return header.is_stored_at(address)


def _read(file: OpenFile, base_address: int, address: int) -> bytes:
    try:
        return os.pread(file.fd, WINDOW_BYTES, address - base_address)
    except OSError as error:
        raise LogReadError(f"{file.path}: address {address} cannot be read: {error.strerror}") from error
