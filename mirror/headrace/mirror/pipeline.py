"""The loops that move bytes: lanes fetch from the source's brokers, one thread appends at the target's.

Owns the threads and the connections to the target, with a few Produce requests in flight per broker;
`mirror.lanes` fetches. `PartitionCopy` makes all decisions; its state is accessed under one lock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from headrace.client.calls import produce_call
from headrace.client.errors import BrokerGoneError, ClientError, NetworkError
from headrace.client.network import Network
from headrace.mirror.copying import (
    CHUNK_BATCHES_MAX,
    REQUEST_LEAST_BYTES,
    Chunk,
    CopyState,
    PartitionCopy,
)
from headrace.mirror.lanes import MOVED, POLL_MAX_S, REQUEST_TIMEOUT_MS, Lane
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import REQUEST_PARTITIONS_MAX, ProducePartition, ProduceRequest, ProduceTopic

logger = logging.getLogger(__name__)

LANES: Final = 8
PRODUCE_MAX_BYTES: Final = 4 * 1024 * 1024
PARTITIONS_AT_ONCE_MAX: Final = REQUEST_PARTITIONS_MAX // 2  # each may be of another topic, which counts, too
PRODUCES_IN_FLIGHT_MAX: Final = 4  # per target broker
ACKS_ALL: Final = -1
TARGET_WAIT_MAX_S: Final = 5.0
"""How long a copy keeps what it has fetched for a leader that cannot be reached. It counts for its lane: two
such copies would keep the lane's others from fetching."""


