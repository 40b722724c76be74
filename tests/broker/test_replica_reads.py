"""KIP-392: a consumer that names its rack reads from the in-sync replica there, and sees nothing that a
leader would not show.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer

from fix_broker import BrokerCluster, StartCluster
from fix_replicas import SETTINGS, WAIT_MAX_S, ReplicatedCluster
from headrace.broker.settings.replication import RACK_AWARE
from headrace.wire import fetch
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchTopic

NEVER_MS = 20_000


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    return module_clusters(
        count=3,
        config={**SETTINGS, "replica.selector.class": RACK_AWARE},
        arguments=lambda broker_id: ["--set", f"broker.rack=rack-{broker_id}"],
    )


@pytest.fixture(scope="module")
def replicas(cluster: BrokerCluster) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(cluster) as opened:
        yield opened


def ask(
    replicas: ReplicatedCluster,
    broker: int,
    topic: str,
    offset: int = 0,
    *,
    rack: str = "",
    version: int = 12,
    wait_ms: int = 0,
) -> FetchPartitionResult:
    request = FetchRequest(
        wait_ms,
        1,
        1 << 20,
        [FetchTopic(topic, UUID(int=0), [FetchPartition(0, offset, 1 << 20)])],
        rack_id=rack,
    )
    with replicas.client(broker) as client:
        client.send(fetch.encode_request(request, version=version, correlation_id=1, client_id="near"))
        _, response = fetch.decode_response(client.receive(), version=version)
    return response.topics[0].partitions[0]


def records_of(result: FetchPartitionResult) -> bytes:
    return b"" if result.records is None or isinstance(result.records, int) else bytes(result.records)


def test_a_leader_sends_a_consumer_to_the_replica_of_its_rack(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    stored = replicas.read(topic)
    told = ask(replicas, 1, topic, rack="rack-2", wait_ms=NEVER_MS)
    assert (told.preferred_read_replica, records_of(told)) == (2, b"")
    replicas.wait_for(
        "the follower shows it", lambda: records_of(ask(replicas, 2, topic, rack="rack-2")) == stored
    )
    for rack in ("", "rack-1", "no such rack"):
        own = ask(replicas, 1, topic, rack=rack)
        assert (own.preferred_read_replica, records_of(own)) == (-1, stored), rack
    assert ask(replicas, 1, topic, rack="rack-2", version=10).preferred_read_replica == -1


def test_a_follower_serves_nobody_that_was_not_sent_there(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    assert ask(replicas, 2, topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(replicas, 2, topic, rack="rack-2", version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def wait_at_follower(replicas: ReplicatedCluster, topic: str, offset: int, found: list[bytes]) -> None:
    found.append(records_of(ask(replicas, 2, topic, offset, rack="rack-2", wait_ms=NEVER_MS)))


def test_a_follower_shows_what_its_leader_shows_and_soon(replicas: ReplicatedCluster) -> None:
    """A consumer that waits at a follower has a record long before the follower's next idle fetch."""
    topic = replicas.topic(1, 2, 3)
    end = len(replicas.read(topic))
    replicas.wait_for(
        "the follower shows it", lambda: ask(replicas, 2, topic, rack="rack-2").high_watermark == end
    )
    waits_s = []
    for number in range(5):
        found: list[bytes] = []
        waiting = threading.Thread(target=wait_at_follower, args=(replicas, topic, end, found))
        waiting.start()
        replicas.produce(topic, f"record {number}")
        began_s = time.monotonic()
        waiting.join(WAIT_MAX_S)
        waits_s.append(time.monotonic() - began_s)
        assert found and found[0] == replicas.read(topic)[end:]
        end = len(replicas.read(topic))
    assert min(waits_s) < 0.4, "told with the next answer, not half a second later"


def test_who_only_says_that_it_is_the_follower_takes_no_news_away(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2)
    end = len(replicas.read(topic))
    replicas.wait_for(
        "the follower shows it", lambda: ask(replicas, 2, topic, rack="rack-2").high_watermark == end
    )
    part = FetchPartition(0, end, 1 << 20)
    waits_s = []
    for number in range(5):
        found: list[bytes] = []
        waiting = threading.Thread(target=wait_at_follower, args=(replicas, topic, end, found))
        waiting.start()
        replicas.produce(topic, f"record {number}")
        began_s = time.monotonic()
        with replicas.client(1) as stranger:
            request = FetchRequest(0, 0, 1 << 20, [FetchTopic(topic, UUID(int=0), [part])], replica_id=2)
            stranger.send(fetch.encode_request(request, version=12, correlation_id=1, client_id="liar"))
            stranger.receive()
        waiting.join(WAIT_MAX_S)
        waits_s.append(time.monotonic() - began_s)
        assert found and found[0] == replicas.read(topic)[end:]
        end = len(replicas.read(topic))
    assert min(waits_s) < 0.4


