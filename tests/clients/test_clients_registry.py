"""Confluent's registry client and Avro serializers against our registry, their bytes through our brokers."""

import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from fix_datacenter import Datacenter
from fix_registry import StartRegistry
from headrace.registry.client import SchemaRegistryClient as OurRegistryClient
from headrace.registry.serializers import AvroDeserializer as OurAvroDeserializer
from headrace.registry.serializers import AvroSerializer as OurAvroSerializer

pytestmark = pytest.mark.real_client

COUNT = 5_000
READ_WAIT_MAX_S = 60.0

OLD_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Click",
        "namespace": "test",
        "fields": [
            {"name": "member", "type": "long"},
            {"name": "page", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)
_fields = json.loads(OLD_SCHEMA)
_fields["fields"].append({"name": "referrer", "type": ["null", "string"], "default": None})
NEW_SCHEMA = json.dumps(_fields)
_broken = json.loads(OLD_SCHEMA)
_broken["fields"].append({"name": "session", "type": "string"})
BROKEN_SCHEMA = json.dumps(_broken)


def click(number: int) -> dict[str, object]:
    return {"member": number, "page": f"/in/{number % 97}", "at": 1_300_000_000_000 + number}


@pytest.fixture
def registry_url(datacenter: Datacenter, start_registry: StartRegistry) -> str:
    return start_registry(hosts=datacenter.zookeeper.hosts).url


@pytest.fixture
def registry(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def our_registry(registry_url: str) -> Iterator[OurRegistryClient]:
    with OurRegistryClient(registry_url) as client:
        yield client


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, READ_WAIT_MAX_S)
    finally:
        consumer.close()
    assert len(messages) == count
    return [value for message in messages if (value := message.value()) is not None]


def test_two_versions_of_a_schema_in_one_topic(
    datacenter: Datacenter, registry: SchemaRegistryClient, our_registry: OurRegistryClient
) -> None:
    topic = f"clicks-{uuid.uuid4().hex[:8]}"
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": datacenter.bootstrap, "enable.idempotence": True})
    old, new = AvroSerializer(registry, OLD_SCHEMA), AvroSerializer(registry, NEW_SCHEMA)
    for number in range(COUNT):
        row = click(number)
        value = old(row, context) if number % 2 else new({**row, "referrer": "/"}, context)
        producer.produce(topic, value, partition=0)
    assert producer.flush(READ_WAIT_MAX_S) == 0

    values = read_values(datacenter.bootstrap, topic, COUNT)
    theirs = AvroDeserializer(registry, NEW_SCHEMA)
    rows = [theirs(value, context) for value in values]
    expected = [{**click(number), "referrer": None if number % 2 else "/"} for number in range(COUNT)]
    assert [{**row, "at": int(row["at"].timestamp() * 1000 + 0.5)} for row in rows] == expected
    assert [version.schema_id for version in versions(registry, f"{topic}-value")] == [
        int.from_bytes(values[0][1:5]),
        int.from_bytes(values[1][1:5]),
    ]
    ours = OurAvroDeserializer(our_registry, reader_schema=NEW_SCHEMA)
    assert [ours.deserialize(value) for value in values] == rows


def versions(registry: SchemaRegistryClient, subject: str) -> list[RegisteredSchema]:
    return [registry.get_version(subject, number) for number in registry.get_versions(subject)]


def test_other_clients_read_what_our_serializer_wrote(
    datacenter: Datacenter, registry: SchemaRegistryClient, our_registry: OurRegistryClient
) -> None:
    topic = f"ours-{uuid.uuid4().hex[:8]}"
    ours = OurAvroSerializer(our_registry, OLD_SCHEMA)
    theirs = AvroDeserializer(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    value = ours.serialize(topic, click(1))
    row = theirs(value, context)
    assert row["member"] == 1 and row["page"] == "/in/1"
    assert AvroSerializer(registry, OLD_SCHEMA)(click(1), context) == value


def test_the_other_calls_of_the_client(registry: SchemaRegistryClient) -> None:
    subject = f"asked-{uuid.uuid4().hex[:8]}-value"
    old, new, broken = (Schema(text, "AVRO") for text in (OLD_SCHEMA, NEW_SCHEMA, BROKEN_SCHEMA))
    first = registry.register_schema(subject, old)
    assert registry.register_schema(subject, old) == first
    assert registry.get_schema(first).schema_str is not None
    assert registry.lookup_schema(subject, old).version == 1
    assert registry.test_compatibility(subject, new)
    assert not registry.test_compatibility(subject, broken)
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema(subject, broken)
    assert refused.value.http_status_code == 409
    registry.set_compatibility(subject, "NONE")
    assert registry.get_compatibility(subject) == "NONE"
    registry.register_schema(subject, broken)
    assert registry.get_latest_version(subject).version == 2
    assert subject in registry.get_subjects()
    with pytest.raises(SchemaRegistryError) as missing:
        registry.get_version(subject, 9)
    assert (missing.value.http_status_code, missing.value.error_code) == (404, 40402)
    with pytest.raises(SchemaRegistryError) as unknown:
        registry.get_schema(2_000_000_000)
    assert (unknown.value.http_status_code, unknown.value.error_code) == (404, 40403)
    assert registry.delete_subject(subject) == [1, 2]
    assert subject not in registry.get_subjects()
