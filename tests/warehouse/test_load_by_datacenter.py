"""Two registries with different schemas for one id: a record is read by its source datacenter's registry."""

import io
from typing import Any

import fastavro
import pytest

from fix_registry import StartRegistry
from fix_warehouse import BASE_TIME_MS, World
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.coordination.mirrors import MirrorMap
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse import load
from headrace.warehouse.schemas import SchemasError

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
    with analysis.session() as session:
        assert MirrorMap(session).claim("east", topic.name, 1) == [0]
        assert MirrorMap(session).claim("west", topic.name, 1) == [1]
    values: list[tuple[bytes | None, int]] = []
    for number in range(1, COUNT + 1):  # to the partitions in rotation
        values.append((framed(ids[0], PAID, {"paid": number}), BASE_TIME_MS))
        values.append((framed(ids[0], OWED, {"owed": number}), BASE_TIME_MS))
    topic.send(values)

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
