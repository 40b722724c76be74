"""The coordinator of a group dies by SIGKILL, and comes back: its members, real clients, notice nothing.

They go on in the same generation, and each record comes once. (So it does to kafka-python. But that takes a
minute to find the coordinator, and leaves sockets open.)
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_group_members import Member, Place, make_member
from fix_replicas import SETTINGS, ReplicatedCluster
from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.groups.generations import StoredGeneration, decode
from headrace.coordination import znodes

pytestmark = pytest.mark.real_client

PARTITIONS = 4
SESSION_TIMEOUT_MS = 45_000  # as Kafka's clients have it by default
BATCH = 200
WAIT_MAX_S = 90.0


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster(count=3, config=SETTINGS)


@pytest.fixture
def replicas(cluster: BrokerCluster) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(cluster) as opened:
        yield opened


class Watched:
    """A group of real clients, and what its members have got."""

    def __init__(self, replicas: ReplicatedCluster) -> None:
        self.replicas = replicas
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.members: list[Member] = []
        self.got: Counter[bytes] = Counter()
        self.sent = 0
        spread = {number: ((1, 2, 3) * 2)[number % 3 :][:3] for number in range(PARTITIONS)}
        replicas.registry.create(self.topic, uuid.uuid4(), spread, {})
        self._producer = confluent_kafka.Producer({"bootstrap.servers": replicas.brokers.bootstrap})

    def coordinator(self) -> int:
        live = [broker.broker_id for broker in self.replicas.brokers.brokers if broker.is_running]
        found = coordinator_for(self.group, live)
        assert found is not None
        return found

    def generation(self) -> tuple[int, StoredGeneration]:
        """Returns what is stored of the group, and how often it was."""
        path = znodes.generation(self.group)
        node = self.replicas.session.get(path)
        return node.stat.version, decode(path, node.data)

    def send(self) -> None:
        for number in range(self.sent, self.sent + BATCH):
            self._producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(WAIT_MAX_S) == 0
        self.sent += BATCH

    def poll_until(self, what: str, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + WAIT_MAX_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {WAIT_MAX_S:g} s: {what}; {self.replicas.logs()}"
            for member in self.members:
                self.got.update(row.value for _, row in member.poll() if row.value is not None)

    def read_all(self, when: str) -> None:
        self.send()
        self.poll_until(f"all is read {when}", lambda: len(self.got) == self.sent)

    def is_shared(self) -> bool:
        return all(len(member.assigned()) == PARTITIONS // 2 for member in self.members)


@pytest.fixture
def watched(replicas: ReplicatedCluster) -> Iterator[Watched]:
    made = Watched(replicas)
    yield made
    for member in made.members:
        member.leave()


def dies(watched: Watched) -> int:
    """Kills the group's coordinator; returns which broker it was. Another one coordinates the group then."""
    replicas, broker = watched.replicas, watched.coordinator()
    replicas.brokers[broker].kill()
    replicas.wait_for("its session ends", lambda: replicas.session.exists(znodes.broker(broker)) is None)
    assert watched.coordinator() != broker
    return broker


def test_members_go_on_when_their_coordinator_dies_and_when_it_comes_back(
    watched: Watched, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = Place(watched.replicas.brokers.bootstrap, watched.group, watched.topic, SESSION_TIMEOUT_MS)
    watched.members += (make_member(kind, place, request, tmp_path) for kind in ("java", "java"))
    watched.poll_until("the partitions are shared", watched.is_shared)
    watched.read_all("before")
    before = watched.generation()
    watched.send()  # members fetch and commit meanwhile
    broker = dies(watched)
    watched.read_all("by the next one")
    assert watched.generation() == before
    watched.send()
    watched.replicas.brokers[broker].start()
    watched.read_all("by the first one again")
    assert watched.generation() == before
    assert set(watched.got.values()) == {1}, "some records came twice"


def test_a_member_of_librdkafka_goes_on_in_its_generation(watched: Watched) -> None:
    """It commits only once it has found the coordinator. A commit that waits makes librdkafka give up its
    connection to the new coordinator again and again, until its session is over.
    """
    revoked: list[object] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": watched.replicas.brokers.bootstrap,
            "group.id": watched.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
        }
    )
    whole = [confluent_kafka.TopicPartition(watched.topic, number) for number in range(PARTITIONS)]

    def committed() -> list[confluent_kafka.TopicPartition]:
        try:
            return consumer.committed(whole, timeout=WAIT_MAX_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
                raise
            return []

    def read_and_commit() -> None:
        watched.send()
        deadline = time.monotonic() + WAIT_MAX_S
        while len(watched.got) < watched.sent:
            assert time.monotonic() < deadline, watched.replicas.logs()
            messages = consumer.consume(BATCH, 0.1)
            watched.got.update(value for each in messages if (value := each.value()) is not None)
        watched.replicas.wait_for("it has found the coordinator", committed)
        consumer.commit(asynchronous=False)

    consumer.subscribe([watched.topic], on_revoke=lambda _, partitions: revoked.append(partitions))
    try:
        read_and_commit()
        before = watched.generation()
        broker = dies(watched)
        read_and_commit()
        watched.replicas.brokers[broker].start()
        read_and_commit()
        assert watched.generation() == before
        assert not revoked and set(watched.got.values()) == {1}
        assert all(each.offset > 0 for each in committed())
    finally:
        consumer.close()
