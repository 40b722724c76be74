"""What a producer waits for, and what it must not wait for: topics, memory, brokers that read nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fix_client import FakeCluster, MakeProducer, StartCluster, values
from fix_fake_broker import Fault, refuse
from headrace.client import DeliveryFuture, RecordMetadata
from headrace.client.errors import (
    BrokerError,
    BufferFullError,
    ClientError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    MetadataTimeoutError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

WAIT_S = 30


def until_asked(cluster: FakeCluster, api_key: ApiKey, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(cluster.requests_of(api_key)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_topic_that_is_found_too_late_for_its_record_is_not_forgotten(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Metadata comes after `max_block_ms`. The next record finds the topic; its leader may move later."""
    cluster = fake_cluster(brokers=2)
    producer = fast_producer(cluster, max_block_ms=30, delivery_timeout_ms=6000)
    until_asked(cluster, ApiKey.METADATA, 1)
    cluster.next(ApiKey.METADATA, *[Fault(delay_s=0.1)] * 3)
    with pytest.raises(MetadataTimeoutError):
        producer.send("t", b"too early")
    deadline = time.monotonic() + WAIT_S
    while not producer._network.cluster.partition_count("t"):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    producer.send("t", b"1").result(WAIT_S)
    with cluster.lock:
        cluster.leaders["t", 0] = 2
    producer.send("t", b"2").result(3)
    assert values(cluster.log()) == [b"1", b"2"]


def test_a_callback_does_not_wait_for_memory_that_only_its_thread_frees(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    producer = fast_producer(
        cluster, buffer_memory_bytes=4000, batch_size_bytes=1000, max_block_ms=3000, linger_ms=0
    )
    waited_s: list[float] = []
    more: list[DeliveryFuture] = []
    ended = threading.Event()

    def send_more(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        began = time.monotonic()
        try:
            while len(more) < 20:
                more.append(producer.send("t", b"x" * 500))
        except BufferFullError:
            waited_s.append(time.monotonic() - began)
        ended.set()

    producer.send("t", b"first", on_delivery=send_more).result(WAIT_S)
    assert ended.wait(WAIT_S)
    assert [each < 1 for each in waited_s] == [True]
    assert more
    assert all(future.exception(WAIT_S) is None for future in more)


def test_a_callback_that_waits_for_another_delivery_is_told_at_once(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Only its own thread can deliver that record."""
    producer = fast_producer(fake_cluster())
    refused: list[str] = []

    def send_another(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        try:
            producer.send("t", b"2").result()
        except RuntimeError as problem:
            refused.append(str(problem))

    producer.send("t", b"1", on_delivery=send_another)
    producer.flush(WAIT_S)
    assert refused == [
        "t-0: a delivery callback that waits for another delivery would never return; use add_done_callback"
    ]


def test_flush_returns_after_the_callbacks(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    """Else a caller that then looks for failed deliveries would miss those that are not reported yet."""
    cluster = fake_cluster()
    producer = fast_producer(cluster)
    producer.send("t", b"1").result(WAIT_S)
    failures: list[ClientError | None] = []

    def report(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        time.sleep(0.1)
        failures.append(error)

    cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
    for _ in range(3):
        producer.send("t", b"2", on_delivery=report)
    producer.flush(WAIT_S)
    assert [type(each) for each in failures] == [BrokerError] * 3


def test_flush_says_when_a_callback_does_not_return(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    producer = fast_producer(fake_cluster())
    ended = threading.Event()

    def hold(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        ended.wait(WAIT_S)

    future = producer.send("t", b"1", on_delivery=hold)
    assert future.result(WAIT_S).offset >= 0
    with pytest.raises(
        FlushTimeoutError, match=r"delivery callbacks of 1 batches have not returned after 0\.1 s"
    ):
        producer.flush(0.1)
    ended.set()
    producer.flush(WAIT_S)


def test_keys_and_headers_count_as_well(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    producer = fast_producer(fake_cluster(), max_request_size_bytes=10_000, batch_size_bytes=1000)
    too_large: tuple[dict[str, Any], ...] = ({"key": b"k" * 20_000}, {"headers": [("h", b"v" * 20_000)]})
    for options in too_large:
        with pytest.raises(RecordTooLargeError, match="max_request_size_bytes is 10000"):
            producer.send("t", b"v", **options)
    producer.send("t", b"v", key=b"k" * 5000).result(WAIT_S)


def test_without_acknowledgements_a_broker_that_reads_nothing_is_given_up(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    producer = fast_producer(
        cluster, acks=0, request_timeout_ms=200, delivery_timeout_ms=400, batch_size_bytes=250_000
    )
    producer.send("t", b"0").result(WAIT_S)
    errors: list[ClientError | None] = []
    flushed = threading.Event()

    def flush() -> None:
        futures = [producer.send("t", bytes(200_000)) for _ in range(80)]
        producer.flush()
        errors.extend(future.exception(0) for future in futures)
        flushed.set()

    with cluster.lock:  # its thread waits for it, and reads nothing
        threading.Thread(target=flush, daemon=True).start()
        assert flushed.wait(5)
    kinds = {type(error) for error in errors} - {type(None)}
    assert kinds
    assert kinds <= {RequestTimedOutError, DeliveryTimeoutError}


def test_what_a_later_acknowledgement_proves_no_refusal_takes_back(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """The first batch is stored, and its answer is an error; the second one is acknowledged. A limit that was
    lowered meanwhile refuses the first one when it is sent again.
    """
    cluster = fake_cluster()
    producer = fast_producer(cluster, linger_ms=0)
    producer.send("t", b"0").result(WAIT_S)
    cluster.next(
        ApiKey.PRODUCE,
        Fault(code=ErrorCode.REQUEST_TIMED_OUT, delay_s=0.1),
        Fault(),
        refuse(ErrorCode.MESSAGE_TOO_LARGE),
    )
    first = producer.send("t", b"1")
    until_asked(cluster, ApiKey.PRODUCE, 2)
    second = producer.send("t", b"2")
    assert second.exception(WAIT_S) is None
    assert first.exception(WAIT_S) is None
    assert values(cluster.log()) == [b"0", b"1", b"2"]
