"""Our own client beside the others, against our brokers and against Apache Kafka's: they read what it writes,
it reads what they write, keys land where theirs do, and Apache Kafka's crashes lose and repeat nothing.
"""

import time
import uuid

import confluent_kafka
import kafka
import pytest

import headrace.client
from fix_clients import BATCH_BYTES, CLIENT_NAMES, Headrace, RealClients, read_all
from fix_datacenter import Datacenter
from fix_kafka import ApacheKafka
from fix_samples import CODECS, Read, Sample, check_rows, make_samples
from headrace.wire.partitioning import partition_for_key

pytestmark = pytest.mark.real_client

COUNT = 30_000
FOREIGN_COUNT = 10_000
PIECE = 400
KEYED = 600
CRASH_COUNT = 40_000
CRASH_WAIT_MAX_S = 60.0
KEYED_PARTITIONS = 6

SAMPLES = make_samples(COUNT)
FOREIGN = make_samples(FOREIGN_COUNT, seed=5)


@pytest.fixture(params=["headrace", "apache-kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Whose brokers."""
    if request.param == "headrace":
        datacenter: Datacenter = request.getfixturevalue("datacenter")
        return datacenter.bootstrap
    broker: ApacheKafka = request.getfixturevalue("apache_kafka")
    return broker.bootstrap


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("codec", CODECS)
def test_others_read_what_we_write(codec: str, bootstrap: str, real_clients: RealClients) -> None:
    """Two of the four read each codec; the uncompressed one is read by all."""
    turn = CODECS.index(codec)
    readers = CLIENT_NAMES if turn == 0 else (CLIENT_NAMES[turn % 4], CLIENT_NAMES[(turn + 1) % 4])
    topic = fresh(f"ours-{codec}")
    ours = Headrace()
    ours.produce(bootstrap, topic, SAMPLES, codec=codec)
    rows = ours.read(bootstrap, Read(topic, COUNT))
    check_rows(rows, SAMPLES)
    for name in readers:
        assert read_all(real_clients[name], bootstrap, topic, COUNT) == rows, name
    assert ours.read(bootstrap, Read(topic, COUNT, fetch_bytes=5_000)) == rows
    for place in (1, COUNT // 2, COUNT - PIECE):
        piece = rows[place : place + PIECE]
        assert ours.read(bootstrap, Read(topic, PIECE, offset=piece[0].offset)) == piece
        assert ours.read(bootstrap, Read(topic, PIECE, offset=rows[place - 1].offset + 1)) == piece
        moment = rows[place - 1].timestamp_ms + 1
        assert ours.read(bootstrap, Read(topic, PIECE, timestamp_ms=moment)) == piece


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_we_read_what_others_write(name: str, bootstrap: str, real_clients: RealClients) -> None:
    client = real_clients[name]
    for codec in CODECS:
        topic = fresh(f"theirs-{name}-{codec}")
        client.produce(bootstrap, topic, FOREIGN, codec=codec)
        check_rows(Headrace().read(bootstrap, Read(topic, FOREIGN_COUNT)), FOREIGN, times=client.sets_times)


def test_nulls_and_headers(bootstrap: str) -> None:
    topic = fresh("nulls")
    headers = (("published-ms", b"\x00\x01"), ("empty", b""), ("null", None))
    with headrace.client.Producer(bootstrap) as producer:
        producer.send(topic, None, key=b"tombstone", partition=0, headers=headers)
        producer.send(topic, b"", key=None, partition=0)
        producer.send(topic, b"value", key=b"", partition=0)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    theirs = consumer.consume(3, 20)
    consumer.close()
    assert [(each.key(), each.value()) for each in theirs] == [
        (b"tombstone", None),
        (None, b""),
        (b"", b"value"),
    ]
    assert theirs[0].headers() == list(headers)
    with headrace.client.Consumer(bootstrap) as ours:
        ours.assign([(topic, 0)])
        ours.seek_to_beginning(topic, 0)
        read: list[headrace.client.ConsumerRecord] = []
        while len(read) < 3:
            read += ours.poll(1.0)
    assert [(each.key, each.value) for each in read] == [(each.key(), each.value()) for each in theirs]
    assert tuple(read[0].headers) == headers


def test_batches_smaller_than_their_count(bootstrap: str, real_clients: RealClients) -> None:
    """Empty values compress to less than a byte per record: offsets would run into the next batch's."""
    empty = [Sample(FOREIGN[0].timestamp_ms, b"", b"")] * FOREIGN_COUNT
    for name in ("headrace", "confluent-kafka", "kafka-python", "java"):
        topic = fresh(f"empty-{name}")
        real_clients[name].produce(bootstrap, topic, empty, codec="zstd")
        for reader in ("headrace", "confluent-kafka", "kafka-python", "java"):
            check_rows(read_all(real_clients[reader], bootstrap, topic, len(empty)), empty)


def test_keys_get_the_partition_that_other_clients_choose(bootstrap: str) -> None:
    topic = fresh("keyed")
    with headrace.client.Admin(bootstrap) as admin:
        admin.create_topic(topic, KEYED_PARTITIONS)
    keys = [b"member-%d" % each for each in range(KEYED)]
    theirs = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    placed: dict[bytes, set[int]] = {key: set() for key in keys}

    def delivered(_: object, message: confluent_kafka.Message) -> None:
        key, partition = message.key(), message.partition()
        assert key is not None and partition is not None
        placed[key].add(partition)

    for key in keys:
        theirs.produce(topic, b"", key, on_delivery=delivered)
    assert theirs.flush(30) == 0
    python = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    for key, future in [(key, python.send(topic, b"", key)) for key in keys]:
        placed[key].add(future.get(30).partition)
    python.close()
    with headrace.client.Producer(bootstrap) as ours:
        for key, delivery in [(key, ours.send(topic, b"", key=key)) for key in keys]:
            placed[key].add(delivery.result(timeout=60).partition)
    assert placed == {key: {partition_for_key(key, KEYED_PARTITIONS)} for key in keys}


def test_apache_kafka_crashes_under_our_producer(apache_kafka: ApacheKafka) -> None:
    topic = fresh("crash-ours")
    # Times of today: Apache Kafka expires a producer whose last record is old, and
    # forgets its sequence numbers when it starts (producer.id.expiration.ms counts event time).
    now_ms = time.time_ns() // 1_000_000
    crashing = [each._replace(timestamp_ms=now_ms) for each in SAMPLES[:CRASH_COUNT]]
    with headrace.client.Producer(apache_kafka.bootstrap, batch_size_bytes=BATCH_BYTES) as producer:
        sent = []
        for place, each in enumerate(crashing):
            sent.append(
                producer.send(topic, each.value, key=each.key, partition=0, timestamp_ms=each.timestamp_ms)
            )
            if place == CRASH_COUNT // 2:
                sent[0].result(timeout=CRASH_WAIT_MAX_S)
                apache_kafka.kill()
                apache_kafka.start()
        producer.flush(CRASH_WAIT_MAX_S)
    offsets = [future.result(timeout=0).offset for future in sent]
    rows = Headrace().read(apache_kafka.bootstrap, Read(topic, CRASH_COUNT))
    check_rows(rows, crashing)
    assert [row.offset for row in rows] == offsets
