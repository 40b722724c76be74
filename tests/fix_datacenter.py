"""A datacenter for the real clients: headrace brokers as processes, with segments so small that many fill.

Fixtures: `datacenter` (two brokers, for the whole session: nobody may kill them) and `own_datacenter` (one
broker, for a test that does).
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import ZooKeeperServer, room_on

CREATE_WAIT_MAX_S: Final = 60.0
SEGMENT_BYTES: Final = 1 << 17
SETTINGS: Final = {
    "log.segment.bytes": str(SEGMENT_BYTES),
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "2000",
}


class Datacenter:
    """Its brokers, and what tests need of them besides Kafka's protocol: the files."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.brokers = cluster.brokers
        self.bootstrap = cluster.bootstrap
        self.zookeeper = cluster.zookeeper

    def create_topic(self, name: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = NewTopic(name, partitions, 1)
        for created in admin.create_topics([wanted]).values():
            created.result(timeout=CREATE_WAIT_MAX_S)

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The partition's segment files, in order, on whichever broker has them."""
        found = [
            path for broker in self.brokers for path in broker.data_dir.glob(f"{topic}-{partition}/*.log")
        ]
        return sorted(found, key=lambda path: path.name)

    def end_address(self, topic: str, partition: int = 0) -> int:
        """Where the partition's next batch will start, by the files alone."""
        last = self.segments(topic, partition)[-1]
        return int(last.stem) + last.stat().st_size


@pytest.fixture(scope="session")
def datacenter(zookeeper_server: ZooKeeperServer) -> Iterator[Datacenter]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-datacenter-"))
    cluster = BrokerCluster(room_on(zookeeper_server), directory, 2, "test", SETTINGS)
    try:
        cluster.start()
        yield Datacenter(cluster)
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_datacenter(broker_cluster: StartCluster) -> Datacenter:
    return Datacenter(broker_cluster(1, SETTINGS))
