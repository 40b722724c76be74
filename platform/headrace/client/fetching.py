"""Fetching for a consumer: where each partition stands, what is prefetched, what goes into the next request.

One thread's property, driven by `Consumer.poll`. To every leader at most one Fetch is in flight, with all
its partitions that have room; the next one is sent before records are given out, so that the broker works
while the application does. What is prefetched is bounded in bytes, per partition and in all.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.client.backoff import Backoff
from headrace.client.calls import fetch_call, list_offsets_call
from headrace.client.errors import BrokerError, ClientError, OffsetOutOfRangeError
from headrace.client.network import Network
from headrace.wire.batch import hop
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

EARLIEST: Final = -2
LATEST: Final = -1

Key = tuple[str, int]

_MOVED: Final = frozenset(
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


class FetchSettings(NamedTuple):
    """Sizes in bytes. `reset` is what to do without a valid position: EARLIEST, LATEST, or None for an
    error.
    """

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    buffer_memory_bytes: int
    reset: int | None
    backoff: Backoff


class Piece:
    """Prefetched bytes of one partition: whole batches, and how far they are used up."""

    __slots__ = ("at", "buffer", "high_watermark")

    def __init__(self, buffer: memoryview, high_watermark: int) -> None:
        self.buffer = buffer
        self.at = 0
        self.high_watermark = high_watermark

    @property
    def left_bytes(self) -> int:
        return len(self.buffer) - self.at


class PartitionFetch:
    """One assigned partition. `position`: the offset to give out next; None while it has to be looked up."""

    __slots__ = (
        "asked",
        "error",
        "failures",
        "fetch_bytes",
        "fetch_position",
        "generation",
        "high_watermark",
        "log_start",
        "not_before_s",
        "partition",
        "paused",
        "pieces",
        "position",
        "reset_to",
        "topic",
    )

    def __init__(self, topic: str, partition: int, fetch_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position: int | None = None
        self.fetch_position = 0
        """What to fetch next: the end of what is prefetched."""
        self.reset_to: int | None = None
        """The timestamp to look up the position by; None asks for the policy."""
        self.pieces: deque[Piece] = deque()
        self.asked = False
        """Whether a request about it is in flight."""
        self.generation = 0
        """Counts seeks: answers to older requests are of no use."""
        self.failures = 0
        self.not_before_s = 0.0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = -1
        self.log_start = -1
        self.error: ClientError | None = None
        """What `poll` must raise once the pieces are given out."""
        self.paused = False

    @property
    def buffered_bytes(self) -> int:
        return sum(piece.left_bytes for piece in self.pieces)

    def move_to(self, position: int | None, reset_to: int | None = None) -> None:
        """Forget what is prefetched and go on there."""
        self.position = position
        self.fetch_position = position or 0
        self.reset_to = reset_to
        self.pieces.clear()
        self.generation += 1
        self.asked = False
        self.error = None
        self.failures = 0
        self.not_before_s = 0.0


class Fetcher:
    """All partitions of a consumer.

    `send` asks for what is missing, the network's `poll` brings the answers.
    """

    def __init__(
        self, network: Network, settings: FetchSettings, clock: Callable[[], float], draw: Callable[[], float]
    ) -> None:
        self.partitions: dict[Key, PartitionFetch] = {}
        self._network = network
        self._settings = settings
        self._clock = clock
        self._draw = draw
        self._fetching: set[int] = set()  # brokers with a Fetch in flight
        self._turn = 0

    def assign(self, keys: list[Key]) -> None:
        """Exactly these from now on; those that stay keep their positions and what is prefetched."""
        kept = {key: self.partitions[key] for key in keys if key in self.partitions}
        size_bytes = self._settings.partition_max_bytes
        self.partitions = {key: kept.get(key) or PartitionFetch(*key, size_bytes) for key in keys}
        self._network.add_topics({topic for topic, _ in keys})

    @property
    def buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.partitions.values())

    def send(self) -> None:
        """Ask every leader that is ready for unknown positions and for batches, as far as there is room."""
        now_s = self._clock()
        lookups: dict[int, list[PartitionFetch]] = {}
        fetches: dict[int, list[PartitionFetch]] = {}
        room_bytes = self._settings.buffer_memory_bytes - self.buffered_bytes
        states = list(self.partitions.values())
        self._turn += 1
        for i in range(len(states)):
            state = states[(self._turn + i) % len(states)]
            if state.asked or state.paused or state.error is not None or now_s < state.not_before_s:
                continue
            if state.position is not None and (room_bytes <= 0 or state.buffered_bytes >= state.fetch_bytes):
                continue
            leader = self._network.cluster.leader(state.topic, state.partition)
            if leader is None:
                self._network.request_update()
            elif self._network.ready(leader):
                if state.position is None:
                    lookups.setdefault(leader, []).append(state)
                elif leader not in self._fetching:
                    fetches.setdefault(leader, []).append(state)
        for leader, wanted in lookups.items():
            self._look_up(leader, wanted)
        for leader, wanted in fetches.items():
            self._fetch(leader, wanted, room_bytes)

    def next_due_s(self) -> float | None:
        """When a partition that has to wait may be asked for again."""
        now_s = self._clock()
        later = [state.not_before_s for state in self.partitions.values() if state.not_before_s > now_s]
        return min(later, default=None)

    # positions

    def _look_up(self, leader: int, states: list[PartitionFetch]) -> None:
        wanted: dict[str, dict[int, int]] = {}
        asked: dict[Key, tuple[PartitionFetch, int]] = {}
        for state in states:
            timestamp_ms = self._settings.reset if state.reset_to is None else state.reset_to
            if timestamp_ms is None:
                state.error = OffsetOutOfRangeError(state.topic, state.partition, None)
                continue
            wanted.setdefault(state.topic, {})[state.partition] = timestamp_ms
            asked[state.topic, state.partition] = (state, state.generation)
            state.asked = True
        if not wanted:
            return

        def done(body: Any, error: ClientError | None) -> None:
            found = {}
            if body is not None:
                found = {(t.name, p.partition_index): p for t in body.topics for p in t.partitions}
            for key, (state, generation) in asked.items():
                if state.generation == generation:
                    state.asked = False
                    self._on_looked_up(state, found.get(key), error)

        self._network.send(leader, list_offsets_call(wanted), done)

    def _on_looked_up(self, state: PartitionFetch, answer: Any, error: ClientError | None) -> None:
        if answer is None:
            self._back_off(state, error)
        elif answer.error_code != ErrorCode.NONE:
            self._refused(state, answer.error_code)
        elif answer.offset < 0:
            state.reset_to = LATEST  # no record is that young: go on at the end
        else:
            state.move_to(answer.offset)

    # batches

    def _fetch(self, leader: int, states: list[PartitionFetch], room_bytes: int) -> None:
        topics: dict[str, list[FetchPartition]] = {}
        asked: dict[Key, tuple[PartitionFetch, int]] = {}
        for state in states:
            state.asked = True
            asked[state.topic, state.partition] = (state, state.generation)
            part = FetchPartition(state.partition, state.fetch_position, state.fetch_bytes)
            topics.setdefault(state.topic, []).append(part)
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=min(settings.max_bytes, room_bytes),
            topics=[FetchTopic(topic, NO_UUID, parts) for topic, parts in topics.items()],
        )

        def done(body: FetchResponse | None, error: ClientError | None) -> None:
            self._fetching.discard(leader)
            if body is not None and body.error_code:
                error = BrokerError(body.error_code, "fetch")
            found: dict[Key, FetchPartitionResult] = {}
            if body is not None:
                found = {(t.name, p.partition): p for t in body.topics for p in t.partitions}
            for key, (state, generation) in asked.items():
                if state.generation == generation:
                    state.asked = False
                    self._on_fetched(state, found.get(key), error)

        self._fetching.add(leader)
        timeout_s = self._network.request_timeout_s + settings.max_wait_ms / 1000
        self._network.send(leader, fetch_call(request), done, timeout_s=timeout_s)

    def _on_fetched(
        self, state: PartitionFetch, result: FetchPartitionResult | None, error: ClientError | None
    ) -> None:
        if result is None or error is not None:
            self._back_off(state, error)
            return
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(state)
            return
        if result.error_code != ErrorCode.NONE:
            self._refused(state, result.error_code)
            return
        state.failures = 0
        state.high_watermark = result.high_watermark
        state.log_start = result.log_start_offset
        records = result.records
        if isinstance(records, memoryview) and len(records):
            self._keep(state, records, result.high_watermark)

    def _keep(self, state: PartitionFetch, records: memoryview, high_watermark: int) -> None:
        """Put what is complete into the partition's pieces, and go on fetching after it."""
        end = 0
        next_offset = state.fetch_position
        try:
            for at, header in hop(records):
                end = at + header.size_bytes
                next_offset = header.next_offset
        except CorruptBatchError:
            end = len(records)  # `poll` comes upon it in its place, and says so
        if not end:
            state.fetch_bytes *= 2  # not even one batch: ask for more
            return
        state.pieces.append(Piece(records[:end], high_watermark))
        state.fetch_position = max(next_offset, state.fetch_position)

    def _out_of_range(self, state: PartitionFetch) -> None:
        if self._settings.reset is None:
            state.error = OffsetOutOfRangeError(state.topic, state.partition, state.fetch_position)
        elif state.pieces:
            # First give out what is there; then this comes up again.
            state.not_before_s = self._clock() + self._settings.backoff.delay_s(1, self._draw)
        else:
            logger.warning(
                "%s-%d: offset %d is not in the log, going on at its %s",
                state.topic,
                state.partition,
                state.fetch_position,
                "start" if self._settings.reset == EARLIEST else "end",
            )
            state.move_to(None)

    def _refused(self, state: PartitionFetch, code: int) -> None:
        error = BrokerError(code, f"{state.topic}-{state.partition}")
        if error.code in _MOVED:
            self._network.request_update()
        if error.retriable:
            self._back_off(state, error)
        else:
            state.error = error

    def _back_off(self, state: PartitionFetch, error: ClientError | None) -> None:
        state.failures += 1
        state.not_before_s = self._clock() + self._settings.backoff.delay_s(state.failures, self._draw)
        self._network.request_update()
        logger.debug("%s-%d: %s", state.topic, state.partition, error or "left out of the answer")
