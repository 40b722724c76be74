"""The producer's background thread: numbers batches, sends them, handles every response. Owns the network.

Each round of its loop: take the closed batches, number them, fail those past their delivery timeout, bump
epochs where failed batches left a gap in the sequence numbers, send what may be sent, wait for the network.
`client.ordering` decides what a response means for the order of a partition.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.client.accumulator import Accumulator
from headrace.client.awaited_topics import AwaitedTopics
from headrace.client.batches import ProducerBatch
from headrace.client.calls import produce_call
from headrace.client.cluster import TopicPartition
from headrace.client.errors import BrokerError, ClientError, ClosedError, DeliveryTimeoutError, NetworkError
from headrace.client.faults import BatchFate, BatchInterceptor
from headrace.client.network import Network
from headrace.client.observer import BatchObserver
from headrace.client.obstacles import obstacle
from headrace.client.ordering import PartitionQueue
from headrace.client.outcome import call_in_sender
from headrace.client.producer_ids import ProducerIds
from headrace.client.settings import ProducerSettings
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import (
    REQUEST_PARTITIONS_MAX,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceTopic,
)

logger = logging.getLogger(__name__)

IDLE_WAIT_S: Final = 60.0
REQUEST_OVERHEAD_BYTES: Final = 512
PARTITIONS_AT_ONCE_MAX: Final = REQUEST_PARTITIONS_MAX // 2
"""Of one Produce. A broker counts topics, too, and ends the connection of a client that names too many."""
TOLD_ATTEMPTS: Final = 5
"""After so many, some two seconds, the log says why a batch is not acknowledged, once."""

_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
# What a broker refuses before it appends. After other errors the batch may be in the log: a leader that is
# replaced, or whose disk fails, while followers copy the batch, answers with NOT_LEADER_OR_FOLLOWER or
# KAFKA_STORAGE_ERROR.
_NOT_APPENDED: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class Sender:
    """Everything runs in the sender thread, except the methods under "other threads"."""

    def __init__(
        self,
        accumulator: Accumulator,
        network: Network,
        settings: ProducerSettings,
        *,
        observer: BatchObserver | None,
        interceptor: BatchInterceptor | None,
        clock: Callable[[], float],
        draw: Callable[[], float],
        name: str,
    ) -> None:
        self.network = network
        self._accumulator = accumulator
        self._settings = settings
        self._observer = observer
        self._interceptor = interceptor
        self._clock = clock
        self._draw = draw
        self._producer_ids = ProducerIds(
            network,
            idempotent=settings.idempotent,
            backoff=settings.retry_backoff,
            on_refused=self._refuse_all,
            clock=clock,
            draw=draw,
        )
        self._unnumbered: deque[ProducerBatch] = deque()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}  # those that have batches
        self._rotation = 0
        self.topics = AwaitedTopics(network)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-sender", daemon=True)

    # --- other threads ---

    def start(self) -> None:
        self._thread.start()
        self._accumulator.sender_ident = self._thread.ident or 0

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self, timeout_s: float) -> None:
        """Ends the thread; undelivered batches fail with `ClosedError`."""
        self._stopping = True
        self.network.wake()
        if not self.is_current_thread:
            self._thread.join(timeout_s)

    # --- the thread ---

    def _run(self) -> None:
        error: ClientError = ClosedError("the producer was closed before the record was delivered")
        try:
            while not self._stopping:
                self.run_round()
        except BaseException as failure:  # whatever ends it: others wait for its batches
            logger.exception("the sender thread failed")
            error = ClientError(f"the producer's sender thread failed: {failure!r}; create a new producer")
        self._stopping = True
        self._accumulator.refuse(error)
        self.network.close()
        self._unnumbered.clear()
        self._busy.clear()
        for batch in self._accumulator.take_unfinished():
            self._fail(batch, error)
        self.topics.end()

    def run_round(self) -> None:
        """One round of the thread's loop: it sends what may be sent, and waits for the network once."""
        self.topics.look()
        closed, linger_until_s = self._accumulator.take_closed()
        self._unnumbered.extend(closed)
        now_s = self._clock()
        self._number()
        expiry_s = self._expire(now_s)
        self._bump()
        self._dispatch(now_s)
        waits = [at_s for at_s in (linger_until_s, expiry_s, self._retry_s(now_s)) if at_s is not None]
        self.network.poll(max(0.0, min([now_s + IDLE_WAIT_S, *waits]) - self._clock()))
        self.topics.tell(self._busy)

    def _number(self) -> None:
        """Numbers closed batches, in order; requests a producer id first if there is none."""
        while self._unnumbered:
            producer = self._producer_ids.current
            if producer is None:
                self._producer_ids.request()
                return
            batch = self._unnumbered.popleft()
            queue = self._queue(batch, producer)
            queue.add(batch, self._settings.codec)
            self._notify("batch_encoded", batch.identity, batch.data)
            self._notify("batch_closed", batch.identity)
            self._intercept(batch, queue)

    def _queue(self, batch: ProducerBatch, producer: tuple[int, int]) -> PartitionQueue:
        key = (batch.topic, batch.partition)
        self.network.add_topics([batch.topic])  # it may have been found just after it was forgotten
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PartitionQueue(
                *key, producer_id=producer[0], producer_epoch=producer[1], window=self._settings.in_flight_max
            )
        elif not len(queue) and queue.can_bump and not queue.needs_new_id:
            queue.bump_epoch_and_renumber()
        self._busy[key] = queue
        return queue

    def _intercept(self, batch: ProducerBatch, queue: PartitionQueue) -> None:
        """Drops or alters the batch if the interceptor wants it."""
        if self._interceptor is None:
            return
        fate = self._interceptor.decide(batch.identity, batch.record_limit)
        if fate is BatchFate.ALTER:
            self._interceptor.alter(batch.data)
        elif fate is BatchFate.DROP:
            queue.on_ended(batch)
            self._accumulator.finish(batch)

    def _notify(self, event: str, *arguments: object) -> None:
        """Calls the observer's method `event`."""
        if self._observer is not None:
            call_in_sender(partial(getattr(self._observer, event), *arguments))

    def _refuse_all(self, error: ClientError) -> None:
        """Fails all batches without numbers, now and later: no producer id is available."""
        self._accumulator.refuse(error)
        while self._unnumbered:
            self._accumulator.finish(self._unnumbered.popleft(), error=error)

    def _bump(self) -> None:
        for queue in self._busy.values():
            if not queue.can_bump:
                continue
            producer = None
            if queue.needs_new_id:
                producer = self._producer_ids.current
                if producer is None or producer[0] == queue.producer_id:
                    self._producer_ids.request()
                    continue
            # The newest first: what was claimed is shortened from its end, and stays one range.
            for old, new in reversed(queue.bump_epoch_and_renumber(producer)):
                self._notify("batch_renumbered", old, new)

    # --- time ---

    def _expire(self, now_s: float) -> float | None:
        """Fails the batches past their delivery timeout; returns when the next batch reaches its own."""
        timeout_s = self._settings.delivery_timeout_s
        while self._unnumbered and self._unnumbered[0].created_s + timeout_s <= now_s:
            batch = self._unnumbered.popleft()
            self._accumulator.finish(batch, error=self._timed_out(batch, "no producer id was assigned"))
        for key, queue in list(self._busy.items()):
            for batch in queue.expired(now_s - timeout_s):
                if batch.surely_appended:
                    self._deliver(batch, -1, -1)  # stored, at an offset that is not known
                    continue
                queue.on_ended(batch)
                self._fail(batch, self._timed_out(batch, self._cause(batch)))
            if not len(queue):
                del self._busy[key]
        waiting = [queue.first_waiting for queue in self._busy.values()]
        if self._unnumbered:
            waiting.append(self._unnumbered[0])
        return min((batch.created_s + timeout_s for batch in waiting if batch is not None), default=None)

    def _timed_out(self, batch: ProducerBatch, cause: str) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(
            f"{batch.topic}-{batch.partition}: not acknowledged in {self._settings.delivery_timeout_s:g} s"
            f" and {batch.attempts} attempts ({cause})",
            maybe_appended=batch.maybe_appended,
        )

    def _cause(self, batch: ProducerBatch) -> str:
        if batch.error is not None:
            return str(batch.error)
        found = obstacle(self.network, batch.topic, batch.partition)
        return found or str(self.network.last_error or "the broker is busy")

    def _retry_s(self, now_s: float) -> float | None:
        times = [queue.retry_at_s() for queue in self._busy.values()]
        times.append(self._producer_ids.retry_at_s)
        later = [at_s for at_s in times if at_s is not None and at_s > now_s]
        return min(later, default=None)

    # --- sending ---

    def _dispatch(self, now_s: float) -> None:
        by_leader: dict[int, list[PartitionQueue]] = {}
        cluster = self.network.cluster
        for key, queue in self._busy.items():
            leader = cluster.leader(*key)
            if leader is None:
                self.network.request_update()
            else:
                by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            if not self.network.ready(leader):
                continue
            while self.network.in_flight_count(leader) < self._settings.in_flight_max:
                batches = self._pick(queues, now_s)
                if not batches:
                    break
                self._send(leader, batches, now_s)

    def _pick(self, queues: list[PartitionQueue], now_s: float) -> dict[TopicPartition, ProducerBatch]:
        """Returns at most one batch per partition, as many as fit into a request.

        Starts with another partition each time.
        """
        picked: dict[TopicPartition, ProducerBatch] = {}
        left_bytes = self._settings.max_request_size_bytes - REQUEST_OVERHEAD_BYTES
        self._rotation += 1
        for i in range(len(queues)):
            queue = queues[(self._rotation + i) % len(queues)]
            batch = queue.next_to_send(now_s)
            if batch is None or (picked and len(batch.data) > left_bytes):
                continue
            if len(picked) == PARTITIONS_AT_ONCE_MAX:
                break
            left_bytes -= len(batch.data)
            picked[queue.topic, queue.partition] = batch
        return picked

    def _send(self, node_id: int, batches: dict[TopicPartition, ProducerBatch], now_s: float) -> None:
        topics: dict[str, list[ProducePartition]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append(ProducePartition(partition, batch.data))
            self._queues[topic, partition].on_sent(batch, now_s)
        request = ProduceRequest(
            transactional_id=None,
            acks=self._settings.acks,
            timeout_ms=self._settings.request_timeout_ms,
            topics=[ProduceTopic(topic, NO_UUID, parts) for topic, parts in topics.items()],
        )
        try:
            self.network.send(node_id, produce_call(request), partial(self._on_response, batches))
        except ClientError as error:
            for batch in batches.values():
                self._give_up(batch, error)

    # --- responses ---

    def _on_response(
        self, batches: dict[TopicPartition, ProducerBatch], body: Any, error: ClientError | None
    ) -> None:
        results: dict[TopicPartition, ProducePartitionResult] = {}
        if body is not None:
            results = {(t.name, p.partition): p for t in body.topics for p in t.partitions}
        for key, batch in batches.items():
            if batch.is_done:
                continue  # `stop` has already failed this batch
            if error is not None:
                self._retry(batch, error, maybe_appended=True)
            elif self._settings.acks == 0:
                self._deliver(batch, -1, -1)
            elif key not in results:
                missing = NetworkError("the broker's response lacks the partition")
                self._retry(batch, missing, maybe_appended=True)
            else:
                self._on_result(batch, results[key])

    def _on_result(self, batch: ProducerBatch, result: ProducePartitionResult) -> None:
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._deliver(batch, result.base_offset, result.log_append_time_ms)
            return
        error = BrokerError(code, f"{batch.topic}-{batch.partition}", result.error_message)
        queue = self._queues[batch.topic, batch.partition]
        if batch.surely_appended and (code in _GAP or not code.retriable):
            self._deliver(batch, -1, -1)
        elif code in _GAP and queue.is_idempotent:
            batch.error = error
            queue.on_gap(batch, at_s=self._retry_time(batch))
        elif code in _FENCED and queue.is_idempotent:
            batch.error = error
            queue.on_fenced(batch, at_s=self._retry_time(batch))
        elif code.retriable:
            self._retry(batch, error, maybe_appended=code not in _NOT_APPENDED)
        else:
            self._give_up(batch, error)

    def _retry(self, batch: ProducerBatch, error: ClientError, *, maybe_appended: bool) -> None:
        if self._settings.acks == 0 or not error.retriable:
            self._give_up(batch, error)
            return
        batch.error = error
        if batch.attempts == TOLD_ATTEMPTS:
            logger.warning("%s; sent again for %g s at most", error, self._settings.delivery_timeout_s)
        self.network.request_update()
        queue = self._queues[batch.topic, batch.partition]
        queue.retry_later(batch, at_s=self._retry_time(batch), maybe_appended=maybe_appended)

    def _retry_time(self, batch: ProducerBatch) -> float:
        return self._clock() + self._settings.retry_backoff.delay_s(batch.attempts, self._draw)

    def _deliver(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        self._queues[batch.topic, batch.partition].on_acknowledged(batch)
        self._notify("batch_delivered", batch.identity, base_offset)
        self._accumulator.finish(batch, base_offset=base_offset, log_append_time_ms=log_append_time_ms)

    def _give_up(self, batch: ProducerBatch, error: ClientError) -> None:
        self._queues[batch.topic, batch.partition].on_ended(batch)
        self._fail(batch, error)

    def _fail(self, batch: ProducerBatch, error: ClientError) -> None:
        if batch.is_numbered:
            self._notify("batch_failed", batch.identity, error)
        self._accumulator.finish(batch, error=error)
