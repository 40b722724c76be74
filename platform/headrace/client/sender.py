"""The producer's background thread: numbers batches, sends them, deals with every answer. Owns the network.

Each turn of its loop: take what has closed, number it, give up what is too old, bump epochs where a gap was
left, send what may go, wait for the network. What an answer means for the order of a partition is
`client.ordering`'s business.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.client.accumulator import Accumulator
from headrace.client.batches import ProducerBatch
from headrace.client.calls import init_producer_id_call, produce_call
from headrace.client.delivery import call_safely
from headrace.client.errors import BrokerError, ClientError, ClosedError, DeliveryTimeoutError, NetworkError
from headrace.client.faults import BatchInterceptor, Verdict
from headrace.client.network import Network
from headrace.client.observer import BatchObserver
from headrace.client.ordering import NO_PRODUCER, PartitionQueue
from headrace.client.settings import ProducerSettings
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProducePartitionResult, ProduceRequest, ProduceTopic

logger = logging.getLogger(__name__)

IDLE_WAIT_S: Final = 60.0
REQUEST_OVERHEAD_BYTES: Final = 512

_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_DISOWNED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_MAYBE_APPENDED: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NETWORK_EXCEPTION}
)

Key = tuple[str, int]


class Sender:
    """Everything here runs in the sender thread, but `start`, `stop`, `want_topic` and `wait_for_news`."""

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
        self._unnumbered: deque[ProducerBatch] = deque()
        self._queues: dict[Key, PartitionQueue] = {}
        self._busy: dict[Key, PartitionQueue] = {}  # those that have batches
        self._turn = 0
        self._producer: tuple[int, int] | None = None if settings.idempotent else (NO_PRODUCER, -1)
        self._producer_asked = False
        self._producer_failures = 0
        self._producer_not_before_s = 0.0
        self._wanted_topics: deque[tuple[str, bool]] = deque()
        self._news = threading.Condition()
        self._seen_version = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-sender", daemon=True)

    # other threads

    def start(self) -> None:
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def want_topic(self, topic: str) -> None:
        """Have metadata of `topic` fetched, again if it is known."""
        self._wanted_topics.append((topic, True))
        self.network.wake()

    def forget_topic(self, topic: str) -> None:
        """There is no such topic: ask for it no more."""
        self._wanted_topics.append((topic, False))

    def wait_for_news(self, seen_version: int, timeout_s: float) -> None:
        """Wait until the cluster is known in a newer version than `seen_version`."""
        with self._news:
            self._news.wait_for(lambda: self._seen_version > seen_version or self._stopping, timeout_s)

    @property
    def news_version(self) -> int:
        return self._seen_version

    def stop(self, timeout_s: float) -> None:
        """End the thread; what is not delivered fails with `ClosedError`."""
        self._stopping = True
        self.network.wake()
        if not self.is_current_thread:
            self._thread.join(timeout_s)

    # the thread

    def _run(self) -> None:
        error: ClientError = ClosedError("the producer was closed before this was delivered")
        try:
            while not self._stopping:
                self._turn_once()
        except Exception as failure:
            logger.exception("the sender thread failed")
            error = ClientError(f"the producer's sender thread failed: {failure!r}; make a new producer")
        self._stopping = True
        self._accumulator.refuse(error)
        self.network.close()
        self._unnumbered.clear()
        self._busy.clear()
        for batch in self._accumulator.unfinished():
            self._fail(batch, error)
        with self._news:
            self._news.notify_all()

    def _turn_once(self) -> None:
        while self._wanted_topics:
            topic, wanted = self._wanted_topics.popleft()
            if wanted:
                self.network.add_topics([topic])
                self.network.request_update()
            else:
                self.network.forget_topic(topic)
        closed, linger_until_s = self._accumulator.due()
        self._unnumbered.extend(closed)
        now_s = self._clock()
        self._number()
        expiry_s = self._expire(now_s)
        self._bump()
        self._dispatch(now_s)
        waits = [at_s for at_s in (linger_until_s, expiry_s, self._retry_s(now_s)) if at_s is not None]
        self.network.poll(max(0.0, min([now_s + IDLE_WAIT_S, *waits]) - self._clock()))
        if self.network.cluster_version != self._seen_version:
            with self._news:
                self._seen_version = self.network.cluster_version
                self._news.notify_all()

    def _number(self) -> None:
        """Give closed batches their identities, in order; not before there is a producer id to number
        under.
        """
        while self._unnumbered:
            producer = self._producer
            if producer is None:
                self._ask_for_producer()
                return
            batch = self._unnumbered.popleft()
            queue = self._queue(batch, producer)
            queue.add(batch, self._settings.codec)
            self._tell("batch_closed", batch.identity)
            if self._is_dropped(batch):
                queue.ended(batch)
                self._accumulator.finish(batch)

    def _queue(self, batch: ProducerBatch, producer: tuple[int, int]) -> PartitionQueue:
        key = (batch.topic, batch.partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PartitionQueue(
                *key, producer_id=producer[0], producer_epoch=producer[1], window=self._settings.in_flight_max
            )
        elif not len(queue) and queue.can_bump and not queue.needs_new_id:
            queue.bump()
        self._busy[key] = queue
        return queue

    def _is_dropped(self, batch: ProducerBatch) -> bool:
        if self._interceptor is None:
            return False
        return self._interceptor.verdict(batch.identity, batch.record_limit) is Verdict.DROP

    def _tell(self, event: str, *facts: object) -> None:
        if self._observer is not None:
            call_safely(partial(getattr(self._observer, event), *facts))

    # the producer id

    def _ask_for_producer(self) -> None:
        if self._producer_asked or self._clock() < self._producer_not_before_s:
            return
        node_id = self.network.any_ready()
        if node_id is None:
            return
        try:
            self.network.send(node_id, init_producer_id_call(), self._on_producer)
            self._producer_asked = True
        except ClientError as error:
            self._refuse_all(error)

    def _on_producer(self, body: Any, error: ClientError | None) -> None:
        self._producer_asked = False
        if error is None and body.error_code != ErrorCode.NONE:
            error = BrokerError(body.error_code, "no producer id was given")
        if error is None:
            self._producer = (body.producer_id, body.producer_epoch)
            self._producer_failures = 0
        elif error.retriable:
            self._producer_failures += 1
            wait_s = self._settings.retry_backoff.delay_s(self._producer_failures, self._draw)
            self._producer_not_before_s = self._clock() + wait_s
        else:
            self._refuse_all(error)

    def _refuse_all(self, error: ClientError) -> None:
        """Nothing can be numbered, and that will not change."""
        self._accumulator.refuse(error)
        while self._unnumbered:
            self._accumulator.finish(self._unnumbered.popleft(), error=error)

    def _bump(self) -> None:
        for queue in self._busy.values():
            if not queue.can_bump:
                continue
            producer = None
            if queue.needs_new_id:
                producer = self._producer
                if producer is None or producer[0] == queue.producer_id:
                    self._producer = None
                    self._ask_for_producer()
                    continue
            for old, new in queue.bump(producer):
                self._tell("batch_renumbered", old, new)

    # time

    def _expire(self, now_s: float) -> float | None:
        """Give up what is too old. Returns when the next batch will be, if it is still here then."""
        timeout_s = self._settings.delivery_timeout_s
        while self._unnumbered and self._unnumbered[0].created_s + timeout_s <= now_s:
            batch = self._unnumbered.popleft()
            self._accumulator.finish(batch, error=self._too_late(batch, "no producer id was given"))
        for key, queue in list(self._busy.items()):
            for batch in queue.expired(now_s - timeout_s):
                if batch.surely_appended:
                    self._delivered(batch, -1, -1)
                    continue
                queue.ended(batch)
                self._fail(batch, self._too_late(batch, self._obstacle(batch)))
            if not len(queue):
                del self._busy[key]
        waiting = list(self._unnumbered)[:1]
        for queue in self._busy.values():
            waiting += [batch for batch in queue.batches if not batch.in_flight]
        return min((batch.created_s + timeout_s for batch in waiting), default=None)

    def _too_late(self, batch: ProducerBatch, obstacle: str) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(
            f"{batch.topic}-{batch.partition}: not acknowledged in {self._settings.delivery_timeout_s:g} s"
            f" and {batch.attempts} attempts ({obstacle})",
            maybe_appended=batch.maybe_appended,
        )

    def _obstacle(self, batch: ProducerBatch) -> str:
        if batch.error is not None:
            return str(batch.error)
        if self.network.cluster.leader(batch.topic, batch.partition) is None:
            return "the partition has no leader"
        return str(self.network.last_error or "the broker is busy")

    def _retry_s(self, now_s: float) -> float | None:
        times = [queue.retry_at_s() for queue in self._busy.values()]
        if self._producer is None and not self._producer_asked:
            times.append(self._producer_not_before_s)
        later = [at_s for at_s in times if at_s is not None and at_s > now_s]
        return min(later, default=None)

    # sending

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
                self._send(leader, batches)

    def _pick(self, queues: list[PartitionQueue], now_s: float) -> dict[Key, ProducerBatch]:
        """One batch of each partition whose turn it is, as many as fit into a request; another one first
        each time.
        """
        picked: dict[Key, ProducerBatch] = {}
        left_bytes = self._settings.max_request_size_bytes - REQUEST_OVERHEAD_BYTES
        self._turn += 1
        for i in range(len(queues)):
            queue = queues[(self._turn + i) % len(queues)]
            batch = queue.next_to_send(now_s)
            if batch is None or (picked and len(batch.data) > left_bytes):
                continue
            left_bytes -= len(batch.data)
            picked[queue.topic, queue.partition] = batch
        return picked

    def _send(self, node_id: int, batches: dict[Key, ProducerBatch]) -> None:
        topics: dict[str, list[ProducePartition]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append(ProducePartition(partition, batch.data))
            self._queues[topic, partition].sent(batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=self._settings.acks,
            timeout_ms=self._settings.request_timeout_ms,
            topics=[ProduceTopic(topic, NO_UUID, parts) for topic, parts in topics.items()],
        )
        try:
            self.network.send(
                node_id, produce_call(request), lambda body, error: self._on_answer(batches, body, error)
            )
        except ClientError as error:
            for batch in batches.values():
                self._give_up(batch, error)

    # answers

    def _on_answer(self, batches: dict[Key, ProducerBatch], body: Any, error: ClientError | None) -> None:
        results: dict[Key, ProducePartitionResult] = {}
        if body is not None:
            results = {(t.name, p.partition): p for t in body.topics for p in t.partitions}
        for key, batch in batches.items():
            if batch.is_done:
                continue  # the producer is closing
            if error is not None:
                self._retry(batch, error, maybe_appended=True)
            elif self._settings.acks == 0:
                self._delivered(batch, -1, -1)
            elif key not in results:
                missing = NetworkError("the broker's answer left the partition out")
                self._retry(batch, missing, maybe_appended=True)
            else:
                self._on_result(batch, results[key])

    def _on_result(self, batch: ProducerBatch, result: ProducePartitionResult) -> None:
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._delivered(batch, result.base_offset, result.log_append_time_ms)
            return
        error = BrokerError(code, f"{batch.topic}-{batch.partition}", result.error_message)
        queue = self._queues[batch.topic, batch.partition]
        if code in _GAP and batch.surely_appended:
            self._delivered(batch, -1, -1)
        elif code in _GAP and queue.is_idempotent:
            batch.error = error
            queue.out_of_order(batch, at_s=self._retry_time(batch))
        elif code in _DISOWNED and queue.is_idempotent:
            batch.error = error
            queue.disowned(batch, at_s=self._retry_time(batch))
        elif code.retriable:
            self._retry(batch, error, maybe_appended=code in _MAYBE_APPENDED)
        else:
            self._give_up(batch, error)

    def _retry(self, batch: ProducerBatch, error: ClientError, *, maybe_appended: bool) -> None:
        if self._settings.acks == 0 or not error.retriable:
            self._give_up(batch, error)
            return
        batch.error = error
        self.network.request_update()
        queue = self._queues[batch.topic, batch.partition]
        queue.to_retry(batch, at_s=self._retry_time(batch), maybe_appended=maybe_appended)

    def _retry_time(self, batch: ProducerBatch) -> float:
        return self._clock() + self._settings.retry_backoff.delay_s(batch.attempts, self._draw)

    def _delivered(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        self._queues[batch.topic, batch.partition].acknowledged(batch)
        self._tell("batch_delivered", batch.identity, base_offset)
        self._accumulator.finish(batch, base_offset=base_offset, log_append_time_ms=log_append_time_ms)

    def _give_up(self, batch: ProducerBatch, error: ClientError) -> None:
        self._queues[batch.topic, batch.partition].ended(batch)
        self._fail(batch, error)

    def _fail(self, batch: ProducerBatch, error: ClientError) -> None:
        if batch.is_numbered:
            self._tell("batch_failed", batch.identity, error)
        self._accumulator.finish(batch, error=error)
