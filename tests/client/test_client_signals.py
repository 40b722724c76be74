"""Clients under signals whose handlers raise, as Ctrl+C does: no lock stays held, no batch is torn."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fix_client import MakeProducer, StartCluster, values
from fix_consumers import MakeConsumer, fill, read
from fix_signals import Interrupt
from headrace.client.awaited_topics import AwaitedTopics
from headrace.client.group_commits import CommitRequests
from headrace.client.network import Network
from headrace.client.outcome import DeliveryOutcome
from headrace.client.streams import MessageStream
from headrace.client.unpacking import ConsumerRecord
from headrace.wire.builder import BatchBuilder
from headrace.wire.records import decode_columns

# What the handler raises in a finalizer, which Python reports.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAIT_S = 60
SIGNALS = 100


def test_send_holds_no_lock_after_it(
    fake_cluster: StartCluster, fast_producer: MakeProducer, interrupted: Interrupt
) -> None:
    cluster = fake_cluster()
    sender = fast_producer(cluster, delivery_timeout_ms=60_000)
    sender.send("t", b"first").result(WAIT_S)
    futures = []

    def send() -> None:
        futures.append(sender.send("t", b"v"))

    for _ in range(SIGNALS):
        interrupted(send)
        assert sender._accumulator._lock.acquire(timeout=WAIT_S), "no thread will ever release it"
        sender._accumulator._lock.release()
    sender.flush(WAIT_S)
    assert all(future.result(WAIT_S).offset >= 0 for future in futures)
    stored = len(values(cluster.log())) - 1
    assert len(futures) <= stored <= len(futures) + SIGNALS


def test_a_batch_has_as_many_records_as_it_says(interrupted: Interrupt) -> None:
    batches = [BatchBuilder(2_000)]

    def add() -> None:
        if not batches[-1].append(1_000, None, b"v"):
            batches[-1] = BatchBuilder(2_000)

    for _ in range(4 * SIGNALS):
        interrupted(add)
        if batches[-1].record_count:  # a producer's batches are made with their first record
            columns = decode_columns(batches[-1].build(), 0)
            assert list(columns.offsets) == list(range(batches[-1].record_count))


def test_a_stream_holds_no_lock_after_it(interrupted: Interrupt) -> None:
    stream = MessageStream(0, wants_more=lambda: None)
    records = [ConsumerRecord("t", 0, i, 0, None, b"v", ()) for i in range(1000)]

    def take() -> None:
        if not stream._queue:
            stream.put(records)
        stream.get(0.0)

    for _ in range(SIGNALS):
        interrupted(take)
        # As the group's thread puts records in.
        other = threading.Thread(target=stream.put, args=([],), daemon=True)
        other.start()
        other.join(WAIT_S)
        assert not other.is_alive()


def is_free(call: Callable[[], object]) -> bool:
    """Whether another thread, such as the sender's or the group's, can make the call."""
    other = threading.Thread(target=call, daemon=True)
    other.start()
    other.join(WAIT_S)
    return not other.is_alive()


def test_a_wait_for_a_topic_holds_no_lock_after_it(interrupted: Interrupt) -> None:
    network = Network("127.0.0.1:1", client_id="c", request_timeout_ms=1_000)
    topics = AwaitedTopics(network)
    for _ in range(SIGNALS):
        interrupted(lambda: topics.wait(0, 0.0))
        assert is_free(topics.end), "send would wait for ever, in all threads"
    network.close()


def test_a_commit_of_a_group_holds_no_lock_after_it(interrupted: Interrupt) -> None:
    commits = CommitRequests()
    for _ in range(SIGNALS):
        interrupted(lambda: commits.wait(commits.request(), 0.0))
        assert is_free(lambda: commits.finish(commits.requested)), "the member would read no more"


def test_a_future_holds_no_lock_after_it(interrupted: Interrupt) -> None:
    for _ in range(SIGNALS):
        outcome = DeliveryOutcome()

        def wait(outcome: DeliveryOutcome = outcome) -> None:
            outcome.wait(0.0)
            outcome.wait_reported(0.0)

        interrupted(wait)
        assert is_free(outcome.finish), "the sender would wait for ever, and all that wait for it"


def test_a_consumer_goes_on_after_it(
    fake_cluster: StartCluster, consumer: MakeConsumer, interrupted: Interrupt
) -> None:
    """It returns each record once, in order: what it had taken when the handler raised, too."""
    cluster = fake_cluster(partitions=2)
    for partition in range(2):
        fill(cluster, batches=400, records=20, partition=partition)
    reader = consumer(cluster, partitions=(0, 1), max_poll_records=200, max_partition_fetch_bytes=8_000)
    got: list[ConsumerRecord] = []

    def take() -> None:
        got.extend(reader.poll(0.0))

    for _ in range(SIGNALS):
        interrupted(take)
    got += read(reader, 16_000 - len(got), within_s=WAIT_S)
    for partition in range(2):
        of_it = [record.offset for record in got if record.partition == partition]
        assert of_it == [record.offset for record in cluster.log(partition).records()]
    reader.close()


def test_a_position_is_found_after_it(
    fake_cluster: StartCluster, consumer: MakeConsumer, interrupted: Interrupt
) -> None:
    cluster = fake_cluster()
    fill(cluster)
    reader = consumer(cluster)

    def find() -> None:
        reader.seek_to_end("t", 0)
        assert reader.position("t", 0) == cluster.log().end

    for _ in range(SIGNALS):
        interrupted(find)
    find()


def test_a_stream_returns_each_message_once_after_it(interrupted: Interrupt) -> None:
    """One that was taken, and returned to nobody, counted as consumed by the next call, or was gone."""
    stream = MessageStream(0, wants_more=lambda: None)
    got: list[ConsumerRecord] = []
    stream.put([ConsumerRecord("t", 0, i, 0, None, b"v", ()) for i in range(500_000)])

    def take() -> None:
        if (record := stream.get(0.0)) is not None:
            got.append(record)

    for _ in range(4 * SIGNALS):
        interrupted(take)
    assert [record.offset for record in got] == list(range(len(got)))
