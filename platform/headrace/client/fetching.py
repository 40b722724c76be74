"""Fetching for a consumer: the position of each partition, its prefetched bytes, the next requests.

For one thread, driven by `Consumer.poll`. At most one Fetch per leader is in flight, with all its partitions
that have buffer space left; the next one is sent before records are returned, so that the broker works while
the application does. Prefetched bytes are bounded, per partition and in total.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from headrace.client.backoff import Backoff
from headrace.client.calls import EARLIEST, LATEST, fetch_call, list_offsets_call
from headrace.client.cluster import TopicPartition
from headrace.client.errors import BrokerError, ClientError, CorruptRecordsError, OffsetOutOfRangeError
from headrace.client.network import Network
from headrace.wire.batch import BatchHeader, hop
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

_STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


REFUSALS_BEFORE_ERROR: Final = 2  # a broker's disk may be out of order for a moment
FETCH_SIZE_MAX_BYTES: Final = 128 * 1024 * 1024
"""Of one partition. A batch that seems to be longer has a damaged header."""


class FetchSettings(NamedTuple):
    """`reset`: where to continue without a valid position: EARLIEST, LATEST, or None for an error."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    buffer_memory_bytes: int
    reset: int | None
    backoff: Backoff


class Piece:
    """Prefetched whole batches of one partition; those before `at` were returned to the application."""

    __slots__ = ("at", "buffer", "high_watermark")

    def __init__(self, buffer: memoryview, high_watermark: int) -> None:
        self.buffer = buffer
        self.at = 0
        self.high_watermark = high_watermark

    @property
    def left_bytes(self) -> int:
        return len(self.buffer) - self.at


