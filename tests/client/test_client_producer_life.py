"""The life of a producer: flushed, closed, forgotten, forked, shared by threads; settings that it refuses."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Any

import pytest

from fix_client import MakeProducer, Recorder, StartCluster, values
from headrace.client import Producer, RecordMetadata
from headrace.client.errors import (
    ClientError,
    ClosedError,
    FlushTimeoutError,
    ForkedError,
)

WAIT_S = 60


def test_flush_is_bounded(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", b"1").result(WAIT_S)
    cluster.brokers[0].stop()
    sender.send("t", b"2")
    with pytest.raises(FlushTimeoutError, match="1 batches"):
        sender.flush(0.1)


def test_close_delivers_and_ends(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    with fast_producer(cluster, linger_ms=10_000, delivery_timeout_ms=20_000) as sender:
        future = sender.send("t", b"1")
    assert future.result(0).offset == cluster.log().end - 1
    sender.close()
    with pytest.raises(ClosedError):
        sender.send("t", b"2")
    with pytest.raises(ClosedError):
        sender.flush()


def test_close_gives_up_in_time(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster()
    watcher = Recorder()
    sender = fast_producer(cluster, observer=watcher)
    sender.send("t", b"1").result(WAIT_S)
    cluster.brokers[0].stop()
    futures = [sender.send("t", b"2") for _ in range(5)]
    began = time.monotonic()
    sender.close(timeout_s=0.2)
    assert time.monotonic() - began < 10
    for future in futures:
        with pytest.raises(ClosedError):
            future.result(0)
    assert sum(identity.record_count for identity, _ in watcher.of("failed")) == 5


def test_close_can_be_called_again_after_a_signal(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Ctrl+C while it waits: the next call delivers what is left."""
    cluster = fake_cluster()
    sender = fast_producer(cluster, delivery_timeout_ms=60_000)
    sender.send("t", b"1").result(WAIT_S)
    cluster.brokers[0].stop()
    future = sender.send("t", b"2")
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            sender.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    cluster.brokers[0].start()
    sender.close()
    assert future.result(0).offset >= 0
    assert not sender._sender._thread.is_alive()


def test_close_in_a_callback_does_not_wait_for_itself(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    closed = threading.Event()

    def close(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        sender.close()
        closed.set()

    sender.send("t", b"1", on_delivery=close)
    assert closed.wait(WAIT_S)
    sender._sender._thread.join(WAIT_S)
    assert not sender._sender._thread.is_alive()


def test_a_forgotten_producer_warns_and_leaves_no_thread(fake_cluster: StartCluster) -> None:
    sender = Producer(fake_cluster().bootstrap, client_id="forgotten")
    thread = sender._sender._thread
    with pytest.warns(ResourceWarning, match="not closed"):
        del sender
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_must_create_its_own_client(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster)
    sender.send("t", b"parent").result(WAIT_S)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"it was taken"
        try:
            sender.send("t", b"child")
        except ForkedError:
            answer = b"refused"
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)
    sender.send("t", b"parent again").result(WAIT_S)
    assert values(cluster.log()) == [b"parent", b"parent again"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_waits_for_no_record_of_its_parent(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """No thread of the child would ever say what became of it."""
    cluster = fake_cluster()
    sender = fast_producer(cluster, linger_ms=60_000, delivery_timeout_ms=120_000)
    future = sender.send("t", b"parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        refused = 0
        for ask in (future.result, lambda: future.exception(0), lambda: future.add_done_callback(print)):
            try:
                ask()
            except ForkedError:
                refused += 1
        os.write(writer, b"%d refused" % refused)
        os._exit(0)
    os.close(writer)
    answered, _, _ = select.select([reader], [], [], 10)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert answered, "the child waits"
    assert os.read(reader, 100) == b"3 refused"
    os.close(reader)
    sender.flush(WAIT_S)
    assert future.result(0).offset >= 0


def test_many_threads_share_one(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    cluster = fake_cluster(partitions=2)
    sender = fast_producer(cluster, batch_size_bytes=2000, buffer_memory_bytes=10_000)

    def work(number: int) -> None:
        for i in range(200):
            sender.send("t", b"%d %d" % (number, i), key=b"%d" % number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    sender.flush(WAIT_S)
    stored = [tuple(map(int, v.split())) for p in range(2) for v in values(cluster.log(p)) if v]
    for number in range(6):
        assert [i for n, i in stored if n == number] == list(range(200))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": 1, "idempotent": True}, "idempotent"),
        ({"max_in_flight": 6}, "max_in_flight"),
        ({"compression": "rar"}, "no compression called 'rar'"),
        ({"on_full": "wait"}, "on_full"),
        ({"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
        ({"buffer_memory_bytes": 10}, "buffer_memory_bytes"),
        ({"batch_size_bytes": 0}, "batch_size_bytes"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"batch_boundary_ms": 0}, "batch_boundary_ms"),
        ({"bootstrap": "host:port"}, "host:port"),
        ({"bootstrap": ""}, "no broker address"),
    ],
)
def test_invalid_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Producer(**{"bootstrap": "127.0.0.1:1", **options})
