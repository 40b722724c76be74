"""Tallies of a log range, from batch headers. Pure: bytes in, counts out; no I/O, no clock.

A batch of `client.Producer(batch_boundary_ms=…)` never crosses a bucket's edge, so its header is enough to
assign its records (producer id, epoch, sequences) to a bucket. The batches of other producers may hold any
timestamps in any order, so the records' timestamps are read. Both ways give the same tally for a batch within
one bucket: trusting a producer only saves work.

A batch whose records cannot be read counts by its header, unless even that is not credible; either way it is
noted as damaged. A batch's content belongs to the span of its first record; it is not known if the broker
stamped the batch, whose checksum is then not the producer's. Times outside of year 1 to 9999 share one bucket
(`audit.times`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from headrace.audit.batches.damage import NO_PRODUCER, Damage, damage_of
from headrace.audit.batches.scan import UnreadableRecordsError, bucket_runs
from headrace.audit.times import HOUR_MS, bucket_start
from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader, hop
from headrace.wire.content import NO_BATCHES, added, content_of
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

BUCKET_DEFAULT_MS: Final = 600_000
SPAN_RECORDS_MAX: Final = 2**31 - 1  # a span's count is an Avro int


class Span(NamedTuple):
    """A run of records of one producer and bucket, in log order.

    With a producer id the records have the sequences `first_sequence` to `last_sequence`, without a gap.
    Without one (`producer_id` and sequences -1) only `record_count` is known. The records lie in the batches
    from `first_address` to `end_address`, between which there may be batches of other producers. `content`:
    of the batches that begin in this span (`wire.content`); None if it is not known.
    """

    bucket_start_ms: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    record_count: int
    first_address: int
    end_address: int
    content: int | None = None


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
        self.damages: list[Damage] = []
        """The batches so far whose records cannot be read, in log order."""
        self.last_position = 0
        """Where the last batch that was counted begins in its buffer."""
        self.content: int | None = NO_BATCHES
        """Of all batches so far (`wire.content`); None if it is not known of all."""
        self._spans: list[Span] = []
        # (bucket, producer id, epoch) → index of its last span
        self._open: dict[tuple[int, int, int], int] = {}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans so far, in the order of their first records."""
        return tuple(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def feed(
        self, buffer: Buffer, address: int | None = None, *, at: int = 0, spans_max: int | None = None
    ) -> int:
        """Counts the complete batches in `buffer` from `at` on; returns the position behind the last one.

        `address`: of the buffer's first byte; stops before a batch that is not numbered for its place, or
        where no batch can start. Without it, raises `CorruptBatchError` there. Stops behind the batch with
        which there are `spans_max` spans or more.
        """
        try:
            for position, header in hop(buffer, at):
                if address is not None and not header.is_stored_at(address + position):
                    break
                at = position + header.size_bytes
                self.last_position = position
                if header.is_control or header.record_count == 0:
                    continue
                for span in self._of_batch(buffer, position, header):
                    self._add(span)
                if spans_max is not None and len(self._spans) >= spans_max:
                    break
        except CorruptBatchError:
            if address is None:
                raise
        return at

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Appends the spans of the range that follows."""
        for span in spans:
            self._add(span)

    def _of_batch(self, buffer: Buffer, at: int, header: BatchHeader) -> Iterator[Span]:
        time_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
        base_bucket = bucket_start(time_ms, self.bucket_ms)
        runs: Iterable[tuple[int, int]] = ((base_bucket, header.record_count),)
        if not header.is_log_append_time and not self._fits_by_header(header, base_bucket):
            try:
                runs = bucket_runs(buffer, at, header, self.bucket_ms)
            except UnreadableRecordsError as error:
                believed = error.is_count_believable
                self.damages.append(damage_of(header, str(error), count_is_known=believed, in_tally=True))
                if not believed:
                    self.content = None
                    return
        sequence = header.base_sequence
        content = None if header.is_log_append_time else content_of(buffer, at)
        for bucket, count in runs:
            yield from _spans_of_run(bucket, header, sequence, count, content)
            content = None if content is None else NO_BATCHES
            if sequence >= 0:
                sequence = (sequence + count) % SEQUENCE_SPAN

    def _fits_by_header(self, header: BatchHeader, base_bucket: int) -> bool:
        if header.producer_id < 0 or not self._trusted(header.producer_id):
            return False
        return (
            header.record_count == 1 or base_bucket <= header.max_timestamp_ms < base_bucket + self.bucket_ms
        )

    def _add(self, span: Span) -> None:
        self.content = added(self.content, span.content)
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
    """Joins two spans of a bucket, producer and epoch; None if they must stay apart."""
    if last.producer_id != NO_PRODUCER and following.first_sequence != last.last_sequence + 1:
        return None
    if last.record_count + following.record_count > SPAN_RECORDS_MAX:
        return None
    return last._replace(
        last_sequence=following.last_sequence,
        record_count=last.record_count + following.record_count,
        end_address=following.end_address,
        content=added(last.content, following.content),
    )


def _spans_of_run(
    bucket: int, header: BatchHeader, sequence: int, count: int, content: int | None
) -> Iterator[Span]:
    address, end_address = header.address, header.next_offset
    if header.producer_id < 0 or sequence < 0:
        yield Span(bucket, NO_PRODUCER, -1, -1, -1, count, address, end_address, content)
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
            content,
        )
        content = None if content is None else NO_BATCHES
        sequence = (sequence + piece) % SEQUENCE_SPAN
        count -= piece