class PartitionFetch:
    """One assigned partition. `position`: the offset to return next; None while it has to be looked up."""

    __slots__ = (
        "error",
        "failures",
        "fetch_bytes",
        "fetch_position",
        "generation",
        "high_watermark",
        "high_watermark_s",
        "in_flight",
        "interruptions",
        "not_before_s",
        "partition",
        "paused",
        "pieces",
        "position",
        "reset_to",
        "suspect",
        "topic",
    )

    def __init__(self, topic: str, partition: int, fetch_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position: int | None = None
        self.fetch_position = 0
        """The offset to fetch next: the end of the prefetched bytes."""
        self.reset_to: int | None = None
        """The timestamp (or EARLIEST, LATEST) to look up the position by; None: the consumer's setting."""
        self.pieces: deque[Piece] = deque()
        self.in_flight = False
        """Whether a request for it is in flight."""
        self.generation = 0
        """Counts seeks: responses to requests of an older generation are discarded."""
        self.failures = 0
        self.interruptions = 0
        """Counts all failed fetches, since the partition was assigned."""
        self.not_before_s = 0.0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = -1
        self.high_watermark_s = -math.inf
        """When the fetch was sent whose answer has it, by the consumer's clock."""
        self.error: ClientError | None = None
        """Raised by `poll` once the pieces are used up."""
        self.paused = False
        self.suspect: int | None = None
        """The position at which a fetched batch was bad; it is fetched once more before it is skipped."""

    @property
    def buffered_bytes(self) -> int:
        return sum(piece.left_bytes for piece in self.pieces)

    def move_to(self, position: int | None, reset_to: int | None = None) -> None:
        """Discards the prefetched bytes and continues at `position`, or looks it up by `reset_to`."""
        self.position = position
        self.fetch_position = position or 0
        self.reset_to = reset_to
        self.pieces.clear()
        self.generation += 1
        self.in_flight = False
        self.error = None
        self.failures = 0
        self.not_before_s = 0.0


def check_offsets(header: BatchHeader, high_watermark: int) -> None:
    """Raises `CorruptBatchError` if the offsets, which no checksum covers, lie behind the log's end.

    A position taken from them would be out of range, and the consumer would be sent to the log's other end.
    """
    if header.next_offset > high_watermark >= 0:
        raise CorruptBatchError(
            f"a batch with the offsets {header.base_offset} to {header.next_offset - 1}, but the log ends at "
            f"{high_watermark}"
        )


class Fetcher:
    """All partitions of a consumer. `send` sends requests; the network's `poll` handles the responses."""

    def __init__(
        self, network: Network, settings: FetchSettings, clock: Callable[[], float], draw: Callable[[], float]
    ) -> None:
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self._network = network
        self._settings = settings
        self._clock = clock
        self._draw = draw
        self._fetching: set[int] = set()  # brokers with a Fetch in flight
        self._rotation = 0

    def assign(self, keys: list[TopicPartition]) -> None:
        """Fetches exactly these from now on. Those assigned before keep positions and prefetched bytes."""
        self._network.add_topics({topic for topic, _ in keys})
        size_bytes = self._settings.partition_max_bytes
        self.partitions = {key: self.partitions.get(key) or PartitionFetch(*key, size_bytes) for key in keys}

    @property
    def buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.partitions.values())

    def send(self) -> None:
        """Looks up unknown positions and fetches as far as memory allows, at all leaders that are ready."""
        free_bytes = self._settings.buffer_memory_bytes - self.buffered_bytes
        lookups: dict[int, list[PartitionFetch]] = {}
        fetches: dict[int, list[PartitionFetch]] = {}
        for state in self._requestable(free_bytes):
            leader = self._network.cluster.leader(state.topic, state.partition)
            if leader is None:
                self._network.request_update()
            elif not self._network.ready(leader):
                continue
            elif state.position is None:
                lookups.setdefault(leader, []).append(state)
            elif leader not in self._fetching:
                fetches.setdefault(leader, []).append(state)
        for leader, wanted in lookups.items():
            self._look_up(leader, wanted)
        for leader, wanted in fetches.items():
            self._fetch(leader, wanted, free_bytes)

    def _requestable(self, free_bytes: int) -> Iterator[PartitionFetch]:
        """Yields the partitions that may be looked up or fetched now, starting with another one each time."""
        now_s = self._clock()
        states = list(self.partitions.values())
        self._rotation += 1
        for i in range(len(states)):
            state = states[(self._rotation + i) % len(states)]
            if state.in_flight or state.error is not None or now_s < state.not_before_s:
                continue
            has_room = free_bytes > 0 and state.buffered_bytes < state.fetch_bytes
            if state.position is None or (has_room and not state.paused):
                yield state

    def next_retry_s(self) -> float | None:
        """Returns when the backoff of the first waiting partition ends."""
        now_s = self._clock()
        later = [state.not_before_s for state in self.partitions.values() if state.not_before_s > now_s]
        return min(later, default=None)

    # --- positions ---

    def _look_up(self, leader: int, states: list[PartitionFetch]) -> None:
        wanted: dict[str, dict[int, int]] = {}
        requested: dict[TopicPartition, tuple[PartitionFetch, int]] = {}
        for state in states:
            timestamp_ms = self._settings.reset if state.reset_to is None else state.reset_to
            if timestamp_ms is None:
                state.error = OffsetOutOfRangeError(state.topic, state.partition, None)
                continue
            wanted.setdefault(state.topic, {})[state.partition] = timestamp_ms
            requested[state.topic, state.partition] = (state, state.generation)
            state.in_flight = True
        if not wanted:
            return

        def on_response(body: Any, error: ClientError | None) -> None:
            results = {}
            if body is not None:
                results = {(t.name, p.partition_index): p for t in body.topics for p in t.partitions}
            for key, (state, generation) in requested.items():
                if state.generation == generation:
                    state.in_flight = False
                    self._on_looked_up(state, results.get(key), error)

        self._network.send(leader, list_offsets_call(wanted), on_response)

    def _on_looked_up(self, state: PartitionFetch, result: Any, error: ClientError | None) -> None:
        if result is None:
            self._back_off(state, error)
        elif result.error_code != ErrorCode.NONE:
            self._on_refused(state, result.error_code)
        elif result.offset < 0:
            state.reset_to = LATEST  # no record has the timestamp or a later one
        else:
            state.move_to(result.offset)

    # --- batches ---

    def _fetch(self, leader: int, states: list[PartitionFetch], free_bytes: int) -> None:
        topics: dict[str, list[FetchPartition]] = {}
        requested: dict[TopicPartition, tuple[PartitionFetch, int]] = {}
        for state in states:
            state.in_flight = True
            requested[state.topic, state.partition] = (state, state.generation)
            part = FetchPartition(state.partition, state.fetch_position, state.fetch_bytes)
            topics.setdefault(state.topic, []).append(part)
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=min(settings.max_bytes, free_bytes),
            topics=[FetchTopic(topic, NO_UUID, parts) for topic, parts in topics.items()],
        )

        asked_s = self._clock()

        def on_response(body: FetchResponse | None, error: ClientError | None) -> None:
            self._fetching.discard(leader)
            if body is not None and body.error_code:
                error = BrokerError(body.error_code, "fetch")
            results: dict[TopicPartition, FetchPartitionResult] = {}
            if body is not None:
                results = {(t.name, p.partition): p for t in body.topics for p in t.partitions}
            for key, (state, generation) in requested.items():
                if state.generation == generation:
                    state.in_flight = False
                    self._on_fetched(state, results.get(key), error, asked_s)

        self._fetching.add(leader)
        timeout_s = self._network.request_timeout_s + settings.max_wait_ms / 1000
        self._network.send(leader, fetch_call(request), on_response, timeout_s=timeout_s)

    def _on_fetched(
        self,
        state: PartitionFetch,
        result: FetchPartitionResult | None,
        error: ClientError | None,
        asked_s: float,
    ) -> None:
        if result is None or error is not None:
            self._back_off(state, error)
            return
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(state)
            return
        if result.error_code == ErrorCode.CORRUPT_MESSAGE and state.failures >= REFUSALS_BEFORE_ERROR:
            problem = "its broker cannot read the log there (CORRUPT_MESSAGE)"
            state.error = CorruptRecordsError(state.topic, state.partition, state.fetch_position, problem)
        if result.error_code != ErrorCode.NONE:
            self._on_refused(state, result.error_code)
            return
        state.failures = 0
        state.high_watermark, state.high_watermark_s = result.high_watermark, asked_s
        records = result.records
        if isinstance(records, memoryview) and len(records):
            self._keep(state, records, result.high_watermark)

    def _keep(self, state: PartitionFetch, records: memoryview, high_watermark: int) -> None:
        """Adds the complete batches to the partition's pieces; the next fetch begins behind them."""
        end = 0
        next_offset = state.fetch_position
        try:
            for at, header in hop(records):
                check_offsets(header, high_watermark)
                end = at + header.size_bytes
                next_offset = header.next_offset
        except CorruptBatchError:
            end = len(records)  # `poll` raises the error once it arrives at this batch
            state.not_before_s = math.inf  # and until then there is nothing to fetch behind it
        if not end and state.fetch_bytes < FETCH_SIZE_MAX_BYTES:
            state.fetch_bytes *= 2  # not even one whole batch
            return
        end = end or len(records)  # no batch is so long: its length is damaged
        state.pieces.append(Piece(records[:end], high_watermark))
        state.fetch_position = max(next_offset, state.fetch_position)

    def _on_out_of_range(self, state: PartitionFetch) -> None:
        if self._settings.reset is None:
            state.error = OffsetOutOfRangeError(state.topic, state.partition, state.fetch_position)
        elif state.pieces:
            # The prefetched records are returned first; a later fetch comes back here.
            state.not_before_s = self._clock() + self._settings.backoff.delay_s(1, self._draw)
        else:
            logger.warning(
                "%s-%d: offset %d is not in the log, continuing at its %s",
                state.topic,
                state.partition,
                state.fetch_position,
                "start" if self._settings.reset == EARLIEST else "end",
            )
            state.move_to(None)

    def _on_refused(self, state: PartitionFetch, code: int) -> None:
        error = BrokerError(code, f"{state.topic}-{state.partition}")
        if error.code in _STALE_METADATA:
            self._network.request_update()
        if error.retriable:
            self._back_off(state, error)
        else:
            state.error = error

    def _back_off(self, state: PartitionFetch, error: ClientError | None) -> None:
        state.failures += 1
        state.interruptions += 1
        state.not_before_s = self._clock() + self._settings.backoff.delay_s(state.failures, self._draw)
        self._network.request_update()
        logger.debug("%s-%d: %s", state.topic, state.partition, error or "missing in the response")
