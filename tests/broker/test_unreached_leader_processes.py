"""Real brokers on hosts of their own: the leader's links to the other brokers are cut, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from faults.cluster import TOPIC, Cluster
from faults.disk import Orders, ensure_library
from faults.place import best_place, broker_host

from fix_network import missing_requirement

SESSION_MS: Final = 2_000
ACKNOWLEDGED_MAX_S: Final = 25
"""Less than `replica.lag.time.max.ms`: before that no other broker would take part in this."""
JOINED_MAX_S: Final = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if reason := missing_requirement():
        pytest.skip(f"links are cut between network namespaces, which this machine cannot have: {reason}")
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS)}
    library = ensure_library(tmp_path / "library")
    made = Cluster(
        best_place(3, loopback=False), tmp_path, library, 3, settings, Orders(), small=False, supervised=False
    )
    try:
        made.start()
        made.create_topic(1, 3, {})
        yield made
    finally:
        made.close()


def send(producer: Producer, value: bytes) -> int:
    """Returns the offset at which a record was acknowledged by all in-sync replicas."""
    offsets: list[int] = []

    def told(error: object, message: object) -> None:
        assert error is None, error
        offsets.append(message.offset())  # type: ignore[attr-defined]

    producer.produce(TOPIC, value, partition=0, on_delivery=told)
    assert producer.flush(ACKNOWLEDGED_MAX_S) == 0, f"{value!r} is not acknowledged"
    return offsets[0]


@pytest.mark.zookeeper
def test_producers_go_on_while_the_leader_lives_and_its_followers_do_not_reach_it(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    before = send(producer, b"before")
    leader = cluster.leaders()[0]
    for other in cluster.brokers:
        if other.number != leader:
            cluster.place.cut(broker_host(leader), broker_host(other.number))
            cluster.place.cut(broker_host(other.number), broker_host(leader))
    assert send(producer, b"meanwhile") > before
    assert cluster.leaders()[0] not in (leader, -1)
    cluster.place.heal()
    deadline = time.monotonic() + JOINED_MAX_S
    while len(cluster.partitions()[0][2]) < 3:
        assert time.monotonic() < deadline, f"broker {leader} does not join again: {cluster.partitions()}"
        time.sleep(0.1)
    assert send(producer, b"after") > before
