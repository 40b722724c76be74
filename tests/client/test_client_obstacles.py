"""A leader whose advertised address cannot be reached while others answer: errors name it and its address."""

from __future__ import annotations

import logging
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fix_broker import BrokerCluster
from fix_client import FakeCluster, MakeProducer, StartCluster
from fix_fake_broker import refuse
from headrace.client import Admin, Consumer, unread
from headrace.client.errors import DeliveryTimeoutError, MetadataTimeoutError
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.client.network import Network
    from headrace.client.partition_fetch import PartitionFetch

WAIT_S = 60


@pytest.fixture
def half(fake_cluster: StartCluster) -> FakeCluster:
    """Broker 2 leads t-1, and nothing listens at its address. Clients know broker 1 alone."""
    cluster = fake_cluster(brokers=2, partitions=2)
    cluster.brokers[1].stop()
    return cluster


def refused_of(cluster: FakeCluster) -> str:
    address = rf"127\.0\.0\.1:{cluster.brokers[1].port}"
    return rf"its leader is broker 2: .*({address}: Connection refused|no connection to {address} yet)"


def test_a_producer_names_it(half: FakeCluster, fast_producer: MakeProducer) -> None:
    producer = fast_producer(half, delivery_timeout_ms=1000, request_timeout_ms=900)
    error = producer.send("t", b"v", partition=1).exception(WAIT_S)
    assert isinstance(error, DeliveryTimeoutError)
    assert re.search(refused_of(half), str(error))


def test_a_consumer_names_it(half: FakeCluster) -> None:
    first = half.brokers[0]
    with Consumer(f"{first.host}:{first.port}") as consumer:
        consumer.assign([("t", 1)])
        with pytest.raises(MetadataTimeoutError, match=refused_of(half)):
            consumer.position("t", 1, timeout_s=1.0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def poll_until_warned(consumer: Consumer, caplog: pytest.LogCaptureFixture) -> str:
    until_s = time.monotonic() + WAIT_S
    while not (told := warnings_of(caplog)):
        assert time.monotonic() < until_s
        assert consumer.poll(0.05) == []
    return told[0]


def test_a_consumer_warns_of_what_it_cannot_read(
    half: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again without end: a misspelt topic looked like one without news."""
    monkeypatch.setattr(unread, "TELL_AFTER_S", 0.5)
    first = half.brokers[0]
    with Consumer(f"{first.host}:{first.port}") as consumer:
        consumer.assign([("t", 1), ("t", 7)])
        told = poll_until_warned(consumer, caplog)
        assert re.search(rf"t-1 cannot be read for \d s: {refused_of(half)}", told)
        assert re.search(r"t-7 cannot be read for \d s: the topic has 2 partitions, numbered from 0", told)
        consumer.poll(1.0)
        assert len(warnings_of(caplog)) == 1, "again only after TELL_AGAIN_S"


def test_a_consumer_warns_of_a_leader_that_refuses(
    fake_cluster: StartCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "TELL_AFTER_S", 0.3)
    cluster = fake_cluster()
    cluster.next(ApiKey.FETCH, *[refuse(ErrorCode.KAFKA_STORAGE_ERROR)] * 1000)
    with Consumer(cluster.bootstrap, retry_backoff_ms=5, retry_backoff_max_ms=20) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert "KAFKA_STORAGE_ERROR" in poll_until_warned(consumer, caplog)
        caplog.set_level(logging.INFO)
        with cluster.lock:
            cluster.script.clear()
        until_s = time.monotonic() + WAIT_S
        while "t-0 can be read again" not in caplog.messages:
            assert time.monotonic() < until_s
            consumer.poll(0.05)


def test_a_consumer_warns_of_a_topic_that_is_not_there(
    one_broker: BrokerCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "TELL_AFTER_S", 0.5)
    with Consumer(one_broker.bootstrap) as consumer:
        consumer.assign([("pgae-view", 0)])
        told = poll_until_warned(consumer, caplog)
        assert re.search(r"pgae-view-0 cannot be read for \d s: the brokers have no topic 'pgae-view'", told)
        with pytest.raises(MetadataTimeoutError, match="the brokers have no topic"):
            consumer.position("pgae-view", 0, timeout_s=0.5)
        consumer.assign([])
        monkeypatch.setattr(unread, "TELL_AGAIN_S", 0.0)
        consumer.poll(1.0)
        assert len(warnings_of(caplog)) == 1, "it is read no more"


def test_a_leader_without_news_is_no_reason_to_warn(
    one_broker: BrokerCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for `fetch_max_wait_ms`, as it was asked to."""
    monkeypatch.setattr(unread, "TELL_AFTER_S", 0.5)
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic("quiet", 1)
    with Consumer(one_broker.bootstrap, fetch_max_wait_ms=4_000) as consumer:
        consumer.assign([("quiet", 0)])
        consumer.seek("quiet", 0, 0)
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            assert consumer.poll(0.5) == []
    assert warnings_of(caplog) == []


def test_an_application_that_is_busy_elsewhere_is_no_reason_to_warn(
    fake_cluster: StartCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had asked for the partition while it was away."""
    monkeypatch.setattr(unread, "TELL_AFTER_S", 1.0)
    monkeypatch.setattr(unread, "AWAY_MAX_S", 0.1)
    with Consumer(fake_cluster().bootstrap) as consumer:
        consumer.assign([("t", 0)])
        for _ in range(3):
            consumer.poll(0)
            time.sleep(2.0)
        consumer.poll(0.5)
    assert warnings_of(caplog) == []


def test_one_that_polls_seldom_is_warned_all_the_same(
    half: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "TELL_AFTER_S", 0.5)
    monkeypatch.setattr(unread, "AWAY_MAX_S", 0.1)
    first = half.brokers[0]
    with Consumer(f"{first.host}:{first.port}") as consumer:
        consumer.assign([("t", 1)])
        until_s = time.monotonic() + WAIT_S
        while not (told := warnings_of(caplog)):
            assert time.monotonic() < until_s
            assert consumer.poll(0) == []
            time.sleep(0.3)
        assert re.search(refused_of(half), told[0])


def test_calls_that_raise_before_they_look_count_their_time_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each second call raised another partition's error, one that could not be read was never told."""
    monkeypatch.setattr(unread, "obstacle", lambda *_: "its leader is gone")
    now_s, states = (
        0.0,
        cast("dict[tuple[str, int], PartitionFetch]", {("t", 0): SimpleNamespace(paused=False)}),
    )
    found = unread.Unread(cast("Network", None), lambda: now_s, 0.0)
    found.add(("t", 0))
    for number in range(20):
        now_s += 5
        found.resume()
        if number % 2:
            found.tell(states)
    assert "t-0 cannot be read for" in "".join(warnings_of(caplog))