class Pipeline:
    """Copies the bytes of all partitions that `add` gives it. `lock` guards the copies' state."""

    def __init__(
        self,
        source_bootstrap: str,
        target_bootstrap: str,
        *,
        client_id: str,
    ) -> None:
        self.lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            self._target = Network(
                target_bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            opened.callback(self._target.close)
            # Raises if the bootstrap is not an address.
            self._lanes = [
                Lane(source_bootstrap, client_id=client_id, lock=self.lock, on_fetched=self._target.wake)
                for _ in range(LANES)
            ]
            opened.pop_all()
        self._lane_of: dict[PartitionCopy, Lane] = {}
        self._unreachable_since_s: dict[PartitionCopy, float] = {}
        self._reigns: dict[PartitionCopy, tuple[tuple[int, int], float]] = {}
        """The target's leader and its epoch, and since when they are known."""
        self._turn = 0
        self._turn_of: dict[PartitionCopy, int] = {}  # the last Produce that each copy took part in
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(network, step), name=name, daemon=True)
            for name, network, step in (
                *((f"mirror-fetch-{i}", lane.network, lane.step) for i, lane in enumerate(self._lanes, 1)),
                ("mirror-append", self._target, self._append_step),
            )
        ]
        self.failure: BaseException | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, copies: Iterable[PartitionCopy]) -> None:
        """Adds copies. Any thread."""
        with self.lock:
            for copy in copies:
                lane = min(self._lanes, key=lambda lane: len(lane.copies))
                lane.copies.append(copy)
                self._lane_of[copy] = lane
        self.wake()

    def remove(self, copies: Iterable[PartitionCopy]) -> None:
        """Removes copies, of which the lock is held. What is on its way for them is dropped."""
        for copy in copies:
            lane = self._lane_of.pop(copy)
            lane.copies.remove(copy)
            for known in (lane.pause_until_s, self._unreachable_since_s, self._reigns, self._turn_of):
                known.pop(copy, None)

    def wake(self) -> None:
        """Lets all loops check what the copies want. Any thread."""
        for lane in self._lanes:
            lane.network.wake()
        self._target.wake()

    @property
    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stops. The next start copies again what was not acknowledged."""
        self._stopping.set()
        self.wake()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for lane in self._lanes:
            lane.network.close()
        self._target.close()

    def _run(self, network: Network, step: Callable[[], float]) -> None:
        try:
            while not self._stopping.is_set():
                with self.lock:
                    wait_s = step()
                network.poll(wait_s)
        except BaseException as error:
            self.failure = error
            logger.exception("a loop of the mirror failed; the process ends, to be restarted")
            raise

    # --- appending, in the target's thread and under the lock ---

    def _append_step(self) -> float:
        network = self._target
        network.keep_topics({copy.topic for copy in self._lane_of})
        ready: dict[int, list[PartitionCopy]] = {}
        before, self._unreachable_since_s = self._unreachable_since_s, {}
        now_s = time.monotonic()
        for copy in self._lane_of:
            # Reached before it is located, too: `locate_if_before` would let it be located twice.
            if not copy.wants_append() and copy.state is not CopyState.LOCATING:
                continue
            reached = self._reached(copy, now_s)
            if not copy.wants_append():
                continue
            if reached is not None:
                leader, since_s = reached
                if not copy.locate_if_before(since_s):
                    ready.setdefault(leader, []).append(copy)
                continue
            since_s = self._unreachable_since_s[copy] = before.get(copy, now_s)
            if now_s - since_s >= TARGET_WAIT_MAX_S:
                where = f"{copy.topic}-{copy.target_partition} in the target"
                copy.back_off(f"the leader of {where} cannot be reached", now_s)
        for leader, copies in ready.items():
            while copies and network.in_flight_count(leader) < PRODUCES_IN_FLIGHT_MAX:
                # First the copies whose turn was the longest ago: one may have enough for every request.
                copies.sort(key=lambda copy: self._turn_of.get(copy, 0))
                self._send_produce(leader, copies)
                copies = [copy for copy in copies if copy.wants_append()]
        return POLL_MAX_S

    def _reached(self, copy: PartitionCopy, now_s: float) -> tuple[int, float] | None:
        """Returns the leader of a copy's target, and since when it is the leader and connected without a
        break; None if it is not connected.
        """
        network = self._target
        leader = network.cluster.leader(copy.topic, copy.target_partition)
        if leader is None:
            network.request_update()
            return None
        reign = leader, network.cluster.topics[copy.topic].partitions[copy.target_partition].leader_epoch
        known = self._reigns.get(copy)
        if known is None or known[0] != reign:
            known = self._reigns[copy] = (reign, now_s)
        return (leader, max(known[1], network.ready_since_s(leader))) if network.ready(leader) else None

    def _send_produce(self, leader: int, copies: list[PartitionCopy]) -> None:
        # By id: a topic that was made again under its name is empty, and would take any address as its first.
        by_id = all(copy.target_id != NO_UUID for copy in copies)
        topics: dict[tuple[str, UUID], list[ProducePartition]] = {}
        sent: dict[tuple[str | UUID, int], tuple[PartitionCopy, Chunk]] = {}
        size_bytes = batch_count = 0
        self._turn += 1
        limit_bytes = min(copy.request_max_bytes for copy in copies)
        for copy in copies:
            if sent and size_bytes + copy.next_append_bytes > limit_bytes:
                break
            chunk = copy.next_append()
            self._turn_of[copy] = self._turn
            key = copy.target_id if by_id else copy.topic
            sent[key, copy.target_partition] = (copy, chunk)
            part = ProducePartition(copy.target_partition, chunk.data)
            topics.setdefault((copy.topic, copy.target_id), []).append(part)
            size_bytes += len(chunk.data)
            batch_count += chunk.batch_count
            is_full = size_bytes >= PRODUCE_MAX_BYTES or len(sent) == PARTITIONS_AT_ONCE_MAX
            if is_full or batch_count >= CHUNK_BATCHES_MAX:
                break
        request = ProduceRequest(
            transactional_id=None,
            acks=ACKS_ALL,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[ProduceTopic(name, topic_id, members) for (name, topic_id), members in topics.items()],
        )

        def done(response: Any, error: ClientError | None) -> None:
            with self.lock:
                now_s = time.monotonic()
                if error is not None:
                    unanswered_bytes = size_bytes if _is_unanswered(error) else None
                    for copy, chunk in sent.values():
                        copy.append_failed(
                            chunk, _why(error, chunk), now_s, unanswered_bytes=unanswered_bytes
                        )
                else:
                    for topic in response.topics:
                        key = topic.topic_id if by_id else topic.name
                        for result in topic.partitions:
                            self._on_ack(*sent[key, result.partition], result, now_s)
            for lane in {self._lane_of.get(copy) for copy, _ in sent.values()}:
                if lane is not None:
                    lane.network.wake()

        self._target.send(leader, produce_call(request, by_id=by_id), done)

    def _on_ack(self, copy: PartitionCopy, chunk: Chunk, result: Any, now_s: float) -> None:
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE:
            copy.appended(chunk, now_s)
            return
        if code in MOVED or code is ErrorCode.UNKNOWN_TOPIC_ID:
            self._target.request_update()
        message = result.error_message or ""
        copy.append_failed(
            chunk, f"the target answered {code.name} at address {chunk.address}: {message}", now_s
        )


def _is_unanswered(error: ClientError) -> bool:
    return isinstance(error, NetworkError) and not isinstance(error, BrokerGoneError)


def _why(error: ClientError, chunk: Chunk) -> str:
    """Names a limit of the target that a batch alone may exceed: its broker only closes the connection."""
    if not _is_unanswered(error) or chunk.batch_count > 1 or len(chunk.data) < REQUEST_LEAST_BYTES:
        return str(error)
    return (
        f"{error}, over a batch of {len(chunk.data)} bytes; if that stays so, the target's "
        "socket.request.max.bytes may be too small for it"
    )
