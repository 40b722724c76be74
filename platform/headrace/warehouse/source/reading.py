"""Reading one range: fetch, hop over batches, unpack; again after a lost connection or a moved leader.

Owns the order of things on the wire. While one response is being worked on, the next one is already asked
for: the broker's sendfile and our copying overlap. Yields batches; knows no columns.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.warehouse.source.connection import Address, SourceConnection, fetch_frame, fetched_partition
from headrace.warehouse.source.errors import BrokersUnreachableError, DataLossError, SourceError
from headrace.warehouse.source.options import EARLIEST, RETRY_PAUSE_MS, SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.wire.batch import BatchHeader, hop, verify
from headrace.wire.errors import ErrorCode, ProtocolError, WireError
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient

REQUEST_SIZE_MIN_BYTES: Final = 256 << 10


class Batch(NamedTuple):
    """A whole batch at `at` of `buffer`, which is good until the next batch is asked for."""

    header: BatchHeader
    buffer: Buffer
    at: int


def read_batches(
    part: Range,
    options: SourceOptions,
    leader: Address | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Batch]:
    """Every data batch that has records in the range (the first and last may also have others), in order.

    The range must end at or before the log's end, as it does when it was planned from that. `leader` says
    where to ask first. Raises a `SourceError`: `DataLossError` where a batch isn't there any more and
    losses aren't allowed, `BrokersUnreachableError` after the request timeout without any progress.
    """
    timeout_s = options.request_timeout_ms / 1000
    position = part.from_offset
    deadline = clock() + timeout_s
    with _Brokers(options, clock, sleep) as brokers:
        while position < part.to_offset:
            connection = None
            try:
                connection = SourceConnection(leader or brokers.leader(part), timeout_s)
                for batch in _stream(connection, part, position, options):
                    if batch is None:
                        return
                    if not batch.header.is_control:
                        yield batch
                    position = batch.header.next_offset
                    deadline = clock() + timeout_s
                problem: Exception = TimeoutError("the broker throttles this client")
            except OSError as error:
                problem = error
            except ProtocolError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = _after_loss(brokers, part, position, options)
                    continue
                if not error.code.retriable:
                    raise SourceError(f"{_name(part)} at offset {position}: {error}") from error
                problem = error
            except WireError as error:
                raise SourceError(f"{_name(part)} at offset {position}: {error}") from error
            finally:
                if connection is not None:
                    connection.close()
            leader = None
            if clock() >= deadline:
                raise BrokersUnreachableError(
                    f"{_name(part)}: nothing came from offset {position} on for {timeout_s:.0f} s "
                    f"({problem}); "
                    "see whether its broker runs, then repeat"
                ) from problem
            sleep(RETRY_PAUSE_MS / 1000)


class _Brokers:
    """The cluster, asked only when it is needed: mostly a task is told its leader and needs nothing else."""

    def __init__(
        self, options: SourceOptions, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._asked: MetadataClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._asked is not None:
            self._asked.close()

    def leader(self, part: Range) -> Address:
        return self._cluster().leaders([part.topic])[part.topic, part.partition]

    def earliest(self, part: Range) -> int:
        return self._cluster().offsets({(part.topic, part.partition): EARLIEST})[part.topic, part.partition]

    def _cluster(self) -> "MetadataClient":
        if self._asked is None:
            # Costs a fifth of a second to import.
            from headrace.warehouse.source.metadata import MetadataClient

            timeout_s = self._options.request_timeout_ms / 1000
            self._asked = MetadataClient(
                self._options.bootstrap, timeout_s, clock=self._clock, sleep=self._sleep
            )
        return self._asked


def _stream(
    connection: SourceConnection, part: Range, position: int, options: SourceOptions
) -> Iterator[Batch | None]:
    """Batches over one connection, until the range's end or an answer without any.

    None: the broker has no record more in the range. A byte address may lie behind the last record of its
    batch, and Apache Kafka may have compacted the last records away.
    """
    size_bytes = _request_size_bytes(part.to_offset - position, 1.0, options)
    connection.send(fetch_frame(part.topic, part.partition, position, size_bytes))
    while True:
        result, is_throttled = fetched_partition(connection.receive())
        if result.error_code:
            raise ProtocolError(result.error_code, _name(part))
        records = result.records
        assert not isinstance(records, int)
        if records is None or len(records) == 0:
            if not is_throttled:
                yield None
            return
        found = list(hop(records))
        if not found:
            # A broker gives the first batch whole, however large it is.
            raise SourceError(
                f"{_name(part)} at offset {position}: {len(records)} bytes without a whole batch"
            )
        last_at, last = found[-1]
        bytes_per_offset = (last_at + last.size_bytes) / max(1, last.next_offset - found[0][1].base_offset)
        position = last.next_offset
        more = position < part.to_offset
        if more:
            size_bytes = _request_size_bytes(part.to_offset - position, bytes_per_offset, options)
            connection.send(fetch_frame(part.topic, part.partition, position, size_bytes))
        for at, header in found:
            if header.next_offset > part.from_offset and header.base_offset < part.to_offset:
                verify(records, at, header)
                yield Batch(header, records, at)
        if not more:
            yield None
            return


def _request_size_bytes(left: int, bytes_per_offset: float, options: SourceOptions) -> int:
    """Not much more than what is left: 1.0 byte an offset at headrace, as many as a record takes at
    Apache Kafka.
    """
    wanted = int(left * bytes_per_offset * 1.1) + REQUEST_SIZE_MIN_BYTES
    return min(wanted, options.fetch_size_bytes)


def _after_loss(brokers: _Brokers, part: Range, position: int, options: SourceOptions) -> int:
    earliest = brokers.earliest(part)
    if options.fail_on_data_loss or earliest <= position:
        raise DataLossError(
            "COULD_NOT_READ_OFFSET_RANGE",
            f"Could not read records in offset [{position}, {part.to_offset}) for topic partition "
            f"{_name(part)}; "
            f"the earliest there is is {earliest}.",
        )
    return earliest


def _name(part: Range) -> str:
    return f"{part.topic}-{part.partition}"
