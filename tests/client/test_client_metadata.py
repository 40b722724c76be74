"""Metadata that comes late, or from a broker that knows nothing yet, or nothing any more."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_client import FakeCluster, StartCluster
from fix_consumers import WAIT_S, MakeConsumer, as_stored, fill, read
from fix_fake_broker import FakeBroker, Fault, refuse
from headrace.client import Consumer, Producer
from headrace.client.calls import fetch_call, metadata_call
from headrace.client.cluster import BrokerAddress
from headrace.client.connection import BrokerConnection, ConnectionState
from headrace.client.errors import BrokerError, UnknownTopicError
from headrace.client.informants import PATIENCE_S, Informants, most_idle
from headrace.client.metadata_updates import MetadataUpdates
from headrace.wire import messages
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchRequest


def ask_metadata(cluster: FakeCluster, reader: Consumer) -> None:
    """Returns once the consumer has asked for metadata, whose answer it has not read yet."""
    asked = len(cluster.requests_of(ApiKey.METADATA))
    reader._network.request_update()
    until = time.monotonic() + WAIT_S
    while len(cluster.requests_of(ApiKey.METADATA)) == asked and time.monotonic() < until:
        reader.poll(0.01)


def test_a_topic_is_found_while_metadata_of_others_is_on_its_way(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster()
    cluster.create("u", 2)
    reader = consumer(cluster)
    fill(cluster)
    read(reader, 20)
    cluster.next(ApiKey.METADATA, Fault(delay_s=0.1))
    ask_metadata(cluster, reader)
    assert reader.partitions_for("u") == [0, 1]


def test_a_broker_that_knows_no_brokers_is_not_believed(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(brokers=2)
    fill(cluster)
    reader = consumer(cluster)
    read(reader, 20)
    with cluster.lock:
        cluster.brokers, all_brokers = [], cluster.brokers
    ask_metadata(cluster, reader)
    reader.poll(0.05)
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[20:]
    assert reader.fetch_failures("t", 0) == 0
    cluster.brokers = all_brokers


def test_a_topic_that_may_not_be_read_is_no_unknown_one(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    reader = consumer(cluster)
    reader.position("t", 0)
    cluster.next(ApiKey.METADATA, refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        reader.partitions_for("t")
    assert reader.partitions_for("t") == [0]


def test_an_unknown_topic_is_not_asked_for_again(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    reader = consumer(cluster)
    with pytest.raises(UnknownTopicError, match="nope"):
        reader.partitions_for("nope")
    ask_metadata(cluster, reader)
    named = cluster.requests_of(ApiKey.METADATA)[-1].body.topics
    assert [topic.name for topic in named] == ["t"]


class CutOffBroker(FakeCluster):
    """Three brokers. The first one is cut off: it tells for ever that it leads, and leads nothing."""

    is_cut_off = False

    def handle(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes | None:
        if not self.is_cut_off or broker.broker_id != 1:
            return super().handle(broker, request, fault)
        if request.api_key != ApiKey.METADATA:
            return super().handle(broker, request, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        leaders, self.leaders = self.leaders, dict.fromkeys(self.leaders, 1)
        try:
            return super().handle(broker, request, fault)
        finally:
            self.leaders = leaders


def test_a_broker_that_is_cut_off_is_not_the_only_one_that_is_asked() -> None:
    with contextlib.closing(CutOffBroker(brokers=3)) as cluster:
        fill(cluster)
        with Consumer(
            cluster.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=5, draw=lambda: 0.0
        ) as reader:
            reader.assign([("t", 0)])
            assert len(read(reader, 20)) == 20
            with cluster.lock:
                cluster.is_cut_off = True
                cluster.leaders["t", 0] = 3
            fill(cluster, batches=1)
            assert read(reader, 4, within_s=5) == as_stored(cluster)[20:]


class HungBroker(FakeCluster):
    """Three brokers. The first one hangs, and ends no connection. Then another one leads, and the cluster has
    two.
    """

    hangs = False

    def handle(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes | None:
        if self.hangs and broker.broker_id == 1:
            self.delays_s[id(request)] = 60.0
        return super().handle(broker, request, fault)

    def hang(self) -> None:
        with self.lock:
            self.hangs = True

    def replace(self) -> None:
        with self.lock:
            self.leaders["t", 0] = 3
            self.brokers = self.brokers[1:]


@pytest.fixture
def hung() -> Iterator[HungBroker]:
    with contextlib.closing(HungBroker(brokers=3)) as cluster:
        first = cluster.brokers[0]
        yield cluster
        first.stop()


def test_a_consumer_leaves_a_leader_that_hangs_when_another_one_leads(hung: HungBroker) -> None:
    fill(hung)
    with Consumer(hung.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([("t", 0)])
        assert len(read(reader, 20)) == 20
        hung.hang()
        reader.poll(0.1)
        hung.replace()
        fill(hung, batches=1)
        assert read(reader, 4, within_s=15) == as_stored(hung)[20:]


def test_a_producer_leaves_a_leader_that_hangs_when_another_one_leads(hung: HungBroker) -> None:
    with Producer(hung.bootstrap, linger_ms=1) as sender:
        sender.send("t", b"1").result(timeout=WAIT_S)
        hung.hang()
        waits = sender.send("t", b"2")
        time.sleep(0.1)
        hung.replace()
        waits.result(timeout=15)


def updates(max_age_ms: float = 300_000) -> MetadataUpdates:
    return MetadataUpdates(max_age_ms, draw=lambda: 0.0)


def test_another_broker_is_asked_when_one_does_not_answer() -> None:
    found = updates()
    assert found.due_s() == 0
    assert found.ask(10.0) == 1
    assert found.due_s() == 10.0 + PATIENCE_S
    assert found.doubts
    found.want()
    assert found.due_s() == 10.0 + PATIENCE_S
    assert found.ask(11.0) == 2
    found.failed(1, 12.0)
    assert found.is_awaited
    found.answered(2, 13.0, is_incomplete=False)
    assert found.due_s() == 313.0


def test_an_answer_that_comes_after_that_of_a_later_request_is_not_taken() -> None:
    found = updates()
    first, second = found.ask(0.0), found.ask(1.0)
    assert found.is_news(first)
    found.answered(second, 2.0, is_incomplete=False)
    assert not found.is_news(first)
    found.failed(first, 3.0)
    assert found.due_s() == 302.0


def test_an_earlier_request_that_is_answered_first_ends_the_waiting() -> None:
    found = updates()
    first, second = found.ask(0.0), found.ask(1.0)
    found.answered(first, 1.5, is_incomplete=False)
    assert not found.is_awaited
    assert found.is_news(second)
    found.failed(second, 40.0)
    assert 40.0 < found.due_s() < 42.0


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["ask", "answer", "fail", "doubt", "put off"]), max_size=40), st.randoms())
def test_metadata_is_asked_for_soon_whatever_happened(steps: list[str], chance: random.Random) -> None:
    """Nothing that may happen keeps a client from asking that has a reason to ask, for longer than 2 s."""
    found, now_s = updates(), 0.0
    waiting: list[int] = []
    for step in steps:
        now_s += chance.random() * 3
        number = waiting.pop(chance.randrange(len(waiting))) if waiting and step in ("answer", "fail") else 0
        if step == "ask" and now_s >= found.due_s():
            waiting.append(found.ask(now_s))
        elif step == "answer" and number and found.is_news(number):
            found.answered(number, now_s, is_incomplete=chance.random() < 0.5)
        elif step == "fail" and number:
            found.failed(number, now_s)
        elif step == "doubt":
            found.doubt()
        elif step == "put off" and found.is_awaited and now_s >= found.due_s():
            found.put_off(now_s)
    found.doubt()
    assert found.due_s() <= now_s + 2.0


def connection_to(port: int, *, asked_s: float, in_flight: int) -> BrokerConnection:
    found = BrokerConnection(
        BrokerAddress("127.0.0.1", port),
        client_id="c",
        clock=lambda: asked_s,
        request_timeout_s=30,
        frame_limit_bytes=1000,
    )
    found.state = ConnectionState.READY
    found.versions = {int(ApiKey.METADATA): 12}
    for _ in range(in_flight):
        found.send(metadata_call([], create=False), lambda body, error: None)
    return found


def test_a_broker_that_was_asked_to_wait_is_not_silent_meanwhile() -> None:
    waiting = connection_to(1, asked_s=0, in_flight=0)
    waiting.versions = {int(ApiKey.FETCH): 12}
    request = FetchRequest(5_000, 1, 1_000, [])
    waiting.send(fetch_call(request), lambda body, error: None)
    assert not waiting.is_silent(4.9)
    assert waiting.is_silent(5.0)


def test_a_broker_that_does_not_answer_is_asked_last() -> None:
    hung, busy = connection_to(1, asked_s=0, in_flight=1), connection_to(2, asked_s=5, in_flight=3)
    assert most_idle({1: hung, 2: busy}, 0.5) == 1
    assert most_idle({1: hung, 2: busy}, 5.5) == 2
    assert most_idle({1: hung}, 5.5) == 1
    informants = Informants()
    addresses = {1: hung.address, 2: busy.address}
    asked = [
        informants.next({1: hung, 2: busy}, addresses, 5.5, connect=lambda node_id: None) for _ in range(3)
    ]
    assert asked == [2, 2, 2]


def test_a_broker_that_does_not_answer_keeps_no_client_from_metadata() -> None:
    """Its host is gone without a word: the connection stands, and no answer comes."""
    with contextlib.closing(FakeCluster(brokers=3)) as cluster:
        fill(cluster)
        with Consumer(
            cluster.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=5, draw=lambda: 0.0
        ) as reader:
            reader.assign([("t", 0)])
            assert len(read(reader, 20)) == 20
            cluster.next(ApiKey.METADATA, Fault(delay_s=60))
            ask_metadata(cluster, reader)
            with cluster.lock:
                cluster.leaders["t", 0] = 3
            fill(cluster, batches=1)
            assert read(reader, 4, within_s=10) == as_stored(cluster)[20:]
