"""Fetching for a consumer: which requests are sent next, and what their answers mean for each partition.

For one thread, driven by `Consumer.poll`. At most one Fetch per leader is in flight, with all its partitions
that have buffer space left; the next one is sent before records are returned, so that the broker works while
the application does. Prefetched bytes are bounded, per partition and in total.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.client.backoff import Backoff
from headrace.client.calls import Call, fetch_call, in_parts, list_offsets_call
from headrace.client.cluster import TopicPartition
from headrace.client.divergence import Divergence
from headrace.client.errors import (
    BrokerError,
    ClientError,
    CorruptRecordsError,
    OffsetOutOfRangeError,
    UnsupportedApiError,
)
from headrace.client.keeping import keep
from headrace.client.lineage import NO_EPOCH, Claim
from headrace.client.network import Network
from headrace.client.partition_fetch import PartitionFetch
from headrace.client.unread import Unread
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    REQUEST_PARTITIONS_MAX,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX: Final = REQUEST_PARTITIONS_MAX // 2
"""Of one Fetch. A broker counts topics, too, and ends the connection of a client that names too many."""
REFUSALS_BEFORE_ERROR: Final = 2  # a broker's disk may be out of order for a moment

_OTHER_ID: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


class FetchSettings(NamedTuple):
    """`reset`: where to continue without a valid position: EARLIEST, LATEST, or None for an error."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    buffer_memory_bytes: int
    reset: int | None
    backoff: Backoff


