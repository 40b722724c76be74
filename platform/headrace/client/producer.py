"""The producer: what an application calls.

Owns the choice of a partition and the application's side of waiting.

Batches are built by `client.accumulator` in the calling thread and sent by `client.sender` in a thread of
its own.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from headrace.client import forks
from headrace.client.accumulator import Accumulator
from headrace.client.delivery import DeliveryFuture, OnDelivery
from headrace.client.errors import (
    BrokerError,
    ClosedError,
    FlushTimeoutError,
    ForkedError,
    MetadataTimeoutError,
    RecordTooLargeError,
    UnknownTopicError,
)
from headrace.client.faults import BatchInterceptor
from headrace.client.network import Network
from headrace.client.observer import BatchObserver
from headrace.client.sender import Sender
from headrace.client.settings import Acks, checked
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.partitioning import partition_for_key
from headrace.wire.records import Header

JOIN_WAIT_MAX_S: Final = 5.0


class Producer:
    """Sends records to topics, in batches, in the background. Any number of threads may share one.

    `send` returns at once with a future, unless the topic is not known yet or memory is full: then it
    waits, at most `max_block_ms`. With `on_full="raise"` full memory raises `BufferFullError` at once
    instead.

    Idempotent by default (with acks="all"): retries neither repeat nor reorder records within a partition.
    Without, retries may repeat them, and reorder them unless `max_in_flight` is 1.

    `batch_boundary_ms`: records whose timestamps fall in different multiples of it never share a batch.
    `observer` hears of every batch (`client.observer`), `interceptor` may plant losses (`client.faults`).

    Close it (it is a context manager): what is not delivered when the process ends is lost. After `os.fork`
    the child must make its own.
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
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises `ValueError` for settings that contradict each other.

        Nothing is connected yet: `send` finds out.
        """
        self._closed = True  # until all of it is there, so that __del__ may look
        self._forked = False
        settings = self._settings = checked(
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
        self._draw = draw
        network = Network(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            create_topics=True,
            clock=clock,
            draw=draw,
        )
        self._accumulator = Accumulator(
            batch_size_bytes=settings.batch_size_bytes,
            linger_s=settings.linger_s,
            memory_limit_bytes=settings.buffer_memory_bytes,
            boundary_ms=settings.boundary_ms,
            interceptor=interceptor,
            clock=clock,
            wake=network.wake,
        )
        self._sender = Sender(
            self._accumulator,
            network,
            settings,
            observer=observer,
            interceptor=interceptor,
            clock=clock,
            draw=draw,
            name=client_id,
        )
        self._network = network
        forks.watch(self)
        self._sender.start()
        self._closed = False

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
        """Hand over one record.

        Without `partition` the key decides (murmur2, as Kafka), without a key any will do.

        `timestamp_ms` is now if not given. Raises `BufferFullError`, `RecordTooLargeError`,
        `UnknownTopicError`, `MetadataTimeoutError`, `BrokerError` (the topic cannot be used),
        `ClosedError`, `ForkedError`; whatever happens after that is in the future, and told to
        `on_delivery`.
        """
        if self._closed:
            self._refuse()
        if type(value) is not bytes and value is not None:
            value = _as_bytes("value", value)
        if type(key) is not bytes and key is not None:
            key = _as_bytes("key", key)
        if value is not None and len(value) > self._settings.max_request_size_bytes - _RECORD_MARGIN_BYTES:
            raise RecordTooLargeError(
                f"{topic}: a value of {len(value)} bytes,"
                f" max_request_size_bytes is {self._settings.max_request_size_bytes}"
            )
        until_s = self._clock() + self._settings.max_block_s
        count = self._network.cluster.partition_count(topic)
        if not count or (partition is not None and not 0 <= partition < count):
            count = self._wait_for_topic(topic, partition, until_s)
        if partition is None:
            partition = self._sticky(topic, count) if key is None else partition_for_key(key, count)
        if timestamp_ms is None:
            timestamp_ms = int(self._wall_clock() * 1000)
        if not self._settings.blocks_when_full:
            until_s = 0.0
        future = self._accumulator.append(topic, partition, timestamp_ms, key, value, headers, until_s)
        if on_delivery is not None:
            future.report(on_delivery)
        return future

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has, waiting at most `max_block_ms` to find out.

        Raises as `send` does.
        """
        self._check_usable()
        until_s = self._clock() + self._settings.max_block_s
        return self._network.cluster.partition_count(topic) or self._wait_for_topic(topic, None, until_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all that was handed over, and wait until each record is delivered or has failed.

        Raises `FlushTimeoutError` after `timeout_s`. Failures are in the futures, not raised here.
        """
        self._check_usable()
        if self._sender.is_current_thread:
            raise RuntimeError("flush would wait for itself in a callback")
        until_s = None if timeout_s is None else self._clock() + timeout_s
        unfinished = self._accumulator.flush()
        for batch in unfinished:
            if not batch.wait(None if until_s is None else max(0.0, until_s - self._clock())):
                left = sum(not each.is_done for each in unfinished)
                raise FlushTimeoutError(f"{left} batches are not delivered after {timeout_s:g} s")

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was handed over, at most `timeout_s` (by default as long as delivery may take), then
        stop.

        What is not delivered by then fails with `ClosedError`. May be called again; in a callback it does
        not wait.
        """
        if self._closed:
            return
        self._closed = True
        self._accumulator.refuse(ClosedError("the producer is closed"))
        if not self._sender.is_current_thread:
            until_s = None if timeout_s is None else self._clock() + timeout_s
            for batch in self._accumulator.flush():
                if not batch.wait(None if until_s is None else max(0.0, until_s - self._clock())):
                    break
        self._sender.stop(JOIN_WAIT_MAX_S)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and not self._forked:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            self._closed = True
            self._sender.stop(0.0)

    def after_fork_in_child(self) -> None:
        """The sender thread stayed in the parent, and so must the connections: this copy is of no use."""
        self._forked = self._closed = True

    def _refuse(self) -> None:
        if self._forked:
            raise ForkedError("this producer was made before os.fork; make a new one in the child")
        raise ClosedError("the producer is closed")

    def _check_usable(self) -> None:
        if self._closed:
            self._refuse()

    def _sticky(self, topic: str, count: int) -> int:
        sticky = self._accumulator.sticky
        partition = sticky.get(topic)
        if partition is None:
            able = self._network.cluster.led_partitions(topic) or range(count)
            partition = sticky[topic] = able[int(self._draw() * len(able))]
        return partition

    def _wait_for_topic(self, topic: str, partition: int | None, until_s: float) -> int:
        if partition is not None and partition < 0:
            raise UnknownTopicError(f"{topic} has no partition {partition}")
        if self._sender.is_current_thread:
            raise RuntimeError(f"{topic} is not known yet, and a callback must not wait for it")
        seen = self._sender.news_version
        self._sender.want_topic(topic)
        while True:
            self._sender.wait_for_news(seen, until_s - self._clock())
            self._check_usable()
            self._accumulator.check_open()
            seen = self._sender.news_version
            info = self._network.cluster.topics.get(topic)
            count = self._network.cluster.partition_count(topic)
            if count and (partition is None or partition < count):
                return count
            if info is not None and not info.error.retriable and info.error is not ErrorCode.NONE:
                raise BrokerError(info.error, f"topic {topic!r}")
            if self._clock() >= until_s:
                break
        waited_s = self._settings.max_block_s
        if count:
            raise UnknownTopicError(f"{topic} has {count} partitions, there is no {partition}")
        self._sender.forget_topic(topic)
        if info is not None and info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopicError(f"there is no topic {topic!r}, and the brokers did not create it")
        reason = self._network.last_error or "the brokers said nothing of it"
        raise MetadataTimeoutError(f"topic {topic!r} is not known after {waited_s:g} s: {reason}")


_RECORD_MARGIN_BYTES: Final = 1024


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be bytes or None, not {type(value).__name__}; encode it first")
