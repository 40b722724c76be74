"""The producer that an application calls. Owns the choice of a partition and waiting in the calling thread.

`client.accumulator` builds batches in the calling thread; `client.sender` sends them in its own.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Final, Literal
from uuid import UUID

from headrace.client.accumulator import Accumulator
from headrace.client.batches import ProducerBatch
from headrace.client.cluster import check_topic
from headrace.client.delivery import DeliveryFuture, OnDelivery
from headrace.client.errors import (
    BrokerError,
    ClosedError,
    FlushTimeoutError,
    MetadataTimeoutError,
    RecordTooLargeError,
    UnknownTopicError,
)
from headrace.client.faults import BatchInterceptor
from headrace.client.lifecycle import Client
from headrace.client.network import Network
from headrace.client.observer import BatchObserver
from headrace.client.sender import Sender
from headrace.client.settings import Acks, ProducerSettings
from headrace.process.clock import elapsed_s
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.partitioning import partition_for_key
from headrace.wire.records import Header
from headrace.wire.timestamps import INT64_MAX, INT64_MIN

JOIN_WAIT_MAX_S: Final = 5.0
_RECORD_MARGIN_BYTES: Final = 1024


class Producer(Client):
    """Sends records to topics, in batches, in the background. Any number of threads may share one.

    `send` returns a future at once, unless the topic is not known yet or memory is full: then it waits, at
    most `max_block_ms`. With `on_full="raise"` it raises `BufferFullError` instead if memory is full.

    Idempotent by default (with acks="all"): retries neither repeat nor reorder records within a partition.
    Otherwise retries may repeat records, and reorder them unless `max_in_flight` is 1.

    `batch_boundary_ms`: records whose timestamps fall in different multiples of it never share a batch.
    `observer` is called for every batch (`client.observer`); `interceptor` plants losses (`client.faults`).

    Close it (it is a context manager): records that are not delivered when the process ends are lost. After
    `os.fork` the child must create its own.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        acks: Acks = "all",
        idempotent: bool | None = None,
        linger_ms: float = 5,
        batch_size_bytes: int = 64 * 1024,
        buffer_memory_bytes: int = 64 * 1024 * 1024,
        on_full: Literal["block", "raise"] = "block",
        max_block_ms: float = 60_000,
        compression: str | Codec = "none",
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        max_request_size_bytes: int = 1024 * 1024,
        max_in_flight: int = 5,
        client_id: str = "headrace-producer",
        batch_boundary_ms: int | None = None,
        observer: BatchObserver | None = None,
        interceptor: BatchInterceptor | None = None,
        clock: Callable[[], float] = elapsed_s,
        wall_clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises `ValueError` for invalid or contradictory options. Connects in the background."""
        self._closed = self._stopped = (
            True  # until it is complete: `__del__` runs after an error in here, too
        )
        super().__init__("producer")
        self._settings = ProducerSettings.checked(
            acks=acks,
            idempotent=idempotent,
            compression=compression,
            batch_size_bytes=batch_size_bytes,
            linger_ms=linger_ms,
            buffer_memory_bytes=buffer_memory_bytes,
            on_full=on_full,
            max_block_ms=max_block_ms,
            max_request_size_bytes=max_request_size_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            max_in_flight=max_in_flight,
            batch_boundary_ms=batch_boundary_ms,
        )
        self._clock = clock
        self._wall_clock = wall_clock
        self._is_real_time = wall_clock is time.time
        self._draw = draw
        self._start(bootstrap, client_id, observer, interceptor)
        self._closed = self._stopped = False

    def _start(
        self,
        bootstrap: str | Iterable[str],
        client_id: str,
        observer: BatchObserver | None,
        interceptor: BatchInterceptor | None,
    ) -> None:
        self._network = Network(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=self._settings.request_timeout_ms,
            create_topics=True,
            clock=self._clock,
            draw=self._draw,
        )
        self._accumulator = Accumulator(
            self._settings, interceptor=interceptor, clock=self._clock, wake=self._network.wake
        )
        # Every record needs these.
        self._append = self._accumulator.append
        self._sticky = self._accumulator.sticky
        self._value_max_bytes = self._settings.max_request_size_bytes - _RECORD_MARGIN_BYTES
        self._sender = Sender(
            self._accumulator,
            self._network,
            self._settings,
            observer=observer,
            interceptor=interceptor,
            clock=self._clock,
            draw=self._draw,
            name=client_id,
        )
        self._sender.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Accepts one record for sending; its outcome is in the future, and passed to `on_delivery`.

        Without `partition` the key selects one (murmur2, as in Kafka); without a key any partition is taken.
        `timestamp_ms` defaults to now. Raises `BufferFullError`, `RecordTooLargeError`, `UnknownTopicError`,
        `MetadataTimeoutError`, `BrokerError` (the topic cannot be used), `ClosedError`, `ForkedError`, and
        `TypeError` or `ValueError` for arguments that no record can have.
        """
        if self._closed:
            self._check_usable()
        if type(value) is not bytes and value is not None:
            value = _as_bytes("value", value)
        if type(key) is not bytes and key is not None:
            key = _as_bytes("key", key)
        if value is not None and len(value) > self._value_max_bytes:
            raise RecordTooLargeError(
                f"{topic}: the value has {len(value)} bytes,"
                f" max_request_size_bytes is {self._settings.max_request_size_bytes}"
            )
        if type(partition) is not int and partition is not None:
            partition = _as_partition(partition)  # raises here, not later in the sender thread
        until_s = None
        count = self._network.cluster.partition_counts.get(topic)
        if not count or (partition is not None and not 0 <= partition < count):
            until_s = self._clock() + self._settings.max_block_s
            count = self._wait_for_topic(topic, partition, until_s)
        if partition is None:
            if key is not None:
                partition = partition_for_key(key, count)
            else:
                partition = self._sticky.get(topic)
                if partition is None:
                    partition = self._choose_sticky(topic, count)
        if timestamp_ms is None:
            # Reading the clock in integers is faster, and counts for every record.
            timestamp_ms = (
                time.time_ns() // 1_000_000 if self._is_real_time else int(self._wall_clock() * 1000)
            )
        elif type(timestamp_ms) is not int or not INT64_MIN <= timestamp_ms <= INT64_MAX:
            timestamp_ms = _as_timestamp(timestamp_ms)  # raises here, not later in the sender thread
        future = self._append(topic, partition, timestamp_ms, key, value, headers, until_s)
        if on_delivery is not None:
            future.report(on_delivery)
        return future

    def topic_id(self, topic: str) -> UUID:
        """Returns the id of a topic that was sent to (KIP-516); the zero id if it is not known."""
        return self._network.cluster.topic_id(topic)

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions the topic has; waits for metadata and raises as `send` does."""
        self._check_usable()
        until_s = self._clock() + self._settings.max_block_s
        return self._network.cluster.partition_count(topic) or self._wait_for_topic(topic, None, until_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Sends all accepted records and waits until each is delivered or has failed, and is reported:
        delivery callbacks have returned.

        Raises `FlushTimeoutError` after `timeout_s`. Failures are in the futures, not raised here.
        """
        self._check_usable()
        if self._sender.is_current_thread:
            raise RuntimeError("flush in a delivery callback would never return")
        unfinished = self._flush(timeout_s, ProducerBatch.wait_reported)
        if waiting := [batch for batch in unfinished if not batch.is_done]:
            raise FlushTimeoutError(f"{len(waiting)} batches are not delivered after {timeout_s:g} s")
        if unfinished:
            raise FlushTimeoutError(
                f"delivery callbacks of {len(unfinished)} batches have not returned after {timeout_s:g} s"
            )

    def _flush(
        self, timeout_s: float | None, wait: Callable[[ProducerBatch, float | None], bool]
    ) -> list[ProducerBatch]:
        """Returns the batches for which `wait` has not ended after `timeout_s`."""
        until_s = None if timeout_s is None else self._clock() + timeout_s
        batches = self._accumulator.flush()
        for i, batch in enumerate(batches):
            if not wait(batch, None if until_s is None else max(0.0, until_s - self._clock())):
                return [each for each in batches[i:] if not wait(each, 0.0)]
        return []

    def close(self, timeout_s: float | None = None) -> None:
        """Delivers all accepted records, in at most `timeout_s` (None: the delivery timeout), then stops.

        Records not delivered by then fail with `ClosedError`. May be called again, also if a signal's handler
        raised in it: then it goes on. In a delivery callback it does not wait.
        """
        if self._stopped or self._forked:
            return
        self._closed = True
        self._accumulator.refuse(ClosedError("the producer is closed"))
        if not self._sender.is_current_thread:
            self._flush(timeout_s, ProducerBatch.wait)  # a callback may wait for what the caller holds
        self._sender.stop(JOIN_WAIT_MAX_S)
        self._stopped = True

    @property
    def _is_closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        if not self._stopped and not self._forked:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            self._closed = self._stopped = True
            self._sender.stop(0.0)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._closed = True

    def _choose_sticky(self, topic: str, count: int) -> int:
        candidates = self._network.cluster.led_partitions(topic) or range(count)
        partition = self._sticky[topic] = candidates[int(self._draw() * len(candidates))]
        return partition

    def _wait_for_topic(self, topic: str, partition: int | None, until_s: float) -> int:
        check_topic(topic)
        if partition is not None and partition < 0:
            raise UnknownTopicError(f"{topic} has no partition {partition}")
        if self._sender.is_current_thread:
            raise RuntimeError(f"{topic} is not known yet, and a delivery callback cannot wait for it")
        topics = self._sender.topics
        version = topics.version
        topics.want(topic)
        try:
            return self._await_partition(topic, partition, version, until_s)
        finally:
            topics.release(topic)

    def _await_partition(self, topic: str, partition: int | None, version: int, until_s: float) -> int:
        topics = self._sender.topics
        while True:
            topics.wait(version, until_s - self._clock())
            self._check_usable()
            self._accumulator.check_open()
            version = topics.version
            info = self._network.cluster.topics.get(topic)
            count = self._network.cluster.partition_count(topic)
            if count and (partition is None or partition < count):
                return count
            if info is not None and not info.error.retriable and info.error is not ErrorCode.NONE:
                raise BrokerError(info.error, f"topic {topic!r}")
            if self._clock() >= until_s:
                break
        if count:
            raise UnknownTopicError(f"{topic} has {count} partitions, there is no {partition}")
        if info is not None and info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopicError(f"there is no topic {topic!r}, and the brokers did not create it")
        cause = self._network.last_error or "no broker sent its metadata"
        raise MetadataTimeoutError(
            f"no metadata of topic {topic!r} after {self._settings.max_block_s:g} s: {cause}"
        )


def _as_timestamp(value: int) -> int:
    timestamp_ms = index(value)
    if not INT64_MIN <= timestamp_ms <= INT64_MAX:
        raise ValueError(f"timestamp_ms must fit in 64 bits, {timestamp_ms} does not")
    return timestamp_ms


def _as_partition(value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]  # what has no index is refused
    except TypeError:
        raise TypeError(f"partition must be an int or None, not {type(value).__name__}") from None


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be bytes or None, not {type(value).__name__}; encode it first")
