"""A cluster of three real brokers, and topics whose replicas and leaders the test itself writes to ZooKeeper.

Fixture: `replicas`, a `ReplicatedCluster`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.coordination.errors import BadVersionError
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.wire.errors import ErrorCode
from headrace.wire.produce import ProducePartitionResult
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S: Final = 30.0
LAG_MAX_MS: Final = 1_500
SETTINGS: Final = {"replica.lag.time.max.ms": str(LAG_MAX_MS), "zookeeper.session.timeout.ms": "4000"}


def batch(text: str, size_bytes: int = 10) -> bytes:
    return encode_batch([Record(0, 1_000, None, text.encode().ljust(size_bytes, b"."))])


class ReplicatedCluster:
    """`topic` makes a topic, `elect` writes another leader."""

    def __init__(self, brokers: BrokerCluster) -> None:
        self.brokers = brokers
        self.session = brokers.zookeeper.session()
        self.registry = TopicRegistry(self.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for: {what}\n{self.logs()}"
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n\n".join(broker.output()[-3_000:] for broker in self.brokers.brokers)

    def topic(self, *replicas: int, **config: str) -> str:
        """Makes a topic of one partition; the first replica leads it."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.registry.create(name, uuid.uuid4(), {0: replicas}, settings)
        self.produce(name, "first")
        return name

    def state(self, topic: str) -> PartitionState:
        return self.registry.get(topic).partitions[0]

    def elect(self, topic: str, leader: int, *, in_sync: tuple[int, ...] | None = None) -> int:
        """Makes a broker the leader, in the next epoch; returns that."""
        while True:
            before = self.state(topic)
            after = PartitionState(leader, before.leader_epoch + 1, before.replicas, in_sync or before.isr)
            try:
                self.registry.set_partition_state(topic, 0, after, expected=before)
                return after.leader_epoch
            except BadVersionError:
                continue

    def client(self, broker: int) -> RawClient:
        return RawClient(self.brokers[broker].address)

    def try_to_produce(self, topic: str, text: str, *, acks: int = -1) -> ProducePartitionResult:
        with self.client(self.state(topic).leader) as client:
            return client.produce(topic, 0, batch(text), acks=acks)

    def produce(self, topic: str, text: str, *, acks: int = -1) -> ProducePartitionResult:
        """Produces to the leader, as soon as it leads."""
        results: list[ProducePartitionResult] = []

        def is_stored() -> bool:
            results.append(self.try_to_produce(topic, text, acks=acks))
            return results[-1].error_code == 0

        self.wait_for(f"{topic} takes {text!r}", is_stored)
        return results[-1]

    def on_disk(self, broker: int, topic: str) -> bytes:
        """What a broker's files hold of the partition."""
        folder: Path = self.brokers[broker].data_dir / f"{topic}-0"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def wait_until_equal(self, topic: str, *brokers: int) -> bytes:
        """Waits until these brokers hold the same bytes; returns them."""

        def is_equal() -> bool:
            held = {self.on_disk(broker, topic) for broker in brokers}
            return len(held) == 1 and held != {b""}

        self.wait_for(f"{topic} is the same on brokers {brokers}", is_equal)
        return self.on_disk(brokers[0], topic)

    def wait_in_sync(self, topic: str, *brokers: int) -> None:
        self.wait_for(f"{brokers} in sync", lambda: set(self.state(topic).isr) == set(brokers))

    def read(self, topic: str) -> bytes:
        with self.client(self.state(topic).leader) as client:
            return client.read_all(topic, 0)

    def answer(self, broker: int, topic: str, offset: int = 0) -> ErrorCode:
        """What a broker answers to a consumer."""
        with self.client(broker) as client:
            return ErrorCode(client.fetch(topic, 0, offset).error_code)


@pytest.fixture(scope="module")
def replicas(module_clusters: StartCluster) -> Iterator[ReplicatedCluster]:
    """One cluster for a module: a test leaves all brokers running."""
    with ReplicatedCluster(module_clusters(count=3, config=SETTINGS)) as cluster:
        yield cluster
