"""Loads over values of schemas that strangers registered: rows or dead letters, never an end of the JVM.

`from_avro` descends by recursion, writes schemas out, and takes the memory that a length announces: each case
ended the process of a load that decodes with it, or kept it busy for ever, at each repetition.
"""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from fix_warehouse import BASE_TIME_MS, HEADER, NUMBER, WORD, TestTopic, World, click, event_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse.api import replay_topics
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import SchemasError

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

LIST = {"name": "list", "type": {"type": "array", "items": "int"}, "default": []}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "inner", "type": ["null", "Tree"], "default": None}],
}
HUGE = b"\xec\xff\xff\xff\x0f"  # the varint of 2**31 - 10: as many as a Java array can have


def header_bytes() -> bytes:
    out = io.BytesIO()
    header = click(0, BASE_TIME_MS)["header"]
    fastavro.schemaless_writer(out, fastavro.parse_schema(HEADER), header)
    return out.getvalue()


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def doubled(levels: int) -> dict[str, Any]:
    """Written out, 2**levels records."""
    schema: dict[str, Any] = {"type": "record", "name": "D", "fields": []}
    for level in range(levels):
        fields = [{"name": "one", "type": schema}, {"name": "two", "type": schema["name"]}]
        schema = {"type": "record", "name": f"D{level}", "fields": fields}
    return schema


def with_field(kind: Any) -> dict[str, Any]:
    """A schema that the table's can read: it has one more field, which is left out."""
    return event_schema(NUMBER, WORD, LIST, {"name": "more", "type": kind})


FOREIGN: dict[str, Any] = {
    "tree": with_field(TREE),
    "doubled": with_field({"type": "array", "items": ["null", doubled(45)]}),
    "nothing": with_field({"type": "array", "items": "null"}),
    "ours": with_field({"type": "record", "name": "HeadraceEnvelope", "fields": [NUMBER]}),
    "wide": {
        "type": "array",
        "items": [{"type": "record", "name": f"W{n}", "fields": [NUMBER]} for n in range(1_500)],
    },
    "other": {"type": "record", "name": "Other", "fields": [NUMBER]},
}


def foreign_ids(world: World, topic: TestTopic) -> dict[str, int]:
    """Registers the schemas of strangers under subjects of their own."""
    with SchemaRegistryClient(world.registry_url) as registry:
        return {name: registry.register(f"{topic.name}-{name}", schema) for name, schema in FOREIGN.items()}


def test_values_of_strangers_schemas_end_no_load(world: World) -> None:
    topic = world.topic("strangers", partitions=1)
    own = event_schema(NUMBER, WORD, LIST)
    topic.publish([click(number, BASE_TIME_MS, list=[number]) for number in range(5)], own)
    own_id = topic.ids[next(iter(topic.ids))]
    ids = foreign_ids(world, topic)
    start = header_bytes()
    good = start + b"\x0e" + b"\x02w" + b"\0"  # number 7, word "w", no list
    hostile = {
        "too deep": framed(ids["tree"], good + b"\x02" * 200_000 + b"\0"),
        "doubled": framed(ids["doubled"], good + b"\x02\x02\0"),
        "nothing": framed(ids["nothing"], good + b"\x80" * 9 + b"\x01"),
        "wide": framed(ids["wide"], b"\0"),
        "other": framed(ids["other"], b"\0"),
        "a list of 2**31": framed(own_id, start + b"\x0e" + b"\x02w" + HUGE),
        "a word of 2**31": framed(own_id, start + b"\x0e" + HUGE + b"w"),
    }
    honest = [
        framed(ids["tree"], good + b"\x02" * 20 + b"\0"),
        framed(ids["ours"], good + b"\0"),
    ]
    topic.send([(value, BASE_TIME_MS) for value in (*hostile.values(), *honest)])

    result = topic.load()
    assert (result.rows, result.dead_lettered) == (7, len(hostile))
    assert sorted(row.number for row in topic.table().collect()) == [0, 1, 2, 3, 4, 7, 7]
    [letters] = [path for path, _ in world.hdfs.walk(topic.paths.dead)]
    dead = world.spark.read.parquet(f"{world.process.hdfs_url}{letters}").collect()
    by_value = {bytes(row.value): row.reason for row in dead}
    reasons = {name: by_value.get(value, "") for name, value in hostile.items()}
    assert "RecursionError" in reasons["too deep"]
    assert "more than 10000 types" in reasons["doubled"] or "without bytes" in reasons["doubled"]
    assert "could have no end" in reasons["nothing"]
    assert "not of this subject" in reasons["wide"] and "not of this subject" in reasons["other"]
    assert reasons["a list of 2**31"] and reasons["a word of 2**31"]

    # The next load goes on, and letters are read again.
    topic.publish([click(8, BASE_TIME_MS, list=[])], own)
    assert topic.load().rows == 1
    warehouse = WarehouseOptions(**{**world.addresses, "audit": False})
    [replayed] = replay_topics(world.spark, warehouse, [topic.name])
    assert (replayed.rows, replayed.still_dead) == (0, len(dead))


def test_a_schema_that_refers_to_itself_makes_no_table(world: World) -> None:
    topic = world.topic("trees", partitions=1)
    schema = event_schema(NUMBER, {"name": "tree", "type": TREE})
    event = {key: value for key, value in click(1, BASE_TIME_MS).items() if key != "word"}
    topic.publish([event | {"tree": {"inner": None}}], schema)
    with pytest.raises(SchemasError, match=r"version 1 makes no table: .* refers to itself"):
        topic.load()
    # Its owner leaves that field out: what was written before is read all the same.
    topic.publish([event], event_schema(NUMBER))
    assert topic.load().rows == 2
