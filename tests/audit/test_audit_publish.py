"""What an auditor publishes, to which partitions of the audit log."""

from __future__ import annotations

from fix_broker import BrokerCluster
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, PartitionPosition
from headrace.client import Admin, Consumer


def test_each_partition_gets_a_datacenters_heartbeats(one_broker: BrokerCluster, registry_url: str) -> None:
    topic = "heartbeats-of-three"
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, 3)
    heartbeat = HeartbeatRecord(DATACENTER_TIER, 1, 0, 1, (PartitionPosition("east", "t", 0, 0, 10, 10),))
    with AuditPublisher(
        bootstrap=one_broker.bootstrap,
        registry_url=registry_url,
        datacenter="east",
        service="auditor",
        topic=topic,
    ) as publisher:
        publisher.publish(heartbeat)
        publisher.flush()
    found: list[int] = []
    with Consumer(one_broker.bootstrap) as consumer:
        consumer.assign((topic, number) for number in range(3))
        for number in range(3):
            consumer.seek_to_beginning(topic, number)
        while len(found) < 3 and (records := consumer.poll(30.0)):
            found += [each.partition for each in records]
    assert sorted(found) == [0, 1, 2]
