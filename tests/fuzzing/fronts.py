"""Two brokers with front listeners, as behind a balancer. Each passes on what the other one leads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from fix_broker import BrokerCluster, RawClient
from fix_ports import free_port
from fix_zookeeper import ZooKeeperServer, room_on
from fuzzing.honest import TOPIC, HonestClient
from fuzzing.requests import Names, RequestMaker
from headrace.broker.settings.replication import RACK_AWARE
from headrace.client.admin import Admin

FUZZED: Final = "front-fuzz"
REPLICATED: Final = "replicated-5d1c"
"""A topic that both brokers hold. No generated request names it."""
MOVED: Final = "moved-5d1c"
"""Another one, which strangers reassign."""
PARTITIONS: Final = 4
BROKERS: Final = 2


class Fronts:
    """The first broker's front listener is attacked; the second broker has half of the partitions."""

    def __init__(self, server: ZooKeeperServer, directory: Path) -> None:
        directory.mkdir()
        self.cluster = BrokerCluster(
            room_on(server), directory, BROKERS, "fronts", {"replica.selector.class": RACK_AWARE}
        )
        self.front = f"127.0.0.1:{free_port()}"
        self._honest_partition = 0
        for broker in self.cluster.brokers:
            listen = self.front if broker.broker_id == 1 else f"127.0.0.1:{free_port()}"
            rack = ["--set", f"broker.rack=rack-{broker.broker_id}"]
            broker.extra_arguments = ["--front-listen", listen, "--front-advertise", self.front, *rack]
        self.maker: RequestMaker

    def start(self) -> None:
        self.cluster.start()
        with RawClient(self.cluster[1].address) as client:
            for name in (FUZZED, TOPIC):
                client.create_topic(name, PARTITIONS)
        with Admin(self.cluster[1].address) as admin:
            for name in (REPLICATED, MOVED):
                admin.create_topic(name, PARTITIONS, BROKERS)
        with RawClient(self.front) as client:
            served = client.call(ApiVersionsRequest()).api_keys
        leaders = self.leaders(TOPIC)
        self._honest_partition = next(part for part, leader in leaders.items() if leader == 2)
        versions = [(each.api_key, each.min_version, each.max_version) for each in served]
        self.maker = RequestMaker(versions, Names([FUZZED], [], ["group-a"], ["retention.ms"]))

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition."""
        asked = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        with RawClient(self.cluster[1].address) as client:
            (found,) = client.call(asked).topics
        return {each.partition_index: each.leader_id for each in found.partitions}

    def close(self) -> None:
        self.cluster.close()

    def honest(self) -> HonestClient:
        """A client that writes through the front to a partition of the other broker, and reads there."""
        reads_at = self.cluster[2].address
        client = HonestClient(self.front, TOPIC, partition=self._honest_partition, reads_at=reads_at)
        client.start()
        return client

    def memory_bytes(self) -> int:
        """Of the larger broker."""
        held = (psutil.Process(broker.pid).memory_info().rss for broker in self.cluster.brokers)
        return max(int(each) for each in held)
