"""Tallies of a log range, from batch headers. Pure: bytes in, counts out; no I/O, no clock.

A batch of `client.Producer(batch_boundary_ms=…)` never crosses a bucket's edge, so its header is enough to
assign its records (producer id, epoch, sequences) to a bucket. The batches of other producers may hold any
timestamps in any order, so the records' timestamps are read. Both ways give the same tally for a batch within
one bucket: trusting a producer only saves work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from headrace.wire.batch import HEADER_SIZE_BYTES, SEQUENCE_SPAN, BatchHeader, hop
from headrace.wire.compression import Codec, decompress
from headrace.wire.errors import WireError
from headrace.wire.primitives import Buffer

BUCKET_DEFAULT_MS: Final = 600_000
HOUR_MS: Final = 3_600_000
NO_PRODUCER: Final = -1
DECODED_MAX_BYTES: Final = 64 * 1024 * 1024  # of one batch's records; a larger batch is counted by its header


class Span(NamedTuple):
    """A run of records of one producer and bucket, in log order.

    With a producer id the records have the sequences `first_sequence` to `last_sequence`, without a gap.
    Without one (`producer_id` and sequences -1) only `record_count` is known. The records lie in the batches
    from `first_address` to `end_address`, between which there may be batches of other producers.
    """

    bucket_start_ms: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    record_count: int
    first_address: int
    end_address: int


def check_bucket_ms(bucket_ms: int) -> int:
    """Returns `bucket_ms`. Raises `ValueError` unless it divides an hour: hours are sums of buckets."""
    if bucket_ms <= 0 or HOUR_MS % bucket_ms:
        raise ValueError(f"a bucket of {bucket_ms} ms does not divide an hour; 600000 does, for example")
    return bucket_ms


class RunningTally:
    """The growing tally of one log range: feed it buffers of whole batches, in log order.

    `trusted(producer_id)`: whether each batch of a producer is known to hold events of one bucket only.
    """

    def __init__(self, bucket_ms: int, trusted: Callable[[int], bool] | None = None) -> None:
        self.bucket_ms = check_bucket_ms(bucket_ms)
        self._trusted = trusted or (lambda _producer_id: False)
        self._spans: list[Span] = []
        # (bucket, producer id, epoch) → index of its last span
        self._open: dict[tuple[int, int, int], int] = {}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans so far, in the order of their first records."""
        return tuple(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def feed(self, buffer: Buffer) -> None:
        """Counts every complete batch in `buffer`. Raises `CorruptBatchError` where no batch can start."""
        for at, header in hop(buffer):
            if header.is_control or header.record_count == 0:
                continue
            for span in self._of_batch(buffer, at, header):
                self._add(span)

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Appends the spans of the range that follows."""
        for span in spans:
            self._add(span)

    def _of_batch(self, buffer: Buffer, at: int, header: BatchHeader) -> Iterator[Span]:
        base_bucket = header.base_timestamp_ms - header.base_timestamp_ms % self.bucket_ms
        if header.is_log_append_time:
            base_bucket = header.max_timestamp_ms - header.max_timestamp_ms % self.bucket_ms
            runs: Iterable[tuple[int, int]] = ((base_bucket, header.record_count),)
        elif header.record_count == 1 or self._fits_by_header(header, base_bucket):
            runs = ((base_bucket, header.record_count),)
        else:
            runs = self._runs_by_decoding(buffer, at, header, base_bucket)
        sequence = header.base_sequence
        for bucket, count in runs:
            yield from _spans_of_run(bucket, header, sequence, count)
            if sequence >= 0:
                sequence = (sequence + count) % SEQUENCE_SPAN

    def _fits_by_header(self, header: BatchHeader, base_bucket: int) -> bool:
        one_bucket = base_bucket <= header.max_timestamp_ms < base_bucket + self.bucket_ms
        return one_bucket and header.producer_id >= 0 and self._trusted(header.producer_id)

    def _runs_by_decoding(
        self, buffer: Buffer, at: int, header: BatchHeader, base_bucket: int
    ) -> Iterable[tuple[int, int]]:
        try:
            stamps = record_timestamps(buffer, at, header)
        except (WireError, IndexError):
            # Damaged by its sender: the checksum is right.
            return ((base_bucket, header.record_count),)
        bucket_ms = self.bucket_ms
        starts = (stamp - stamp % bucket_ms for stamp in stamps)
        return [(bucket, sum(1 for _ in same)) for bucket, same in groupby(starts)]

    def _add(self, span: Span) -> None:
        key = (span.bucket_start_ms, span.producer_id, span.producer_epoch)
        index = self._open.get(key)
        if index is not None:
            last = self._spans[index]
            joined = join(last, span)
            if joined is not None:
                self._spans[index] = joined
                return
        self._open[key] = len(self._spans)
        self._spans.append(span)


def join(last: Span, following: Span) -> Span | None:
    """Joins two spans of a bucket, producer and epoch; None if the second does not follow on the first."""
    if last.producer_id != NO_PRODUCER and following.first_sequence != last.last_sequence + 1:
        return None
    return last._replace(
        last_sequence=following.last_sequence,
        record_count=last.record_count + following.record_count,
        end_address=following.end_address,
    )


def record_timestamps(buffer: Buffer, at: int, header: BatchHeader) -> list[int]:
    """Returns the timestamps (ms) of a batch's records, in order.

    Reads only each record's length and timestamp delta. Raises `CorruptBatchError` or `IndexError` if the
    records contradict the header. Format: https://kafka.apache.org/documentation/#record
    """
    records: Buffer = memoryview(buffer)[at + HEADER_SIZE_BYTES : at + header.size_bytes]
    if header.codec is not Codec.NONE:
        records = decompress(header.codec, records, limit_bytes=DECODED_MAX_BYTES)
    base_ms = header.base_timestamp_ms
    stamps: list[int] = []
    position = 0
    for _ in range(header.record_count):
        length, position = _varint(records, position)
        delta, _after = _varint(records, position + 1)  # one byte of record attributes
        stamps.append(base_ms + delta)
        position += length
    if position > len(records):
        raise IndexError("records end early")
    return stamps


def _varint(buffer: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _spans_of_run(bucket: int, header: BatchHeader, sequence: int, count: int) -> Iterator[Span]:
    address, end_address = header.address, header.next_offset
    if header.producer_id < 0 or sequence < 0:
        yield Span(bucket, NO_PRODUCER, -1, -1, -1, count, address, end_address)
        return
    while count:  # a run over the wrap of sequence numbers is two spans
        piece = min(count, SEQUENCE_SPAN - sequence)
        yield Span(
            bucket,
            header.producer_id,
            header.producer_epoch,
            sequence,
            sequence + piece - 1,
            piece,
            address,
            end_address,
        )
        sequence = (sequence + piece) % SEQUENCE_SPAN
        count -= piece
