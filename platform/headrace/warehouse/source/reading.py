"""Reads the batches of one range, reconnecting when the connection or leader is lost.

Owns the order of requests. It requests the next response before it yields the batches of this one, so that
the broker's sendfile and our copying overlap. Knows no columns.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.warehouse.source.connection import Address, SourceConnection, fetch_frame, fetched_partition
from headrace.warehouse.source.errors import (
    BrokersUnreachableError,
    CorruptBatchesError,
    DataLossError,
    NoSuchTopicError,
    SourceError,
)
from headrace.warehouse.source.examining import Batch, EndUnknownError, Examiner
from headrace.warehouse.source.options import EARLIEST, RETRY_PAUSE_MS, SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.wire.errors import ErrorCode, ProtocolError, WireError

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient

REQUEST_SIZE_MIN_BYTES: Final = 256 << 10
MENDING: Final = (
    "`headrace log check` beside the broker names all damage; restore the file, or run `headrace log "
    "set-aside` there, and repeat"
)


def read_batches(
    range_: Range,
    options: SourceOptions,
    leader: Address | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Batch]:
    """Yields every data batch that has records in the range, in order; the first and last may have others.

    A bad batch has its problem, unless the option `onCorrupt` is `fail`; it was read twice.
    The range must end at or before the log's end. `leader` is the broker to try first. Raises a
    `SourceError`: `DataLossError` if a batch no longer exists and losses are not allowed,
    `CorruptBatchesError`, `BrokersUnreachableError` after the request timeout without any progress.
    """
    return _RangeReader(range_, options, leader, clock, sleep).batches()


class _RangeReader:
    """Reads one range, reconnecting when the connection or leader is lost."""

    def __init__(
        self,
        range_: Range,
        options: SourceOptions,
        leader: Address | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._range = range_
        self._options = options
        self._leader = leader
        self._clock = clock
        self._sleep = sleep
        self._timeout_s = options.request_timeout_ms / 1000
        self._metadata: MetadataClient | None = None
        self._suspect = -1  # the position of a bad batch, which is read once more over another connection
        self._examiner = Examiner(range_.from_offset)
        self._advance(range_.from_offset)

    def batches(self) -> Iterator[Batch]:
        try:
            while self._position < self._range.to_offset:
                try:
                    yield from self._attempt()
                except (OSError, WireError) as error:
                    self._recover(error)
        finally:
            if self._metadata is not None:
                self._metadata.close()

    def _advance(self, position: int) -> None:
        self._position = position
        self._deadline = self._clock() + self._timeout_s

    def _attempt(self) -> Iterator[Batch]:
        """Yields batches over one connection. Raises an `OSError` or a `WireError` if it ends too early.

        Ends at a bad batch, too: the next attempt reads it once more.
        """
        range_ = self._range
        connection = SourceConnection(self._leader or self._present_leader(), self._timeout_s)
        try:
            for batch in _stream(connection, range_, self._position, self._options, self._examiner):
                if batch is None:
                    self._position = range_.to_offset
                    return
                if batch.problem:
                    if self._suspect != self._position:
                        self._suspect = self._position
                        return
                    self._refuse(batch)
                if not batch.header.is_control or batch.problem:
                    self._check_committed(batch)
                    yield batch
                self._advance(batch.header.next_offset)
        except EndUnknownError as error:
            if self._suspect == self._position:
                raise SourceError(
                    f"{_name(range_)}: the bytes at offset {self._position} are damaged, and nothing says "
                    f"where the next batch begins: {error}. {MENDING}"
                ) from error
            self._suspect = self._position
            return
        finally:
            connection.close()
        raise TimeoutError("the broker throttles this client")

    def _refuse(self, batch: Batch) -> None:
        if self._options.on_corrupt == "fail":
            raise CorruptBatchesError(refusal(self._range, batch, batch.problem))

    def _check_committed(self, batch: Batch) -> None:
        if self._options.is_committed_only and batch.header.is_transactional and not batch.problem:
            raise SourceError(
                f"{_name(self._range)} at offset {batch.header.base_offset}: a transaction wrote these "
                "records, and the source cannot tell whether it was committed; read them with Spark's Kafka "
                "source, or, with all that was called off, without kafka.isolation.level"
            )

    def _recover(self, error: OSError | WireError) -> None:
        """Prepares another attempt. Raises a `SourceError` if none would help."""
        where = f"{_name(self._range)} at offset {self._position}"
        code = error.code if isinstance(error, ProtocolError) else None
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._position = self._after_loss()
            return
        if isinstance(error, WireError) and not (code and code.retriable):
            raise SourceError(f"{where}: {error}") from error
        if self._clock() >= self._deadline and code is ErrorCode.CORRUPT_MESSAGE:
            problem = f"its broker cannot read the log there ({error})"
            raise SourceError(f"{where}: {problem}. {MENDING}") from error
        if self._clock() >= self._deadline and code is ErrorCode.OFFSET_NOT_AVAILABLE:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    "COULD_NOT_READ_OFFSET_RANGE",
                    f"Could not read records in offset [{self._position}, {self._range.to_offset}) for topic "
                    f"partition {_name(self._range)}: {error}.",
                )
            self._position = self._range.to_offset
            return
        if self._clock() >= self._deadline:
            raise BrokersUnreachableError(
                f"{where}: no data for {self._timeout_s:.0f} s ({error}); check its broker, then repeat"
            ) from error
        self._leader = None
        self._sleep(RETRY_PAUSE_MS / 1000)

    def _after_loss(self) -> int:
        """Returns the earliest offset that is left, if a loss is allowed."""
        range_, options = self._range, self._options
        key = (range_.topic, range_.partition)
        earliest = self._cluster().offsets({key: EARLIEST})[key]
        if options.fail_on_data_loss or earliest <= self._position:
            raise DataLossError(
                "COULD_NOT_READ_OFFSET_RANGE",
                f"Could not read records in offset [{self._position}, {range_.to_offset}) for topic "
                f"partition {_name(range_)}; the earliest offset is {earliest}.",
            )
        return earliest

    def _present_leader(self) -> Address:
        partition = (self._range.topic, self._range.partition)
        leader = self._cluster().leaders_of([partition]).get(partition)
        if leader is None:
            raise NoSuchTopicError(f"topic {partition[0]!r} has no partition {partition[1]} any more")
        return leader

    def _cluster(self) -> "MetadataClient":
        if self._metadata is None:
            # Imported here because it takes 0.2 s, and a task that knows its leader does not need it.
            from headrace.warehouse.source.metadata import MetadataClient

            self._metadata = MetadataClient(
                self._options.bootstrap, self._timeout_s, clock=self._clock, sleep=self._sleep
            )
        return self._metadata


def _stream(
    connection: SourceConnection,
    range_: Range,
    position: int,
    options: SourceOptions,
    examiner: Examiner,
) -> Iterator[Batch | None]:
    """Yields the batches over one connection, until the range's end or a throttled response.

    Yields None at the end, which may come before `to_offset`: headrace's address may lie after the last
    record's offset, and Apache Kafka may have compacted the last records away.
    """
    size_bytes = _request_size_bytes(range_.to_offset - position, 1.0, options)
    connection.send(fetch_frame(range_.topic, range_.partition, position, size_bytes))
    examiner.resume_at(position)
    while True:
        result, is_throttled = fetched_partition(connection.receive())
        if result.error_code:
            raise ProtocolError(result.error_code, _name(range_))
        records = result.records
        assert not isinstance(records, int)
        if records is None or len(records) == 0:
            if not is_throttled:
                _check_shown(result.high_watermark, range_)
                yield None
            return
        address = result.address if result.address >= 0 else None
        found, end_unknown = examiner.whole_batches(records, address)
        if not found:
            # A broker returns the first batch whole, however large it is.
            raise end_unknown or SourceError(
                f"{_name(range_)} at offset {position}: {len(records)} bytes without a whole batch"
            )
        last = found[-1]
        if not position < last.header.next_offset <= result.high_watermark:
            raise SourceError(
                f"{_name(range_)} at offset {position}: the broker sent batches that end at "
                f"{last.header.next_offset}, of a log that ends at {result.high_watermark}"
            )
        bytes_per_offset = (last.at + last.header.size_bytes) / max(1, last.header.next_offset - position)
        position = last.header.next_offset
        more = position < range_.to_offset
        if more:
            size_bytes = _request_size_bytes(range_.to_offset - position, bytes_per_offset, options)
            connection.send(fetch_frame(range_.topic, range_.partition, position, size_bytes))
        for batch in found:
            header = batch.header
            if header.next_offset > range_.from_offset and header.base_offset < range_.to_offset:
                yield batch
        if not more:
            yield None
            return


def _check_shown(high_watermark: int, range_: Range) -> None:
    """Raises `ProtocolError` if nothing came because the broker does not show as much as the range has.

    A new leader shows it once its followers have fetched. What another leader has shown before is there.
    """
    if high_watermark < range_.to_offset:
        raise ProtocolError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"the log ends at {high_watermark}, before {range_.to_offset}"
        )


def refusal(range_: Range, batch: Batch, problem: str) -> str:
    """Names a bad batch, its cause, and the ways to go on."""
    return (
        f"{described(range_, batch, problem)}; the option onCorrupt=skip leaves such batches out, "
        "onCorrupt=keep gives rows that say so"
    )


def described(range_: Range, batch: Batch, problem: str) -> str:
    """Names a bad batch and its cause."""
    header = batch.header
    return (
        f"{_name(range_)}: the batch of {header.record_count} records at addresses {header.address} to "
        f"{header.next_offset} cannot be read: {problem}"
    )


def _request_size_bytes(left: int, bytes_per_offset: float, options: SourceOptions) -> int:
    """Estimates the bytes left. headrace: one byte per offset; Kafka: average record size per offset."""
    wanted = int(left * bytes_per_offset * 1.1) + REQUEST_SIZE_MIN_BYTES
    return min(wanted, options.fetch_size_bytes)


def _name(range_: Range) -> str:
    return f"{range_.topic}-{range_.partition}"