class Fetcher:
    """All partitions of a consumer. `send` sends requests; the network's `poll` handles the responses."""

    def __init__(
        self,
        network: Network,
        settings: FetchSettings,
        clock: Callable[[], float],
        draw: Callable[[], float],
        *,
        forget: Callable[[TopicPartition], None],
    ) -> None:
        """`forget` is called for a partition whose prefetched bytes are given up."""
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self._network = network
        self._settings = settings
        self._clock = clock
        self._draw = draw
        self._forget = forget
        self._fetching: dict[int, int] = {}  # brokers with a Fetch in flight → how much they may send
        self._rotation = 0
        self._by_name = False  # the brokers take no topic ids in a Fetch
        self._unread = Unread(network, clock, settings.max_wait_ms / 1000)
        self._divergence = Divergence(settings.reset, self._wait, self._back_off)

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
        free_bytes = self._free_bytes()
        lookups: dict[int, list[PartitionFetch]] = {}
        fetches: dict[int, list[PartitionFetch]] = {}
        left_out: PartitionFetch | None = None
        self._unread.tell(self.partitions)
        for state in self._requestable(free_bytes):
            leader = self._network.cluster.leader(state.topic, state.partition)
            topic_id = self._network.cluster.topic_id(state.topic)
            if self._divergence.is_made_again(state, topic_id, by_name=self._by_name):
                continue
            if leader is None:
                self._unread.add((state.topic, state.partition))
                self._network.request_update()
            elif not self._network.ready(leader):
                self._unread.add((state.topic, state.partition))
            elif state.position is None:
                lookups.setdefault(leader, []).append(state)
            elif leader not in self._fetching:
                if len(fetches.setdefault(leader, [])) < PARTITIONS_AT_ONCE_MAX:
                    fetches[leader].append(state)
                else:
                    left_out = left_out or state
        if left_out is not None:  # it comes first in the next request
            self._rotation = list(self.partitions.values()).index(left_out)
        elif fetches:
            self._rotation += 1
        for leader, wanted in lookups.items():
            self._look_up(leader, wanted)
        # A leader that has nothing to send leaves the others their shares meanwhile.
        share_bytes = self._settings.buffer_memory_bytes // max(
            1, len(fetches.keys() | self._fetching.keys())
        )
        for leader, wanted in fetches.items():
            asked_bytes = min(max(1, share_bytes), self._settings.max_bytes, free_bytes)
            if asked_bytes > 0:
                free_bytes -= asked_bytes
                self._fetch(leader, wanted, asked_bytes)

    def _free_bytes(self) -> int:
        """Returns how much memory is left, beside what may come. If it is full, paused partitions give up
        what was prefetched of them: nobody takes it, and nothing of the others could be fetched.
        """
        limit_bytes = self._settings.buffer_memory_bytes - sum(self._fetching.values())
        buffered_bytes = self.buffered_bytes
        is_full = buffered_bytes >= self._settings.buffer_memory_bytes
        if not is_full or all(state.paused for state in self.partitions.values()):
            return limit_bytes - buffered_bytes
        for key, state in self.partitions.items():
            if state.paused and state.pieces:
                state.rewind()
                self._forget(key)
        return limit_bytes - self.buffered_bytes

    def _requestable(self, free_bytes: int) -> Iterator[PartitionFetch]:
        """Yields the partitions that may be looked up or fetched now; each Fetch begins with another one."""
        now_s = self._clock()
        states = list(self.partitions.values())
        for i in range(len(states)):
            state = states[(self._rotation + i) % len(states)]
            if state.in_flight or state.error is not None or now_s < state.not_before_s:
                continue
            has_room = free_bytes > 0 and state.buffered_bytes < state.fetch_bytes
            if state.position is None or (has_room and not state.paused):
                yield state

    def resume(self) -> None:
        """The application reads again; nothing was sent since it did before."""
        self._unread.resume()

    def begin_anew(self) -> None:
        """Gives up all that was prefetched, and requested; positions stay."""
        self._fetching.clear()
        for key, state in self.partitions.items():
            state.rewind()
            self._forget(key)

    def fetch_again(self, state: PartitionFetch) -> None:
        """Fetches what was prefetched behind a bad batch again, after longer and longer pauses."""
        state.refusals += 1
        state.rewind()
        state.not_before_s = self._clock() + self._settings.backoff.delay_s(state.refusals, self._draw)

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
            timestamp_ms = state.looks_up(self._settings.reset)
            if timestamp_ms is None:
                state.error = OffsetOutOfRangeError(state.topic, state.partition, None)
                continue
            wanted.setdefault(state.topic, {})[state.partition] = timestamp_ms
            requested[state.topic, state.partition] = (state, state.generation)
            state.in_flight = True
        for some in in_parts(wanted):
            keys = {(topic, index): requested[topic, index] for topic in some for index in some[topic]}
            _refuse(keys, self._send(leader, list_offsets_call(some), partial(self._on_lookups, keys)))

    def _on_lookups(
        self,
        requested: dict[TopicPartition, tuple[PartitionFetch, int]],
        body: Any,
        error: ClientError | None,
    ) -> None:
        results = {}
        if body is not None:
            results = {(t.name, p.partition_index): p for t in body.topics for p in t.partitions}
        for key, (state, generation) in requested.items():
            if state.generation == generation:
                state.in_flight = False
                self._on_looked_up(state, results.get(key), error)

    def _on_looked_up(self, state: PartitionFetch, result: Any, error: ClientError | None) -> None:
        if result is None:
            self._back_off(state, error)
        elif result.error_code != ErrorCode.NONE:
            self._on_refused(state, result.error_code)
        elif (offset := state.looked_up(result.offset)) is not None:
            self._unread.remove((state.topic, state.partition))
            topic_id = state.topic_id
            state.move_to(offset)
            state.topic_id = topic_id

    # --- batches ---

    def _fetch(self, leader: int, states: list[PartitionFetch], asked_bytes: int) -> None:
        topics: dict[tuple[str, UUID], list[FetchPartition]] = {}
        requested: dict[TopicPartition, tuple[PartitionFetch, int]] = {}
        for state in states:
            state.in_flight = True
            requested[state.topic, state.partition] = (state, state.generation)
            offset, epoch, lineage = state.fetch_position, state.lineage.epoch, state.lineage
            if lineage.claim is not None and lineage.last_offset is not None:
                offset, epoch = lineage.last_offset, NO_EPOCH
            part = FetchPartition(state.partition, offset, state.fetch_bytes, last_fetched_epoch=epoch)
            topics.setdefault((state.topic, state.topic_id), []).append(part)
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=asked_bytes,
            topics=[FetchTopic(*topic, parts) for topic, parts in topics.items()],
            wants_addresses=True,
        )
        names = {topic_id: topic for topic, topic_id in topics if topic_id != NO_UUID}
        by_id = len(names) == len(topics)
        asked_s = self._clock()

        def on_response(body: FetchResponse | None, error: ClientError | None) -> None:
            self._fetching.pop(leader, None)
            if body is not None and body.error_code:
                error = BrokerError(body.error_code, "fetch")
            results: dict[TopicPartition, FetchPartitionResult] = {}
            if body is not None:
                results = {
                    (names.get(t.topic_id, t.name), p.partition): p for t in body.topics for p in t.partitions
                }
            for key, (state, generation) in requested.items():
                if state.generation == generation:
                    state.in_flight = False
                    self._on_fetched(state, results.get(key), error, asked_s)

        self._fetching[leader] = asked_bytes
        problem = self._send(leader, fetch_call(request, by_id=by_id), on_response)
        if problem is not None and by_id:
            self._by_name = True
            problem = self._send(leader, fetch_call(request), on_response)
        if problem is not None:
            self._fetching.pop(leader, None)
        _refuse(requested, problem)

    def _send(
        self, leader: int, call: Call, on_response: Callable[[Any, ClientError | None], None]
    ) -> UnsupportedApiError | None:
        """Returns why the leader cannot be asked so."""
        timeout_s = self._network.request_timeout_s + call.wait_s
        try:
            self._network.send(leader, call, on_response, timeout_s=timeout_s)
        except UnsupportedApiError as error:
            return error
        return None

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
        is_out_of_range = result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        if state.lineage.claim is not None and (is_out_of_range or result.error_code == ErrorCode.NONE):
            self._divergence.on_read_again(state, state.lineage.claim, result)
            return
        if is_out_of_range or result.diverging_epoch is not None:
            claim = Claim(*result.diverging_epoch) if result.diverging_epoch else Claim()
            self._divergence.on_parted(state, claim)
            return
        if result.error_code == ErrorCode.CORRUPT_MESSAGE and state.failures >= REFUSALS_BEFORE_ERROR:
            problem = "its broker cannot read the log there (CORRUPT_MESSAGE)"
            state.error = CorruptRecordsError(state.topic, state.partition, state.fetch_position, problem)
        if result.error_code != ErrorCode.NONE:
            self._on_refused(state, result.error_code)
            return
        state.failures = 0
        state.id_refused = False
        self._unread.remove((state.topic, state.partition))
        state.high_watermark, state.high_watermark_s = result.high_watermark, asked_s
        keep(state, result)

    # --- refusals ---

    def _wait(self, state: PartitionFetch) -> None:
        state.not_before_s = self._clock() + self._settings.backoff.delay_s(1, self._draw)

    def _on_refused(self, state: PartitionFetch, code: int) -> None:
        error = BrokerError(code, f"{state.topic}-{state.partition}")
        state.id_refused = error.code in _OTHER_ID
        if error.retriable:
            self._back_off(state, error)
        else:
            state.error = error

    def _back_off(self, state: PartitionFetch, error: ClientError | None) -> None:
        state.failures += 1
        state.interruptions += 1
        self._unread.add((state.topic, state.partition), error)
        state.not_before_s = self._clock() + self._settings.backoff.delay_s(state.failures, self._draw)
        self._network.request_update()
        logger.debug("%s-%d: %s", state.topic, state.partition, error or "missing in the response")


def _refuse(requested: dict[TopicPartition, tuple[PartitionFetch, int]], error: ClientError | None) -> None:
    """Tells each `poll` of a leader that cannot be asked, if there is an error."""
    for state, _ in requested.values() if error is not None else ():
        state.in_flight, state.error = False, error
