"""Confluent's producer and consumer with its Avro serializers, on our brokers and our registry: all of it
together.
"""

import time
import uuid

import confluent_kafka
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fix_broker import BrokerCluster
from headrace.events.schemas import read_schema

pytestmark = pytest.mark.real_client

EVENTS = 5_000


def page_view(i: int) -> dict[str, object]:
    header = {
        "time": 1_431_857_103_000 + i,
        "datacenter": "east",
        "server": "s1",
        "service": "web",
        "guid": str(i),
    }
    return {
        "header": header,
        "remote_host": f"10.0.0.{i % 256}",
        "method": "GET",
        "path": f"/{i}",
        "status": 200,
    }


def test_avro_events_through_brokers_and_registry(one_broker: BrokerCluster, registry_url: str) -> None:
    topic = f"views-{uuid.uuid4().hex[:8]}"
    context = SerializationContext(topic, MessageField.VALUE)
    registry = SchemaRegistryClient({"url": registry_url})
    serialize = AvroSerializer(registry, read_schema("page-view.avsc"))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": one_broker.bootstrap, "enable.idempotence": True, "compression.type": "zstd"}
    )
    failures: list[object] = []
    for i in range(EVENTS):
        producer.produce(
            topic,
            serialize(page_view(i), context),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(30) == 0
    assert failures == []

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": one_broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    deserialize = AvroDeserializer(registry)
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(seen) < EVENTS and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            seen.append(int(deserialize(message.value(), context)["header"]["guid"]))
    consumer.close()
    registry.close()
    assert sorted(seen) == list(range(EVENTS))
