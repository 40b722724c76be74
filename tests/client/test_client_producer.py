"""The producer against scripted brokers: batching, partitions, bounds, callbacks, versions."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from fix_client import MakeProducer, StartCluster, values
from fix_fake_broker import FakeBroker, Fault, refuse
from headrace.client import DeliveryFuture, RecordMetadata
from headrace.client.errors import (
    BrokerError,
    BufferFullError,
    ClientError,
    MetadataTimeoutError,
    RecordTooLargeError,
    UnknownTopicError,
)
from headrace.wire import messages
from headrace.wire.apis import ApiKey
from headrace.wire.batch import read_header
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.partitioning import partition_for_key

WAIT_S = 60


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_records_arrive_as_they_were_sent(
    fake_cluster: StartCluster, fast_producer: MakeProducer, codec: str
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, compression=codec)
    futures = [
        sender.send("t", b"v%d" % i, key=b"k", timestamp_ms=1000 + i, headers=(("h", b"x"), ("n", None)))
        for i in range(100)
    ]
    metadata = [future.result(WAIT_S) for future in futures]
    records = cluster.log().records()
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records] == [
        (m.offset, 1000 + i, b"k", b"v%d" % i, (("h", b"x"), ("n", None))) for i, m in enumerate(metadata)
    ]
    assert all(m.topic == "t" and m.partition == 0 for m in metadata)
    assert {header.codec for header in cluster.log().headers()} == {Codec.parse(codec)}


def test_null_values_and_buffers_are_accepted_but_text_is_not(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", None, key=bytearray(b"k"))  # type: ignore[arg-type]  # accepted all the same
    sender.send("t", memoryview(b"v"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode it first"):
        sender.send("t", "text")  # type: ignore[arg-type]
    sender.flush(WAIT_S)
    assert sorted((r.key, r.value) for r in cluster.log().records() if r.key) == [(b"k", None)]
    assert b"v" in values(cluster.log())


def test_wrong_headers_and_times_are_refused_by_send(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Not later in the sender thread, which would end the producer. Headers are taken as they are now."""
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    headers: list[tuple[str, bytes | None]] = [("h", b"1")]
    sender.send("t", b"1", headers=headers)
    headers.append(("h", b"2"))
    wrong: list[Any] = [((b"h", b"x"),), (("h", "x"),), (("h",),)]
    for each in wrong:
        with pytest.raises((AttributeError, TypeError, ValueError)):
            sender.send("t", b"wrong", headers=each)
    for time_ms in (1.5, "1"):
        with pytest.raises(TypeError):
            sender.send("t", b"wrong", timestamp_ms=time_ms)  # type: ignore[arg-type]
    for far_ms in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            sender.send("t", b"wrong", timestamp_ms=far_ms)
    sender.send("t", b"2").result(WAIT_S)
    assert [(r.value, tuple(r.headers)) for r in cluster.log().records()] == [
        (b"1", (("h", b"1"),)),
        (b"2", ()),
    ]


@pytest.mark.parametrize(
    ("topic", "error"),
    [("\ud800", ValueError), ("x" * 40_000, ValueError), (None, TypeError), (b"t", TypeError)],
)
def test_what_cannot_be_a_topic_is_refused_by_send(
    fake_cluster: StartCluster, fast_producer: MakeProducer, topic: Any, error: type[Exception]
) -> None:
    """Not later in the sender thread, which would end the producer, and fail the records of other topics."""
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    with pytest.raises(error, match="topic"):
        sender.send(topic, b"wrong")
    sender.send("t", b"1").result(WAIT_S)
    assert values(cluster.log()) == [b"1"]


