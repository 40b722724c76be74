"""Two registries with different schemas for one id: a record is read by its source datacenter's registry."""

import io
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from fix_registry import StartRegistry
from fix_warehouse import BASE_TIME_MS, TestTopic, World
from fix_zookeeper import ZooKeeperRoom, ZooKeeperServer, room_on
from headrace.coordination.mirrors import MirrorMap
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryUnavailableError
from headrace.warehouse import load
from headrace.warehouse.api import compact_topics, load_topics, replay_topics
from headrace.warehouse.decode import ADDRESS_COLUMNS
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import SchemasError
from headrace.warehouse.tables import read

COUNT = 20


def amount(field: str, doc: str) -> dict[str, Any]:
    fields = [{"name": field, "type": "long", "default": 0}]
    return {"type": "record", "name": "Amount", "doc": doc, "fields": fields}


# One id, found by trying.
PAID, OWED = amount("paid", "5044"), amount("owed", "57704")


def framed(schema_id: int, schema: dict[str, Any], record: dict[str, int]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def two_sources(world: World, topic: TestTopic, analysis: ZooKeeperRoom) -> None:
    with analysis.session() as session:
        assert MirrorMap(session).claim("east", topic.name, 1) == [0]
        assert MirrorMap(session).claim("west", topic.name, 1) == [1]


def send(topic: TestTopic, schema_id: int, numbers: range, time_ms: int = BASE_TIME_MS) -> None:
    """To the partitions in rotation: what was paid in east, what is owed in west."""
    values: list[tuple[bytes | None, int]] = []
    for number in numbers:
        values.append((framed(schema_id, PAID, {"paid": number}), time_ms))
        values.append((framed(schema_id, OWED, {"owed": number}), time_ms))
    topic.send(values)


def test_letters_and_tables_are_read_by_the_source_datacenters_registry_too(
    world: World, zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    topic = world.topic("amounts", partitions=2)
    east, west, analysis = (room_on(zookeeper_server) for _ in range(3))
    urls = {name: start_registry(hosts=room.hosts).url for name, room in (("east", east), ("west", west))}
    with SchemaRegistryClient(world.registry_url) as elsewhere:
        schema_id = elsewhere.register(f"elsewhere-{topic.name}", PAID)
    subject = f"{topic.name}-value"
    for url in urls.values():
        with SchemaRegistryClient(url) as registry:
            registry.register(subject, amount("older", "both have it"))
    two_sources(world, topic, analysis)
    send(topic, schema_id, range(1, COUNT + 1))
    registries = ",".join(f"{name}={url}" for name, url in urls.items())
    warehouse = WarehouseOptions(**{**world.addresses, "registry_url": registries, "audit": False})
    [result] = load_topics(world.spark, warehouse, [topic.name])
    assert (result.rows, result.dead_lettered) == (0, 2 * COUNT)

    for name, schema in (("east", PAID), ("west", OWED)):
        with SchemaRegistryClient(urls[name]) as registry:
            assert registry.register(subject, schema) == schema_id
    with pytest.raises(SchemasError, match="--zookeeper"):
        replay_topics(world.spark, warehouse, [topic.name])
    warehouse = replace(warehouse, zookeeper=analysis.hosts)
    [replayed] = replay_topics(world.spark, warehouse, [topic.name])
    assert (replayed.rows, replayed.still_dead) == (2 * COUNT, 0)

    def paid() -> list[tuple[int, int]]:
        rows = read(world.spark, topic.name, warehouse=warehouse)
        assert rows.columns == ["paid", *ADDRESS_COLUMNS]
        return sorted((row._partition, row.paid) for row in rows.collect())

    assert paid() == [*((0, number) for number in range(1, COUNT + 1)), *[(1, 0)] * COUNT]
    # Only west has news: the table keeps its columns. Compaction keeps them, too.
    topic.send([(None, BASE_TIME_MS), (framed(schema_id, OWED, {"owed": 1}), BASE_TIME_MS)])
    [result] = load_topics(world.spark, warehouse, [topic.name])
    assert (result.rows, result.dead_lettered) == (1, 1)
    wanted = [*((0, number) for number in range(1, COUNT + 1)), *[(1, 0)] * (COUNT + 1)]
    assert paid() == wanted
    [compacted] = compact_topics(world.spark, warehouse, [topic.name])
    assert compacted.files_after < compacted.files_before
    assert paid() == wanted


def test_each_record_is_read_by_its_source_datacenters_registry(
    world: World, zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    topic = world.topic("amounts", partitions=2)
    east, west, analysis = (room_on(zookeeper_server) for _ in range(3))
    urls = {name: start_registry(hosts=room.hosts).url for name, room in (("east", east), ("west", west))}
    ids = []
    for name, schema in (("east", PAID), ("west", OWED)):
        with SchemaRegistryClient(urls[name]) as registry:
            ids.append(registry.register(f"{topic.name}-value", schema))
    assert ids[0] == ids[1]
    two_sources(world, topic, analysis)
    send(topic, ids[0], range(1, COUNT + 1))

    registries = ",".join(f"{name}={url}" for name, url in urls.items())
    addresses = {**world.addresses, "registry_url": registries, "audit": False}
    both = r"is Amount at east \(http://.*\) and Amount at west \(http://.*--zookeeper"
    with pytest.raises(SchemasError, match=both):
        load(world.spark, [topic.name], **addresses)
    [result] = load(world.spark, [topic.name], **addresses, zookeeper=analysis.hosts)
    assert (result.rows, result.dead_lettered) == (2 * COUNT, 0)
    rows = topic.table().select("_partition", "paid").collect()
    assert sorted(row.paid for row in rows if row[0] == 0) == list(range(1, COUNT + 1))
    assert {row.paid for row in rows if row[0] == 1} == {0}, "what west owed is nothing that was paid"


def test_a_silent_registry_is_not_passed_over_where_it_means_another_schema(
    world: World, zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    """With west's registry down nobody contradicted east's: what west owed was loaded as paid."""
    topic = world.topic("amounts", partitions=2)
    east, west, analysis = (room_on(zookeeper_server) for _ in range(3))
    running = {name: start_registry(hosts=room.hosts) for name, room in (("east", east), ("west", west))}
    for name, schema in (("east", PAID), ("west", OWED)):
        with SchemaRegistryClient(running[name].url) as registry:
            schema_id = registry.register(f"{topic.name}-value", schema)
    two_sources(world, topic, analysis)
    registries = ",".join(f"{name}={each.url}" for name, each in running.items())
    addresses = {**world.addresses, "registry_url": registries, "audit": False, "zookeeper": analysis.hosts}
    send(topic, schema_id, range(1, COUNT + 1))
    [result] = load(world.spark, [topic.name], **addresses)
    assert (result.rows, result.dead_lettered) == (2 * COUNT, 0)
    running["west"].stop()
    send(topic, schema_id, range(1, COUNT + 1))
    with pytest.raises(SchemasError, match="Registries mean different schemas by an id of this table"):
        load(world.spark, [topic.name], **addresses)
    start_registry(running["west"].url.removeprefix("http://"), hosts=west.hosts)
    [result] = load(world.spark, [topic.name], **addresses)
    assert (result.rows, result.dead_lettered) == (2 * COUNT, 0)
    rows = topic.table().select("_partition", "paid").collect()
    assert {row.paid for row in rows if row[0] == 1} == {0}, "what west owed is nothing that was paid"


def test_a_newer_version_is_not_read_as_a_strangers_schema_while_its_registry_is_silent(
    world: World, zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    """Another subject had the same schema elsewhere: the load stored its events without the new field."""
    topic = world.topic("amounts", partitions=1)
    east = room_on(zookeeper_server)
    running = start_registry(hosts=east.hosts)
    first, subject = amount("paid", "first"), f"{topic.name}-value"
    newer = {**first, "fields": [*first["fields"], {"name": "tip", "type": "long", "default": 0}]}
    with SchemaRegistryClient(running.url) as registry, SchemaRegistryClient(world.registry_url) as here:
        first_id = registry.register(subject, first)
        assert here.register(subject, first) == first_id
        schema_id = registry.register(subject, newer)
        assert here.register(f"elsewhere-{topic.name}", newer) == schema_id
    topic.send([(framed(schema_id, newer, {"paid": 5, "tip": 1}), BASE_TIME_MS)])
    urls = f"{world.registry_url},{running.url}"
    running.stop()
    with pytest.raises(RegistryUnavailableError, match=running.url):
        load(world.spark, [topic.name], **{**world.addresses, "registry_url": urls, "audit": False})
    running = start_registry(running.url.removeprefix("http://"), hosts=east.hosts)
    [result] = load(world.spark, [topic.name], **{**world.addresses, "registry_url": urls, "audit": False})
    assert (result.rows, result.dead_lettered) == (1, 0)
    warehouse = WarehouseOptions(**{**world.addresses, "registry_url": urls})
    [row] = read(world.spark, topic.name, warehouse=warehouse).collect()
    assert (row.paid, row.tip) == (5, 1)
    # Nor does the table lose the column, where events of the older version alone have come.
    running.stop()
    topic.send([(framed(first_id, first, {"paid": 6}), BASE_TIME_MS)])
    with pytest.raises(RegistryUnavailableError, match=running.url):
        load(world.spark, [topic.name], **{**world.addresses, "registry_url": urls, "audit": False})
