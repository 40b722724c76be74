"""Producer, consumer and admin against real brokers: headrace's own processes, and Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fix_fake_log import number_of
from headrace.client import Admin, BatchIdentity, BatchObserver, Consumer, ConsumerRecord, Producer
from headrace.client.admin import EARLIEST, LATEST
from headrace.client.errors import BrokerError, NetworkError, UnknownTopicError
from headrace.client.faults import DropPlan
from headrace.wire.batch import hop
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.partitioning import partition_for_key

RECORDS = 5000
WAIT_S = 60
NOON_MS = 1_700_000_000_000


@pytest.fixture(
    params=["headrace", pytest.param("apache_kafka", marks=[pytest.mark.real_client, pytest.mark.slow])]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    cluster = request.getfixturevalue("one_broker" if request.param == "headrace" else "apache_kafka")
    return str(cluster.bootstrap)


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as each:
        yield each


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"client-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, 3)
    return name


def read(bootstrap: str, topic: str, count: int, partitions: int = 3, **options: Any) -> list[ConsumerRecord]:
    with Consumer(bootstrap, **{"auto_offset_reset": "earliest", **options}) as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        got: list[ConsumerRecord] = []
        deadline = time.monotonic() + WAIT_S
        while len(got) < count and time.monotonic() < deadline:
            got += consumer.poll(0.5)
        return got


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_every_record_once_and_in_order_with_every_codec(bootstrap: str, topic: str, codec: str) -> None:
    with Producer(bootstrap, compression=codec, batch_size_bytes=4000) as producer:
        futures = [
            producer.send(
                topic,
                b"%d" % i,
                key=b"key-%d" % (i % 20),
                timestamp_ms=NOON_MS + i,
                headers=(("h", b"%d" % i),),
            )
            for i in range(RECORDS)
        ]
    got = read(bootstrap, topic, RECORDS, max_partition_fetch_bytes=10_000)
    placed = {(m.partition, m.offset): i for i, m in enumerate(future.result(0) for future in futures)}
    assert len(got) == RECORDS
    assert {(r.partition, r.offset): number_of(r) for r in got} == placed
    for partition in range(3):
        numbers = [number_of(record) for record in got if record.partition == partition]
        assert numbers == sorted(numbers)
    for record in got:
        number = number_of(record)
        assert record.key == b"key-%d" % (number % 20)
        assert record.partition == partition_for_key(record.key, 3)
        assert record.timestamp_ms == NOON_MS + number
        assert list(record.headers) == [("h", b"%d" % number)]


def test_reading_continues_from_the_middle_of_a_batch_and_by_time(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, batch_size_bytes=4000, linger_ms=50) as producer:
        for i in range(1000):
            producer.send(topic, b"%d" % i, partition=0, timestamp_ms=NOON_MS + i)
    everything = read(bootstrap, topic, 1000, partitions=1)
    with Consumer(bootstrap, auto_offset_reset="error", fetch_max_wait_ms=50) as consumer:
        consumer.assign([(topic, 0)])
        for start in (0, 1, 137, 500, 998, 999):
            consumer.seek(topic, 0, everything[start].offset)
            got: list[ConsumerRecord] = []
            while len(got) < 1000 - start:
                got += consumer.poll(5)
            assert got == everything[start:]
        assert consumer.position(topic, 0) == consumer.high_watermark(topic, 0)
        consumer.seek_to_timestamp(topic, 0, NOON_MS + 600)
        got = consumer.poll(10)
        assert got[0].timestamp_ms <= NOON_MS + 600 <= got[-1].timestamp_ms
        consumer.seek_to_end(topic, 0)
        assert consumer.poll(0.2) == []


def test_raw_batches(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, batch_size_bytes=2000, compression="lz4") as producer:
        for i in range(500):
            producer.send(topic, b"%d" % i * 20, partition=1)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 1)])
        taken = []
        deadline = time.monotonic() + WAIT_S
        count = 0
        while count < 500 and time.monotonic() < deadline:
            fresh = consumer.poll_batches(0.5)
            count += sum(header.record_count for each in fresh for _, header in hop(each.buffer))
            taken += fresh
        assert count == 500
        # Apache Kafka counts records, so its batches have no address.
        assert 0 in (taken[0].base_offset, taken[0].address)
        assert taken[-1].end_address == taken[-1].high_watermark == consumer.position(topic, 1)


def test_planted_losses_leave_a_gap_under_the_old_epoch(bootstrap: str, topic: str) -> None:
    plan = DropPlan(topic, 7, after=100)
    closed = []

    class Watch(BatchObserver):
        def batch_closed(self, identity: BatchIdentity) -> None:
            closed.append(identity)

    with Producer(bootstrap, interceptor=plan, observer=Watch(), batch_size_bytes=1000) as producer:
        for i in range(1000):
            producer.send(topic, b"%d" % i, partition=2)
    assert plan.is_done
    assert len(read(bootstrap, topic, 993)) == 993
    assert sum(identity.record_count for identity in closed) == 1000
    assert set(plan.dropped) <= set(closed)


def test_topics(admin: Admin, bootstrap: str) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    topic_id = admin.create_topic(name, 2, config={"retention.ms": "86400000"})
    info = admin.topic(name)
    assert (info.name, info.topic_id, list(info.partitions)) == (name, topic_id, [0, 1])
    assert all(part.leader in admin.describe_cluster().brokers for part in info.partitions.values())
    assert name in admin.topics()
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS") as caught:
        admin.create_topic(name, 2)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    admin.create_partitions(name, 5)
    assert len(admin.topic(name).partitions) == 5
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        admin.create_partitions(name, 2)
    admin.delete_topic(name)
    deadline = time.monotonic() + WAIT_S
    while name in admin.topics() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(UnknownTopicError):
        admin.topic(name)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.delete_topic(name)
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.create_topic("no/name", 1)


def test_configurations(admin: Admin, topic: str) -> None:
    def own() -> dict[str, str | None]:
        return {name: entry.value for name, entry in admin.describe_configs(topic).items() if entry.is_own}

    assert "retention.ms" in admin.describe_configs(topic)
    assert "retention.ms" not in own()
    admin.alter_configs(topic, {"retention.ms": "5000000", "max.message.bytes": "2000000"})
    deadline = time.monotonic() + WAIT_S
    while len(own()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (own()["retention.ms"], own()["max.message.bytes"]) == ("5000000", "2000000")
    admin.alter_configs(topic, {"retention.ms": None})
    while "retention.ms" in own() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "retention.ms" not in own()
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        admin.alter_configs(topic, {"retention.ms": "soon"})


def test_the_cluster_and_its_brokers(admin: Admin, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    assert [f"{a.host}:{a.port}" for a in cluster.brokers.values()] == [bootstrap]
    assert cluster.controller_id in cluster.brokers
    [broker_id] = cluster.brokers
    assert admin.describe_broker_configs(broker_id)


def test_offsets(admin: Admin, bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        for i in range(120):
            producer.send(topic, b"x", partition=i % 2, timestamp_ms=NOON_MS + i).result(WAIT_S)
    ends = admin.list_offsets(topic)
    starts = admin.list_offsets(topic, EARLIEST, partitions=[0, 2])
    assert list(ends) == [0, 1, 2]
    assert ends == admin.list_offsets(topic, LATEST)
    assert ends[2].offset == 0 < ends[0].offset
    assert {partition: found.offset for partition, found in starts.items()} == {0: 0, 2: 0}
    middle = admin.list_offsets(topic, NOON_MS + 100, partitions=[0])[0]
    assert 0 < middle.offset < ends[0].offset
    assert middle.timestamp_ms == NOON_MS + 100
    assert admin.list_offsets(topic, NOON_MS + 10**9)[0].offset == -1
    with pytest.raises(UnknownTopicError):
        admin.list_offsets(topic, partitions=[9])
    with pytest.raises(UnknownTopicError):
        admin.list_offsets("nope")


def test_an_admin_without_brokers_raises_network_error() -> None:
    with Admin("127.0.0.1:1", timeout_ms=200) as admin, pytest.raises(NetworkError, match=r"127\.0\.0\.1:1"):
        admin.topics()
