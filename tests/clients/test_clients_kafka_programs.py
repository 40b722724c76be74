"""Kafka Connect and Kafka Streams against three brokers, one of which dies: programs that keep what they know
in compacted topics, and end if a broker refuses these.
"""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fix_broker import BrokerCluster, StartCluster
from fix_kafka_programs import KafkaPrograms, Program
from fix_ports import free_port
from headrace.client.admin import Admin

pytestmark = pytest.mark.real_client

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> Iterator[BrokerCluster]:
    yield broker_cluster(3, SETTINGS)


def kill_leader(cluster: BrokerCluster, topic: str) -> None:
    """SIGKILL to the broker that leads partition 0; nobody starts it again."""
    with Admin(cluster.bootstrap) as admin:
        leader = admin.topics()[topic].partitions[0].leader
    cluster[leader].kill()


def policy(cluster: BrokerCluster, topic: str) -> str:
    with Admin(cluster.bootstrap) as admin:
        return admin.describe_configs(topic)["cleanup.policy"].value or ""


class Connect:
    """A worker's REST interface."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/connectors"

    def put(self, name: str, **settings: str) -> None:
        data = json.dumps({"tasks.max": "1", **settings}).encode()
        request = urllib.request.Request(
            f"{self._url}/{name}/config", data, {"Content-Type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(request, timeout=60).close()

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def is_running(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/{name}/status", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            return False
        return [task["state"] for task in status["tasks"]] == ["RUNNING"]


def test_kafka_connect_goes_on_where_it_was(
    cluster: BrokerCluster, kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    """A worker that is killed reads its connectors, and how far they are, from its three compacted topics."""
    port = free_port("127.0.0.1")
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "workers",
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "config.storage.topic": "connect-configs",
        "offset.storage.topic": "connect-offsets",
        "offset.storage.partitions": "3",
        "status.storage.topic": "connect-status",
        "status.storage.partitions": "2",
        "offset.flush.interval.ms": "200",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "consumer.session.timeout.ms": "6000",
        "consumer.heartbeat.interval.ms": "1000",
        "plugin.discovery": "service_load",  # else it reads all classes of all jars
    }
    source, copy = tmp_path / "source.txt", tmp_path / "copy.txt"
    before = [f"line {number}" for number in range(1000)]
    source.write_text("\n".join(before) + "\n")

    def start() -> tuple[Program, Connect]:
        worker, rest = kafka_programs.connect(tmp_path / "worker", settings), Connect(port)
        worker.wait_until(rest.is_up, "up")
        return worker, rest

    worker, rest = start()
    rest.put("reads", **{"connector.class": "FileStreamSource", "file": str(source), "topic": "lines"})
    rest.put("writes", **{"connector.class": "FileStreamSink", "file": str(copy), "topics": "lines"})
    worker.wait_until(lambda: copy.exists() and copy.read_text().splitlines() == before, "copied")
    assert policy(cluster, "connect-configs") == policy(cluster, "connect-offsets") == "compact"

    kill_leader(cluster, "connect-offsets")
    worker.end(signal.SIGKILL)
    after = [f"line {number}" for number in range(1000, 1500)]
    with source.open("a") as file:
        file.write("\n".join(after) + "\n")
    worker, rest = start()
    worker.wait_until(lambda: rest.is_running("reads") and rest.is_running("writes"), "running")
    worker.wait_until(lambda: set(after) <= set(copy.read_text().splitlines()), "copied")
    assert list(dict.fromkeys(copy.read_text().splitlines())) == before + after
    worker.end()


def counts(cluster: BrokerCluster, topic: str) -> dict[str, int]:
    """The last count of each word."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reads-counts",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found: dict[str, int] = {}
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            word, count = message.key(), message.value()
            assert word is not None and count is not None
            found[word.decode()] = int(count)
        return found
    finally:
        consumer.close()


def is_purged(cluster: BrokerCluster, topic: str) -> bool:
    """Whether partition 0 had records, and has none now."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks"})
    try:
        earliest, latest = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        return bool(earliest == latest > 0)
    finally:
        consumer.close()


def test_kafka_streams_restores_its_table(
    cluster: BrokerCluster, kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    """The second one has none of the first one's files: its counts come from the compacted topic alone. The
    topic through which it repartitions has no retention: Streams deletes what it has read.
    """
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})

    def write(*lines: str) -> None:
        for line in lines:
            producer.produce("lines", line.encode())
        assert producer.flush(60) == 0

    with Admin(cluster.bootstrap) as admin:
        for topic in ("lines", "counts"):
            admin.create_topic(topic, 1, replication_factor=3)

    def start(name: str) -> Program:
        program = kafka_programs.start(
            tmp_path / f"{name}.log",
            "WordCount",
            *(cluster.bootstrap, "counter", str(tmp_path / name), "lines", "counts"),
        )
        program.wait_until(lambda: "running" in program.output(), "running")
        return program

    program = start("first")
    write(*["to be or not to be"] * 100)
    wanted = {"to": 200, "be": 200, "or": 100, "not": 100}
    program.wait_until(lambda: counts(cluster, "counts") == wanted, "counted")
    changelog, repartitioned = "counter-table-changelog", "counter-words-repartition"
    assert policy(cluster, changelog) == "compact"
    program.wait_until(lambda: is_purged(cluster, repartitioned), "purged")
    program.end(signal.SIGKILL)
    kill_leader(cluster, changelog)
    write("to do")
    program = start("second")
    wanted |= {"to": 201, "do": 1}
    program.wait_until(lambda: counts(cluster, "counts") == wanted, "counted")
    program.end()
