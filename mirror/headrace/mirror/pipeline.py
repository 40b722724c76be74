"""The two loops that move bytes: one thread fetches from the source's brokers, one appends at the target's.

Owns the connections and the bounds: one Fetch in flight a source broker, a few Produce requests a target
broker, a bounded number of bytes in between. All decisions are `PartitionCopy`'s; its state is touched
under one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.client.calls import fetch_call, produce_call
from headrace.client.errors import ClientError
from headrace.client.network import Network
from headrace.mirror.copying import Chunk, PartitionCopy
from headrace.replication.pull import Fetched
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 500
FETCH_WAIT_BUSY_MS: Final = 50  # while a partition waits for room, so that it is not kept out for long
FETCH_PARTITION_BYTES_MAX: Final = 1024 * 1024
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
BUFFERED_BYTES_MAX: Final = 64 * 1024 * 1024
PRODUCE_BYTES_MAX: Final = 4 * 1024 * 1024
PRODUCES_IN_FLIGHT_MAX: Final = 4  # a target broker
POLL_SECONDS_MAX: Final = 0.5
LEADER_RETRY_SECONDS: Final = 0.1
ACKS_ALL: Final = -1

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class Pipeline:
    """Moves the bytes of all copies it is given. `start`, `add`, `close`; `lock` guards the copies' state."""

    def __init__(
        self,
        source_bootstrap: str,
        target_bootstrap: str,
        *,
        client_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Lock()
        self._clock = clock
        self._copies: list[PartitionCopy] = []
        self._source = Network(source_bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self._target = Network(target_bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self._fetching: set[int] = set()  # source brokers with a Fetch in flight
        self._pause_until_s: dict[tuple[str, int], float] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(network, step), name=name, daemon=True)
            for name, network, step in (
                ("mirror-fetch", self._source, self._fetch_step),
                ("mirror-append", self._target, self._append_step),
            )
        ]
        self.failure: BaseException | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, copies: Iterable[PartitionCopy]) -> None:
        """Take over more copies. Any thread."""
        with self.lock:
            self._copies.extend(copies)
        self.wake()

    def wake(self) -> None:
        """Look again at what the copies want. Any thread."""
        self._source.wake()
        self._target.wake()

    @property
    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop; what was not acknowledged is simply copied again by the next start."""
        self._stopping.set()
        self.wake()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._source.close()
        self._target.close()

    def _run(self, network: Network, step: Callable[[], float]) -> None:
        try:
            while not self._stopping.is_set():
                with self.lock:
                    wait_s = step()
                network.poll(wait_s)
        except BaseException as error:
            self.failure = error
            logger.exception("the mirror's loop broke; the process ends and begins anew")
            raise

    # fetching: called by the source's thread only, under the lock

    def _fetch_step(self) -> float:
        network = self._source
        network.add_topics({copy.topic for copy in self._copies})
        room = BUFFERED_BYTES_MAX - sum(copy.ahead_bytes for copy in self._copies)
        wanted: dict[int, list[tuple[PartitionCopy, int]]] = {}
        full = False
        now_s = self._clock()
        for copy in self._copies:
            address = copy.wants_fetch()
            if address is None:
                full = full or copy.ahead_bytes > 0
                continue
            if self._pause_until_s.get((copy.topic, copy.partition), 0.0) > now_s:
                full = True
                continue
            leader = network.cluster.leader(copy.topic, copy.partition)
            if leader is None:
                network.request_update()
            elif leader not in self._fetching and network.ready(leader):
                wanted.setdefault(leader, []).append((copy, address))
        share = room // max(1, len(wanted))
        if share >= FETCH_PARTITION_BYTES_MAX:
            max_wait_ms = FETCH_WAIT_BUSY_MS if full else FETCH_WAIT_MS
            for leader, parts in wanted.items():
                self._send_fetch(leader, parts, min(FETCH_BYTES_MAX, share), max_wait_ms)
        return LEADER_RETRY_SECONDS if full else POLL_SECONDS_MAX

    def _send_fetch(
        self, leader: int, parts: list[tuple[PartitionCopy, int]], max_bytes: int, max_wait_ms: int
    ) -> None:
        topics: dict[str, list[FetchPartition]] = {}
        asked: dict[tuple[str, int], tuple[PartitionCopy, int, int]] = {}
        for copy, address in parts:
            asked[copy.topic, copy.partition] = (copy, copy.generation, address)
            part = FetchPartition(copy.partition, address, FETCH_PARTITION_BYTES_MAX)
            topics.setdefault(copy.topic, []).append(part)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(name, NO_UUID, members) for name, members in topics.items()],
        )

        def done(answer: Any, error: ClientError | None) -> None:
            with self.lock:
                self._fetching.discard(leader)
                if error is None:
                    for topic in answer.topics:
                        for result in topic.partitions:
                            self._on_result(asked[topic.name, result.partition], result)
            self._target.wake()

        self._fetching.add(leader)
        self._source.send(leader, fetch_call(request), done)

    def _on_result(self, asked: tuple[PartitionCopy, int, int], result: FetchPartitionResult) -> None:
        copy, generation, address = asked
        now_s = self._clock()
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE:
            records = result.records if isinstance(result.records, bytes | bytearray | memoryview) else b""
            fetched = Fetched(records, result.log_start_offset, result.high_watermark)
            copy.fetched(generation, address, fetched, now_s)
        elif code in _MOVED:
            self._source.request_update()
            self._pause_until_s[copy.topic, copy.partition] = now_s + LEADER_RETRY_SECONDS
        elif generation == copy.generation:
            copy.trouble(f"the source answered {code.name} at address {address}", now_s)

    # appending: called by the target's thread only, under the lock

    def _append_step(self) -> float:
        network = self._target
        network.add_topics({copy.topic for copy in self._copies})
        ready: dict[int, list[PartitionCopy]] = {}
        for copy in self._copies:
            if not copy.wants_append():
                continue
            leader = network.cluster.leader(copy.topic, copy.target_partition)
            if leader is None:
                network.request_update()
            elif network.ready(leader):
                ready.setdefault(leader, []).append(copy)
        for leader, copies in ready.items():
            while copies and network.in_flight_count(leader) < PRODUCES_IN_FLIGHT_MAX:
                self._send_produce(leader, copies)
                copies = [copy for copy in copies if copy.wants_append()]
        return POLL_SECONDS_MAX

    def _send_produce(self, leader: int, copies: list[PartitionCopy]) -> None:
        topics: dict[str, list[ProducePartition]] = {}
        sent: dict[tuple[str, int], tuple[PartitionCopy, Chunk]] = {}
        size_bytes = 0
        for copy in copies:
            chunk = copy.next_append()
            sent[copy.topic, copy.target_partition] = (copy, chunk)
            topics.setdefault(copy.topic, []).append(ProducePartition(copy.target_partition, chunk.data))
            size_bytes += len(chunk.data)
            if size_bytes >= PRODUCE_BYTES_MAX:
                break
        request = ProduceRequest(
            transactional_id=None,
            acks=ACKS_ALL,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[ProduceTopic(name, NO_UUID, members) for name, members in topics.items()],
        )

        def done(answer: Any, error: ClientError | None) -> None:
            with self.lock:
                now_s = self._clock()
                if error is not None:
                    for copy, chunk in sent.values():
                        copy.refused(chunk, str(error), now_s)
                else:
                    for topic in answer.topics:
                        for result in topic.partitions:
                            self._on_ack(*sent[topic.name, result.partition], result, now_s)
            self._source.wake()

        self._target.send(leader, produce_call(request), done)

    def _on_ack(self, copy: PartitionCopy, chunk: Chunk, result: Any, now_s: float) -> None:
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE:
            copy.appended(chunk)
            return
        if code in _MOVED:
            self._target.request_update()
        message = result.error_message or ""
        copy.refused(chunk, f"the target answered {code.name} at address {chunk.address}: {message}", now_s)