def test_delivery_reports_and_callbacks(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    reports: list[tuple[RecordMetadata | None, ClientError | None]] = []
    called: list[DeliveryFuture] = []
    future = sender.send("t", b"v", on_delivery=lambda metadata, error: reports.append((metadata, error)))
    future.add_done_callback(called.append)
    sender.flush(WAIT_S)
    assert future.done()
    assert future.exception() is None
    assert reports == [(future.result(), None)]
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_a_callback_that_raises_has_no_other_effect(
    fake_cluster: StartCluster, fast_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    sender = fast_producer(fake_cluster())

    def fail(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        raise RuntimeError("in the application")

    sender.send("t", b"1", on_delivery=fail)
    sender.flush(WAIT_S)
    assert sender.send("t", b"2").result(WAIT_S).offset > 0
    assert "a delivery callback failed" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_a_callback_that_exits_ends_no_producer(
    raised: BaseException,
    fake_cluster: StartCluster,
    fast_producer: MakeProducer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As `sys.exit` does it after a failed delivery: later records would wait for ever."""
    sender = fast_producer(fake_cluster())

    def leave(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        raise raised

    sender.send("t", b"1", on_delivery=leave)
    sender.flush(WAIT_S)
    assert sender.send("t", b"2").result(WAIT_S).offset > 0
    assert "a delivery callback failed" in caplog.text


def test_a_sender_thread_that_ends_leaves_nobody_waiting(
    fake_cluster: StartCluster, fast_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = fast_producer(fake_cluster(), linger_ms=10_000, delivery_timeout_ms=20_000)
    sender.send("t", b"1").result(WAIT_S)
    future = sender.send("t", b"2")

    def leave() -> None:
        raise SystemExit

    monkeypatch.setattr(sender._sender, "run_round", leave)
    sender._network.wake()
    with pytest.raises(ClientError, match="create a new producer"):
        future.result(WAIT_S)


@pytest.mark.parametrize("partition", [1.0, 0.5, "1", b"1"])
def test_a_partition_that_is_no_number_is_refused_at_once(
    partition: Any, fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """It would end the sender thread, and fail the records of all other callers."""
    sender = fast_producer(fake_cluster(partitions=3))
    with pytest.raises(TypeError, match=f"partition must be an int or None, not {type(partition).__name__}"):
        sender.send("t", b"v", partition=partition)
    assert sender.send("t", b"v", partition=True).result(WAIT_S).partition == 1


def test_batches_close_by_size_and_by_linger(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, linger_ms=30, batch_size_bytes=1000)
    for _ in range(20):
        sender.send("t", b"x" * 100)
    time.sleep(0.2)
    headers = cluster.log().headers()
    assert sum(header.record_count for header in headers) == 20
    assert [header.record_count for header in headers] == [8, 8, 4]
    assert all(header.size_bytes <= 1000 for header in headers)


def test_batches_never_cross_a_time_boundary(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, batch_boundary_ms=1000, linger_ms=500)
    for time_ms in (10_100, 10_999, 11_000, 11_500, 10_500, 12_000):
        sender.send("t", b"x", timestamp_ms=time_ms, partition=0)
    sender.flush(WAIT_S)
    spans = [(h.base_timestamp_ms // 1000, h.max_timestamp_ms // 1000) for h in cluster.log().headers()]
    assert spans == [(10, 10), (11, 11), (10, 10), (12, 12)]


def test_keyed_records_use_kafkas_partitioner_and_others_stick_per_batch(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster(brokers=2, partitions=4)
    sender = fast_producer(cluster, linger_ms=1000, batch_size_bytes=1000)
    for i in range(50):
        key = b"key-%d" % i
        assert sender.send("t", b"", key=key)._batch.partition == partition_for_key(key, 4)
    chosen = [sender.send("t", b"x" * 300)._batch for _ in range(60)]
    sender.flush(WAIT_S)
    switches = sum(a.partition != b.partition for a, b in itertools.pairwise(chosen))
    assert len({batch.partition for batch in chosen}) > 1
    assert switches < len(set(chosen))


def test_many_partitions_of_several_brokers(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster(brokers=3, partitions=7)
    sender = fast_producer(cluster)
    for i in range(700):
        sender.send("t", b"%d" % i, partition=i % 7)
    sender.flush(WAIT_S)
    for partition in range(7):
        assert values(cluster.log(partition)) == [b"%d" % i for i in range(partition, 700, 7)]


def test_acks_0_awaits_nothing(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, acks=0)
    assert sender.send("t", b"1").result(WAIT_S).offset == -1
    sender.close()
    deadline = time.monotonic() + WAIT_S
    while not cluster.log().batches and time.monotonic() < deadline:
        time.sleep(0.01)
    assert values(cluster.log()) == [b"1"]


def test_full_memory_raises_if_on_full_is_raise(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, on_full="raise", buffer_memory_bytes=5000, batch_size_bytes=1000)
    sender.send("t", b"1").result(WAIT_S)
    cluster.brokers[0].stop()
    with pytest.raises(BufferFullError, match="buffer_memory_bytes"):
        for _ in range(100):
            sender.send("t", b"x" * 500)
    cluster.brokers[0].start()
    sender.flush(WAIT_S)
    sender.send("t", b"2").result(WAIT_S)


def test_full_memory_blocks_until_there_is_room_or_time_is_up(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, buffer_memory_bytes=5000, batch_size_bytes=1000, max_block_ms=200)
    sender.send("t", b"1").result(WAIT_S)
    for _ in range(100):
        sender.send("t", b"x" * 500)
    assert sender._accumulator._used_bytes <= 5000
    sender.flush(WAIT_S)
    assert sender._accumulator._used_bytes == 0
    cluster.brokers[0].stop()
    began = time.monotonic()
    with pytest.raises(BufferFullError):
        for _ in range(100):
            sender.send("t", b"x" * 500)
    assert time.monotonic() - began >= 0.15
    cluster.brokers[0].start()


def test_records_too_large_are_refused_at_once(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, max_request_size_bytes=10_000, batch_size_bytes=1000)
    with pytest.raises(RecordTooLargeError, match="max_request_size_bytes"):
        sender.send("t", b"x" * 10_000)
    sender.send("t", b"x" * 5000).result(WAIT_S)
    assert len(values(cluster.log())) == 1


def test_missing_topics(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    cluster.creates_topics = False
    sender = fast_producer(cluster, max_block_ms=150)
    with pytest.raises(UnknownTopicError, match="nope"):
        sender.send("nope", b"x")
    with pytest.raises(UnknownTopicError, match="there is no 5"):
        sender.send("t", b"x", partition=5)
    with pytest.raises(UnknownTopicError, match="-1"):
        sender.send("t", b"x", partition=-1)
    cluster.next(ApiKey.METADATA, refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        sender.send("secret", b"x")
    cluster.creates_topics = True
    assert sender.send("made", b"x").result(WAIT_S).topic == "made"
    assert sender.partition_count("made") == 1


def test_no_broker_at_all(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    cluster.brokers[0].stop()
    # Longer than the longest wait between two connections (RECONNECT, and its jitter).
    sender = fast_producer(cluster, max_block_ms=1300)
    with pytest.raises(MetadataTimeoutError, match="refused"):
        sender.send("t", b"x")
    cluster.brokers[0].start()
    sender.send("t", b"x").result(WAIT_S)


@pytest.mark.parametrize("named", [-1, -5, 3, 99])
def test_a_broker_that_takes_no_version_of_api_versions_is_named(
    named: int, fake_cluster: StartCluster, fast_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it names was asked already, or is no version: the sender thread ended, or asked without an end."""
    cluster = fake_cluster()
    asked: list[messages.Request] = []

    def refuse_it(broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        asked.append(request)
        return messages.unsupported_api_versions_response(request.correlation_id, [(18, 0, named)])

    monkeypatch.setattr(cluster, "_api_versions", refuse_it)
    sender = fast_producer(cluster, max_block_ms=500)
    with pytest.raises(MetadataTimeoutError, match=f"refuses version 3 of ApiVersions, and names {named}"):
        sender.send("t", b"v")
    assert len(asked) < 30  # each over a connection of its own, after a pause
    monkeypatch.undo()
    sender.send("t", b"v").result(WAIT_S)


def test_older_brokers_are_spoken_to_in_their_versions(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    cluster.versions.update({ApiKey.PRODUCE: (0, 3), ApiKey.METADATA: (0, 4), ApiKey.API_VERSIONS: (0, 2)})
    sender = fast_producer(cluster)
    sender.send("t", b"x").result(WAIT_S)
    assert cluster.requests_of(ApiKey.PRODUCE)[0].version == 3
    assert cluster.requests_of(ApiKey.METADATA)[0].version == 4
    assert [request.version for request in cluster.requests_of(ApiKey.API_VERSIONS)][-1] == 2


def test_a_broker_that_lacks_an_api_is_named(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    del cluster.versions[ApiKey.INIT_PRODUCER_ID]
    sender = fast_producer(cluster)
    with pytest.raises(Exception, match="INIT_PRODUCER_ID"):
        sender.send("t", b"x").result(WAIT_S)


def test_batches_of_a_log_are_what_kafka_would_store(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Against a broker that counts records: the same producer, ordinary offsets."""
    cluster = fake_cluster(by_address=False)
    sender = fast_producer(cluster)
    assert [sender.send("t", b"%d" % i).result(WAIT_S).offset for i in range(3)] == [0, 1, 2]
    assert [read_header(batch).base_offset for batch in cluster.log().batches] == [0, 1, 2]
