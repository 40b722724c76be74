"""The fetching side of the pipeline: several lanes to the source, each a thread with connections of its own.

Owns which Fetch requests go to the source's brokers, and when. A connection carries at most one send buffer
per round trip (the kernel's 4 MB in 80 ms: 50 MB/s, less while the connection is new), and the address of a
Fetch follows from the response to the last one; so several lanes use a long link better than one. A partition
stays in its lane. `PartitionCopy` makes all decisions; its state is accessed under the pipeline's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from headrace.client.calls import fetch_call
from headrace.client.errors import ClientError
from headrace.client.lineage import NO_EPOCH
from headrace.client.network import Network
from headrace.mirror.copying import PartitionCopy
from headrace.replication.pull import Fetched
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    REQUEST_PARTITIONS_MAX,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
)
from headrace.wire.primitives import NO_UUID

REQUEST_TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 500
FETCH_WAIT_BUSY_MS: Final = 50  # while a partition waits for room, so that it soon gets a Fetch
FETCH_MIN_BYTES: Final = 1024 * 1024
FETCH_MAX_BYTES: Final = 8 * 1024 * 1024  # per partition too, since only one of them may lag
PARTITIONS_AT_ONCE_MAX: Final = REQUEST_PARTITIONS_MAX // 2  # each may be of another topic, which counts, too
LANE_MAX_BYTES: Final = 16 * 1024 * 1024  # requested or fetched, but not yet acknowledged by the target
POLL_MAX_S: Final = 0.5
LEADER_RETRY_S: Final = 0.1
SOURCE_WAIT_MAX_S: Final = 30.0
"""How long a copy waits for a leader that cannot be reached, before it says so: nobody knows its lag then."""

MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class Lane:
    """Fetches for the copies of this lane, with at most one Fetch in flight per source broker.

    `step` and the network belong to the lane's thread; `step` runs under the lock. `on_fetched` is called
    after every response.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        lock: threading.Lock,
        on_fetched: Callable[[], None],
    ) -> None:
        self.network = Network(bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self.copies: list[PartitionCopy] = []
        self._lock = lock
        self._on_fetched = on_fetched
        self._requested_bytes: dict[int, int] = {}  # by source broker with a Fetch in flight
        self.pause_until_s: dict[PartitionCopy, float] = {}
        self._unreachable_since_s: dict[PartitionCopy, float] = {}
        self._asked: dict[int, int] = {}  # by source broker: the rotation of its last Fetch
        self._rotation = 0
        # Brokers fill a Fetch in order of its partitions, so each Fetch begins with another partition.
        self._begins: dict[int, int] = {}  # by source broker: where its next Fetch does

    def step(self) -> float:
        """Requests what the copies want, within `LANE_MAX_BYTES`; returns how long to wait."""
        network = self.network
        network.keep_topics({copy.topic for copy in self.copies})
        room = LANE_MAX_BYTES - sum(self._requested_bytes.values())
        wanted: dict[int, list[tuple[PartitionCopy, int]]] = {}
        has_waiting = False
        before, self._unreachable_since_s = self._unreachable_since_s, {}
        now_s = time.monotonic()
        for copy in self.copies:
            room -= copy.ahead_bytes
            address = copy.next_fetch_address()
            if address is None:
                has_waiting = has_waiting or copy.ahead_bytes > 0
                continue
            if self.pause_until_s.get(copy, 0.0) > now_s:
                has_waiting = True
                continue
            leader = network.cluster.leader(copy.topic, copy.partition)
            if leader in self._requested_bytes:
                continue
            if leader is not None and network.ready(leader):
                wanted.setdefault(leader, []).append((copy, address))
                continue
            if leader is None:
                network.request_update()
            since_s = self._unreachable_since_s[copy] = before.get(copy, now_s)
            if now_s - since_s >= SOURCE_WAIT_MAX_S:
                copy.back_off(f"the leader of {copy.name} in the source cannot be reached", now_s)
        # The room may not suffice for all brokers at once: those that were asked the longest ago come first.
        leaders = sorted(wanted, key=lambda leader: self._asked.get(leader, 0))
        chosen = leaders[: max(0, room // FETCH_MIN_BYTES)]
        has_waiting = has_waiting or len(chosen) < len(leaders)
        max_wait_ms = FETCH_WAIT_BUSY_MS if has_waiting else FETCH_WAIT_MS
        for leader in chosen:
            self._send_fetch(leader, wanted[leader], room // len(chosen), max_wait_ms)
        return LEADER_RETRY_S if has_waiting else POLL_MAX_S

    def _send_fetch(
        self, leader: int, parts: list[tuple[PartitionCopy, int]], share: int, max_wait_ms: int
    ) -> None:
        self._rotation += 1
        self._asked[leader] = self._rotation
        first = self._begins.get(leader, 0) % len(parts)
        parts = (parts[first:] + parts[:first])[:PARTITIONS_AT_ONCE_MAX]
        self._begins[leader] = first + (len(parts) if len(parts) == PARTITIONS_AT_ONCE_MAX else 1)
        # By id: a topic that was made again under its name is another one.
        by_id = all(copy.topic_id != NO_UUID for copy, _ in parts)
        topics: dict[tuple[str, UUID], list[FetchPartition]] = {}
        requested: dict[tuple[str | UUID, int], tuple[PartitionCopy, int, int]] = {}
        for copy, address in parts:
            key = copy.topic_id if by_id else copy.topic
            requested[key, copy.partition] = (copy, copy.generation, address)
            epoch = self._claimed_epoch(copy)
            part = FetchPartition(copy.partition, address, FETCH_MAX_BYTES, last_fetched_epoch=epoch)
            topics.setdefault((copy.topic, copy.topic_id), []).append(part)
        # A Fetch that waits for new events reserves little room, so that it does not keep others out.
        behind = sum(copy.source_end - address for copy, address in parts)
        max_bytes = max(FETCH_MIN_BYTES, min(FETCH_MAX_BYTES, share, behind))
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(name, topic_id, members) for (name, topic_id), members in topics.items()],
        )

        def done(response: Any, error: ClientError | None) -> None:
            with self._lock:
                del self._requested_bytes[leader]
                if error is None:
                    results = [
                        (topic.topic_id if by_id else topic.name, result)
                        for topic in response.topics
                        for result in topic.partitions
                    ]
                    is_all_empty = not any(result.records for _, result in results)
                    for key, result in results:
                        self._on_result(requested[key, result.partition], result, is_all_empty)
            self._on_fetched()

        self._requested_bytes[leader] = max_bytes
        self.network.send(leader, fetch_call(request, by_id=by_id), done)

    def _claimed_epoch(self, copy: PartitionCopy) -> int:
        """Returns the leader epoch of what was fetched last, which the source compares with its own log: one
        that no leader has had yet has rotted.
        """
        topic = self.network.cluster.topics.get(copy.topic)
        known = None if topic is None else topic.partitions.get(copy.partition)
        is_possible = known is not None and copy.fetched_epoch <= known.leader_epoch
        return copy.fetched_epoch if is_possible else NO_EPOCH

    def _on_result(
        self, requested: tuple[PartitionCopy, int, int], result: FetchPartitionResult, is_all_empty: bool
    ) -> None:
        copy, generation, address = requested
        now_s = time.monotonic()
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE and result.diverging_epoch is not None:
            copy.has_parted(generation, now_s)
        elif code is ErrorCode.NONE:
            records = result.records if isinstance(result.records, bytes | bytearray | memoryview) else b""
            fetched = Fetched(records, result.log_start_offset, result.high_watermark)
            copy.fetched(generation, address, fetched, now_s, is_all_empty=is_all_empty)
        elif code in MOVED:
            self.network.request_update()
            self.pause_until_s[copy] = now_s + LEADER_RETRY_S
        elif code is ErrorCode.CORRUPT_MESSAGE:
            copy.refused_as_damaged(generation, address, now_s)
        elif generation == copy.generation:
            copy.back_off(f"the source answered {code.name} at address {address}", now_s)