def test_nothing_beyond_the_high_watermark_is_shown(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, min_insync_replicas="2")
    shown = replicas.read(topic)
    replicas.brokers[2].kill()
    try:
        replicas.wait_in_sync(topic, 1)
        replicas.produce(topic, "on the leader alone", acks=1)
        ends = ask(replicas, 1, topic, rack="rack-2")
        assert (ends.preferred_read_replica, records_of(ends)) == (-1, shown), (
            "no replica of that rack is in sync"
        )
    finally:
        replicas.brokers[2].start()
    replicas.wait_in_sync(topic, 1, 2)
    everything = replicas.wait_until_equal(topic, 1, 2)
    replicas.wait_for(
        "the follower shows it", lambda: records_of(ask(replicas, 2, topic, rack="rack-2")) == everything
    )


def test_a_reader_that_waits_at_a_follower_learns_at_once_that_it_leads(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    end = len(replicas.read(topic))
    replicas.wait_for(
        "the follower shows it", lambda: ask(replicas, 2, topic, rack="rack-2").high_watermark == end
    )
    found: list[FetchPartitionResult] = []
    waiting = threading.Thread(
        target=lambda: found.append(ask(replicas, 2, topic, end, rack="rack-2", wait_ms=NEVER_MS))
    )
    waiting.start()
    replicas.elect(topic, 2)
    waiting.join(NEVER_MS / 2_000)
    assert found and found[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    replicas.produce(topic, "in the next epoch")
    assert records_of(ask(replicas, 2, topic, end, rack="rack-2")) == replicas.read(topic)[end:]


def test_librdkafka_reads_from_its_rack_and_goes_on_when_that_replica_dies(
    replicas: ReplicatedCluster,
) -> None:
    topic = replicas.topic(1, 3, min_insync_replicas="1")
    brokers_read: list[int] = []

    def note(text: str) -> None:
        partitions: dict[str, Any] = json.loads(text)["topics"].get(topic, {}).get("partitions", {})
        brokers_read.extend(partitions[key]["broker"] for key in partitions if key == "0")

    consumer = Consumer(
        {
            "bootstrap.servers": replicas.brokers.bootstrap,
            "group.id": "near",
            "client.rack": "rack-3",
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 50,
            "stats_cb": note,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )
    seen: list[bytes] = []

    def read_until(count: int) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        while len(seen) < count:
            assert time.monotonic() < deadline, (seen, replicas.logs())
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.append(bytes(message.value() or b"").rstrip(b"."))

    consumer.subscribe([topic])
    try:
        read_until(1)
        replicas.wait_for("it reads from broker 3", lambda: consumer.poll(0.05) is None and 3 in brokers_read)
        replicas.produce(topic, "second")
        read_until(2)
        replicas.brokers[3].kill()
        try:
            replicas.produce(topic, "third")
            read_until(3)
        finally:
            replicas.brokers[3].start()
        replicas.wait_in_sync(topic, 1, 3)
    finally:
        consumer.close()
    assert seen == [b"first", b"second", b"third"]


def test_nobody_waits_at_a_follower_without_a_leader_and_what_it_has_is_read(
    replicas: ReplicatedCluster,
) -> None:
    """Another broker may lead by now, for all that this one hears."""
    topic = replicas.topic(1, 2, min_insync_replicas="1")
    shown = replicas.read(topic)
    replicas.wait_for(
        "the follower shows it", lambda: records_of(ask(replicas, 2, topic, rack="rack-2")) == shown
    )
    replicas.brokers[2].stop()
    replicas.wait_in_sync(topic, 1)
    replicas.brokers[1].kill()
    try:
        replicas.brokers[2].start()
        replicas.wait_for(
            "the follower shows it", lambda: records_of(ask(replicas, 2, topic, rack="rack-2")) == shown
        )
        began_s = time.monotonic()
        waited = ask(replicas, 2, topic, len(shown), rack="rack-2", wait_ms=NEVER_MS)
        assert waited.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert time.monotonic() - began_s < NEVER_MS / 2_000
        assert records_of(ask(replicas, 2, topic, rack="rack-2")) == shown
    finally:
        replicas.brokers[1].start()
    replicas.wait_in_sync(topic, 1, 2)
    replicas.produce(topic, "second")
    both = replicas.wait_until_equal(topic, 1, 2)
    replicas.wait_for(
        "the follower shows it", lambda: records_of(ask(replicas, 2, topic, rack="rack-2")) == both
    )
