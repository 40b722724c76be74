"""The records of a foreign batch, walked without being kept: how many lie in which bucket of time.

Every length is checked before it is believed: the sender may have written anything below a right checksum.
Decompression, the numbers of one batch's buckets and the size of a varint have bounds. Format:
https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import Final

from headrace.audit.times import bucket_start
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.compression import Codec, decompress
from headrace.wire.errors import CorruptBatchError, DecompressionLimitError, WireError
from headrace.wire.primitives import Buffer
from headrace.wire.records import RECORD_SIZE_MIN_BYTES
from headrace.wire.varints import read_more

DECODED_MAX_BYTES: Final = 64 * 1024 * 1024  # of one batch's records, unpacked
RUNS_PER_BATCH_MAX: Final = 10_000  # changes of bucket from record to record


class UnreadableRecordsError(Exception):
    """A batch whose records contradict its header, or each other.

    `is_count_believable`: whether as many records as the header claims may be there.
    """

    def __init__(self, problem: str, *, is_count_believable: bool) -> None:
        self.is_count_believable = is_count_believable
        super().__init__(problem)


def bucket_runs(buffer: Buffer, at: int, header: BatchHeader, bucket_ms: int) -> list[tuple[int, int]]:
    """Returns (start of bucket, number of records) for each run of records of one bucket, in log order.

    Raises `UnreadableRecordsError`. The caller has checked that the whole batch is in the buffer.
    """
    runs: list[tuple[int, int]] = []
    bucket, low, high, count = 0, 0, 0, 0  # the open run holds times in [low, high)
    for time_ms in record_timestamps(buffer, at, header):
        if low <= time_ms < high:
            count += 1
            continue
        following = bucket_start(time_ms, bucket_ms)
        if count and following == bucket:  # both outside of year 1 to 9999
            count += 1
            continue
        if count:
            runs.append((bucket, count))
        if len(runs) >= RUNS_PER_BATCH_MAX:
            problem = f"its records change their bucket of time more than {RUNS_PER_BATCH_MAX} times"
            raise UnreadableRecordsError(problem, is_count_believable=True)
        bucket, count = following, 1
        low, high = (bucket, bucket + bucket_ms) if bucket <= time_ms < bucket + bucket_ms else (0, 0)
    if count:
        runs.append((bucket, count))
    return runs


def record_timestamps(buffer: Buffer, at: int, header: BatchHeader) -> list[int]:
    """Returns the timestamps (ms) of a batch's records, in order. Raises `UnreadableRecordsError`."""
    data = _unpacked(memoryview(buffer)[at + HEADER_SIZE_BYTES : at + header.size_bytes], header)
    if header.record_count * RECORD_SIZE_MIN_BYTES > len(data):
        problem = f"its header claims {header.record_count} records in {len(data)} bytes"
        raise UnreadableRecordsError(problem, is_count_believable=False)
    try:
        return _walk(data, header)
    except (IndexError, WireError) as error:
        problem = "a record ends beyond its batch" if isinstance(error, IndexError) else str(error)
        raise UnreadableRecordsError(problem, is_count_believable=True) from None


def _unpacked(payload: memoryview, header: BatchHeader) -> bytes:
    try:
        if header.codec is Codec.NONE:
            return bytes(payload)
        return decompress(header.codec, payload, limit_bytes=DECODED_MAX_BYTES)
    except DecompressionLimitError as error:
        fits = header.record_count * RECORD_SIZE_MIN_BYTES <= DECODED_MAX_BYTES
        raise UnreadableRecordsError(str(error), is_count_believable=fits) from None
    except (WireError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableRecordsError(str(error), is_count_believable=False) from None


def _walk(data: bytes, header: BatchHeader) -> list[int]:
    """Returns the records' timestamps. Raises `CorruptBatchError`, or `IndexError` behind the last byte."""
    base_ms = header.base_timestamp_ms
    stamps: list[int] = []
    at = 0
    for number in range(header.record_count):
        length, at = _number(data, at)
        end = at + length
        if length < RECORD_SIZE_MIN_BYTES - 1 or end > len(data):
            raise CorruptBatchError(f"record {number} claims {length} bytes, {len(data) - at} are left")
        delta_ms, at = _number(data, at + 1)  # behind one byte of attributes
        stamps.append(base_ms + delta_ms)
        _offset_delta, at = _number(data, at)
        at = _field_end(data, at, end, number)  # key
        at = _field_end(data, at, end, number)  # value
        headers, at = _number(data, at)
        if headers < 0 or headers > end - at:
            raise CorruptBatchError(f"record {number} claims {headers} headers in {end - at} bytes")
        for _ in range(headers):
            at = _field_end(data, at, end, number, can_be_null=False)
            at = _field_end(data, at, end, number)
        if at != end:
            raise CorruptBatchError(f"record {number} does not end where its length says")
    if at != len(data):
        raise CorruptBatchError(f"{len(data) - at} bytes follow the last record")
    return stamps


def _number(data: bytes, at: int) -> tuple[int, int]:
    raw = data[at]
    at += 1
    if raw > 0x7F:
        raw, at = read_more(data, at, raw)
    return (raw >> 1) ^ -(raw & 1), at


def _field_end(data: bytes, at: int, end: int, number: int, *, can_be_null: bool = True) -> int:
    """Returns where the bytes end whose length stands at `at`."""
    length, at = _number(data, at)
    if length == -1 and can_be_null:
        return at
    if length < 0 or length > end - at:
        raise CorruptBatchError(f"record {number} holds a field of {length} bytes, {end - at} are left")
    return at + length
