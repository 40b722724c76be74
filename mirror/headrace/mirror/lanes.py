"""The fetching side of the pipeline: several lanes to the source, each a thread with connections of its own.

Owns what is asked of the source's brokers and when. A connection over a distance carries a send buffer a
round trip at most (the kernel's 4 MB in 80 ms: 50 MB/s, and less while it is young), and where a Fetch begins
follows from the answer to the last one; several lanes at once fill a long way better. A partition stays in
its lane. All decisions are `PartitionCopy`'s; its state is touched under the pipeline's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from headrace.client.calls import fetch_call
from headrace.client.errors import ClientError
from headrace.client.network import Network
from headrace.mirror.copying import PartitionCopy
from headrace.replication.pull import Fetched
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID

REQUEST_TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 500
FETCH_WAIT_BUSY_MS: Final = 50  # while a partition waits for room, so that it is not kept out for long
FETCH_MIN_BYTES: Final = 1024 * 1024
FETCH_MAX_BYTES: Final = 8 * 1024 * 1024  # also of one partition: it may be the only one that is behind
LANE_MAX_BYTES: Final = 16 * 1024 * 1024  # asked for or fetched, and not yet acknowledged by the target
POLL_MAX_S: Final = 0.5
LEADER_RETRY_S: Final = 0.1

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
    """One Fetch in flight a source broker, for the copies of this lane.

    `step` and the network belong to the lane's thread; `on_fetched` is called when there is something to
    append.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        lock: threading.Lock,
        on_fetched: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network = Network(bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self.copies: list[PartitionCopy] = []
        self._lock = lock
        self._on_fetched = on_fetched
        self._clock = clock
        self._asked_bytes: dict[int, int] = {}  # source brokers with a Fetch in flight → what it may bring
        self._pause_until_s: dict[PartitionCopy, float] = {}
        self._turn = 0  # a Fetch is filled in order of its partitions: each begins with another one

    def step(self) -> float:
        """Ask for what the copies want, as far as there is room; how long to wait then. Under the lock."""
        network = self.network
        network.add_topics({copy.topic for copy in self.copies})
        room = LANE_MAX_BYTES - sum(self._asked_bytes.values())
        wanted: dict[int, list[tuple[PartitionCopy, int]]] = {}
        full = False
        now_s = self._clock()
        for copy in self.copies:
            room -= copy.ahead_bytes
            address = copy.wants_fetch()
            if address is None:
                full = full or copy.ahead_bytes > 0
                continue
            if self._pause_until_s.get(copy, 0.0) > now_s:
                full = True
                continue
            leader = network.cluster.leader(copy.topic, copy.partition)
            if leader is None:
                network.request_update()
            elif leader not in self._asked_bytes and network.ready(leader):
                wanted.setdefault(leader, []).append((copy, address))
        share = room // max(1, len(wanted))
        if share >= FETCH_MIN_BYTES:
            max_wait_ms = FETCH_WAIT_BUSY_MS if full else FETCH_WAIT_MS
            for leader, parts in wanted.items():
                self._send_fetch(leader, parts, share, max_wait_ms)
        return LEADER_RETRY_S if full else POLL_MAX_S

    def _send_fetch(
        self, leader: int, parts: list[tuple[PartitionCopy, int]], share: int, max_wait_ms: int
    ) -> None:
        self._turn += 1
        first = self._turn % len(parts)
        topics: dict[str, list[FetchPartition]] = {}
        asked: dict[tuple[str, int], tuple[PartitionCopy, int, int]] = {}
        for copy, address in parts[first:] + parts[:first]:
            asked[copy.topic, copy.partition] = (copy, copy.generation, address)
            part = FetchPartition(copy.partition, address, FETCH_MAX_BYTES)
            topics.setdefault(copy.topic, []).append(part)
        # Room is not kept for what is not there: a Fetch that waits for new events would keep others out.
        behind = sum(copy.source_end - address for copy, address in parts)
        max_bytes = max(FETCH_MIN_BYTES, min(FETCH_MAX_BYTES, share, behind))
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(name, NO_UUID, members) for name, members in topics.items()],
        )

        def done(answer: Any, error: ClientError | None) -> None:
            with self._lock:
                del self._asked_bytes[leader]
                if error is None:
                    for topic in answer.topics:
                        for result in topic.partitions:
                            self._on_result(asked[topic.name, result.partition], result)
            self._on_fetched()

        self._asked_bytes[leader] = max_bytes
        self.network.send(leader, fetch_call(request), done)

    def _on_result(self, asked: tuple[PartitionCopy, int, int], result: FetchPartitionResult) -> None:
        copy, generation, address = asked
        now_s = self._clock()
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE:
            records = result.records if isinstance(result.records, bytes | bytearray | memoryview) else b""
            fetched = Fetched(records, result.log_start_offset, result.high_watermark)
            copy.fetched(generation, address, fetched, now_s)
        elif code in MOVED:
            self.network.request_update()
            self._pause_until_s[copy] = now_s + LEADER_RETRY_S
        elif generation == copy.generation:
            copy.trouble(f"the source answered {code.name} at address {address}", now_s)
