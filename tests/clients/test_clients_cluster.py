"""A broker of two is SIGKILLed while two kinds of producers write and a consumer reads along: once in
processes of this machine, once in containers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import confluent_kafka
import pytest

from fix_clients import got_of
from fix_containers import Cluster
from headrace.client import Admin, Consumer, Producer

pytestmark = pytest.mark.real_client

PARTITIONS = 4
KEYS = 50
BATCH_BYTES = 2_000
WAIT_MAX_S = 90.0
PUBLISHING_S = 0.4
# Slow enough to be read again quickly, fast enough that requests are always in flight.
AT_ONCE, PAUSE_S = 10, 0.002
OURS, LIBRDKAFKA = "by-headrace", "by-librdkafka"


class Row(NamedTuple):
    """A record as it was read. Its value is its number."""

    partition: int
    offset: int
    key: bytes
    number: int


@dataclass
class Published:
    """A producer's records and their outcomes."""

    count: int = 0
    failures: list[object] = field(default_factory=list)


def publish_ours(bootstrap: str, done: Published, stop: threading.Event) -> None:
    futures = []
    with Producer(bootstrap, retry_backoff_ms=20, batch_size_bytes=BATCH_BYTES) as producer:
        while not stop.is_set():
            futures.append(producer.send(OURS, b"%d" % done.count, key=b"%d" % (done.count % KEYS)))
            _count(done)
    done.failures += [error for future in futures if (error := future.exception(0)) is not None]


def publish_librdkafka(bootstrap: str, done: Published, stop: threading.Event) -> None:
    settings = {"enable.idempotence": True, "linger.ms": 5, "batch.size": BATCH_BYTES, "retry.backoff.ms": 20}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    acknowledged = Counter[str]()

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        acknowledged["all"] += 1
        if error is not None:
            done.failures.append(error)

    while not stop.is_set():
        producer.produce(LIBRDKAFKA, b"%d" % done.count, b"%d" % (done.count % KEYS), on_delivery=delivered)
        producer.poll(0)
        _count(done)
    if producer.flush(WAIT_MAX_S) or acknowledged["all"] != done.count:
        done.failures.append(f"of {done.count} records {acknowledged['all']} were answered for")


def _count(done: Published) -> None:
    done.count += 1
    if done.count % AT_ONCE == 0:
        time.sleep(PAUSE_S)


def read_ours(bootstrap: str, topic: str, is_all: Callable[[int], bool]) -> list[Row]:
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT_MAX_S
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        while not is_all(len(rows)) and time.monotonic() < deadline:
            got = consumer.poll(0.5)
            rows += [
                Row(each.partition, each.offset, each.key or b"", int(each.value or b"")) for each in got
            ]
    return rows


def read_librdkafka(bootstrap: str, topic: str, is_all: Callable[[int], bool]) -> list[Row]:
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT_MAX_S
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        )
        while not is_all(len(rows)) and time.monotonic() < deadline:
            for message in consumer.consume(5_000, 0.2):
                if message.error() is not None:
                    continue  # librdkafka reports that a broker is down, and continues
                partition, read = message.partition(), got_of(message)
                assert partition is not None and read.key is not None and read.value is not None
                rows.append(Row(partition, read.offset, read.key, int(read.value)))
    finally:
        consumer.close()
    return rows


def check_rows(rows: Sequence[Row], count: int) -> None:
    """Checks that each record is there once, in order within its partition and key."""
    assert sorted(row.number for row in rows) == list(range(count))
    for partition in range(PARTITIONS):
        mine = [row for row in rows if row.partition == partition]
        assert mine, f"partition {partition} is empty: the records were not spread"
        assert [row.offset for row in mine] == sorted({row.offset for row in mine})
    of_key: dict[bytes, int] = {}
    for row in rows:
        assert of_key.get(row.key, -1) < row.number, f"key {row.key!r} is not in order"
        of_key[row.key] = row.number


def wait_for_more(published: Mapping[str, Published], than: Mapping[str, int]) -> None:
    """Waits until every producer has published more: a busy machine takes its time."""
    deadline_s = time.monotonic() + WAIT_MAX_S
    while any(done.count <= than[topic] and not done.failures for topic, done in published.items()):
        assert time.monotonic() < deadline_s, {topic: done.count for topic, done in published.items()}
        time.sleep(0.05)


def test_nothing_acknowledged_is_lost_or_doubled_when_a_broker_is_killed(either_cluster: Cluster) -> None:
    bootstrap = either_cluster.bootstrap
    published = {OURS: Published(), LIBRDKAFKA: Published()}
    with Admin(bootstrap) as admin:
        for topic in published:
            admin.create_topic(topic, PARTITIONS)
        assert {part.leader for part in admin.topic(OURS).partitions.values()} == {1, 2}
    stop, over = threading.Event(), threading.Event()
    read_along: list[Row] = []

    def is_all(count: int) -> bool:
        return over.is_set() and count >= published[OURS].count

    def read() -> None:
        read_along.extend(read_librdkafka(bootstrap, OURS, is_all))

    producers = [
        threading.Thread(target=publish, args=(bootstrap, published[topic], stop))
        for topic, publish in ((OURS, publish_ours), (LIBRDKAFKA, publish_librdkafka))
    ]
    reader = threading.Thread(target=read)
    for thread in (*producers, reader):
        thread.start()
    try:
        wait_for_more(published, dict.fromkeys(published, 0))
        time.sleep(PUBLISHING_S)
        either_cluster.brokers[0].kill()
        before = {topic: done.count for topic, done in published.items()}
        time.sleep(PUBLISHING_S)
        either_cluster.brokers[0].start()
        time.sleep(PUBLISHING_S)
        wait_for_more(published, before)
    finally:
        stop.set()
        for thread in producers:
            thread.join(WAIT_MAX_S)
        over.set()
        reader.join(WAIT_MAX_S)
    for topic, done in published.items():
        assert not done.failures, (topic, done.failures[0])
        assert 0 < before[topic] < done.count, "it was written before the kill, and after"
    check_rows(read_along, published[OURS].count)
    check_rows(
        read_ours(bootstrap, LIBRDKAFKA, lambda count: count >= published[LIBRDKAFKA].count),
        published[LIBRDKAFKA].count,
    )
    broker = either_cluster.brokers[0]
    assert broker.run("headrace-container", "health") == (0, "ready\n")
    assert broker.output().count("broker 1 ready on") == 2, "its log is its output, of both lives"
    assert [broker.stop() for broker in either_cluster.brokers] == [0, 0], "an orderly end"
