"""Confluent's own client, serializer and deserializer against a real registry process."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.schema_registry_client import ConfigCompatibilityLevel, ServerConfig
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.registry.client import SchemaRegistryClient as OurClient
from headrace.registry.serializers import AvroDeserializer as OurDeserializer
from headrace.registry.serializers import AvroSerializer as OurSerializer

pytestmark = pytest.mark.real_client

V1 = json.dumps({"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "a.R",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": "?"}],
    }
)
WRONG = json.dumps({"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "string"}]})
CONTEXT = SerializationContext("topic", MessageField.VALUE)


@pytest.fixture
def confluent(registry_url: str) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": registry_url})
    yield client
    client.close()


def test_the_clients_every_call(confluent: SchemaRegistryClient) -> None:
    first = confluent.register_schema("s", Schema(V1, "AVRO"))
    second = confluent.register_schema("s", Schema(V2, "AVRO"), normalize_schemas=True)
    registered = confluent.register_schema_full_response("s", Schema(V1, "AVRO"))
    assert registered.schema_id == first and registered.guid is not None
    by_guid = confluent.get_schema_by_guid(registered.guid).schema_str
    assert by_guid is not None and json.loads(by_guid) == json.loads(V1)
    text = confluent.get_schema(second).schema_str
    assert text is not None and json.loads(text)["fields"][1]["name"] == "y"
    found = confluent.lookup_schema("s", Schema(V2, "AVRO"))
    assert (found.subject, found.version, found.schema_id) == ("s", 2, second)
    assert confluent.get_subjects() == ["s"]
    assert confluent.get_subjects(subject_prefix="s") == ["s"]
    assert confluent.get_versions("s") == [1, 2]
    assert confluent.get_version("s", 1).schema_id == first
    assert confluent.get_latest_version("s").version == 2
    assert confluent.get_schema_types() == ["AVRO"]
    assert confluent.get_subjects_by_schema_id(first) == ["s"]
    assert [(v.subject, v.version) for v in confluent.get_schema_versions(second)] == [("s", 2)]
    assert confluent.get_referenced_by("s", 1) == []
    assert confluent.get_contexts() == ["."]
    assert confluent.test_compatibility("s", Schema(V2, "AVRO")) is True
    assert confluent.test_compatibility("s", Schema(WRONG, "AVRO")) is False
    assert confluent.test_compatibility_all_versions("s", Schema(WRONG, "AVRO")) is False
    assert confluent.delete_version("s", 2) == 2
    assert confluent.delete_version("s", 2, permanent=True) == 2
    assert confluent.delete_subject("s") == [1]
    assert confluent.delete_subject("s", permanent=True) == [1]
    assert confluent.get_subjects(deleted=True) == []


def test_configuration_and_mode(confluent: SchemaRegistryClient) -> None:
    assert confluent.get_compatibility() == "BACKWARD"
    confluent.set_compatibility(level="FULL")
    confluent.set_compatibility("s", "NONE")
    assert (confluent.get_compatibility(), confluent.get_compatibility("s")) == ("FULL", "NONE")
    confluent.set_config("s", ServerConfig(compatibility=ConfigCompatibilityLevel.FORWARD))
    level = confluent.get_config("s").compatibility_level
    assert level is not None and level.value == "FORWARD"
    confluent.delete_config("s")
    with pytest.raises(SchemaRegistryError, match="SR code 40408"):
        confluent.get_config("s")
    confluent.delete_config()
    assert confluent.get_global_mode() == "READWRITE"
    assert confluent.update_mode("s", "READONLY") == "READONLY"
    with pytest.raises(SchemaRegistryError, match="SR code 42205"):
        confluent.register_schema("s", Schema(V1, "AVRO"))
    assert confluent.delete_mode("s") == "READONLY"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (40401, lambda c: c.get_versions("nothing")),
        (40402, lambda c: c.get_version("s", 9)),
        (40403, lambda c: c.get_schema(9)),
        (40403, lambda c: c.lookup_schema("s", Schema(V2, "AVRO"))),
        (40405, lambda c: c.delete_subject("s", permanent=True)),
        (42201, lambda c: c.register_schema("s", Schema('{"type": "nothing"}', "AVRO"))),
        (42203, lambda c: c.set_compatibility("s", "SIDEWAYS")),
        (409, lambda c: c.register_schema("s", Schema(WRONG, "AVRO"))),
    ],
)
def test_refusals_arrive_with_their_codes(confluent: SchemaRegistryClient, code: int, call: object) -> None:
    confluent.register_schema("s", Schema(V1, "AVRO"))
    with pytest.raises(SchemaRegistryError) as caught:
        call(confluent)  # type: ignore[operator]
    assert caught.value.error_code == code


def test_confluents_serializers_and_ours_read_each_other(
    confluent: SchemaRegistryClient, registry_url: str
) -> None:
    theirs, their_reader = AvroSerializer(confluent, V1), AvroDeserializer(confluent)
    with OurClient(registry_url) as client:
        ours, our_reader = OurSerializer(client, V1), OurDeserializer(client)
        value = theirs({"x": 7}, CONTEXT)
        assert value == ours.serialize("topic", {"x": 7})
        assert our_reader.deserialize(value) == {"x": 7} == their_reader(value, CONTEXT)
        newer = AvroSerializer(confluent, V2)({"x": 1, "y": "b"}, CONTEXT)
        assert OurDeserializer(client, reader_schema=V1).deserialize(newer) == {"x": 1}
        assert AvroDeserializer(confluent, V2)(ours.serialize("topic", {"x": 1}), CONTEXT) == {
            "x": 1,
            "y": "?",
        }
        assert client.versions("topic-value") == [1, 2]
        with pytest.raises(SchemaRegistryError, match="TYPE_MISMATCH"):
            AvroSerializer(confluent, WRONG)({"x": "no"}, CONTEXT)
        by_record = AvroSerializer(
            confluent, V1, conf={"subject.name.strategy": record_subject_name_strategy}
        )
        by_record({"x": 1}, CONTEXT)
        assert client.versions("a.R") == [1]
        strict = AvroSerializer(confluent, V1, conf={"auto.register.schemas": False})
        assert strict({"x": 7}, CONTEXT) == value
        latest = AvroSerializer(
            confluent, V1, conf={"auto.register.schemas": False, "use.latest.version": True}
        )
        assert their_reader(latest({"x": 7, "y": "z"}, CONTEXT), CONTEXT) == {"x": 7, "y": "z"}
