"""Registries of three datacenters: analysis knows the subjects of the others, and reads mirrored events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fix_registry import RegistryProcess, StartRegistry
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.coordination.session import ZooKeeperSession
from headrace.registry import errors
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError
from headrace.registry.schemas import parse
from headrace.registry.serializers import AvroDeserializer, AvroSerializer
from headrace.registry.store import SchemaStore
from headrace.registry.subjects import StoredSchema

WAIT_MAX_S = 60.0
ONE, TWO, THREE = (
    json.dumps({"type": "record", "name": name, "fields": [{"name": "n", "type": "long"}]})
    for name in ("One", "Two", "Three")
)


@pytest.fixture
def start_with_sources(
    zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> Callable[..., RegistryProcess]:
    """Starts the registry of one more datacenter, on a ZooKeeper chroot of its own."""

    def start(*options: str) -> RegistryProcess:
        return start_registry(hosts=room_on(zookeeper_server).hosts, options=options)

    return start


def eventually(found: Callable[[], Any], wanted: Any) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, last
        time.sleep(0.2)


def test_analysis_reads_what_any_datacenter_wrote(start_with_sources: Callable[..., RegistryProcess]) -> None:
    east, west = start_with_sources(), start_with_sources()
    both = f"east={east.url},west={west.url}"
    with (
        SchemaRegistryClient(east.url) as in_east,
        SchemaRegistryClient(west.url) as in_west,
    ):
        first = in_east.register("order-placed-value", ONE)
        in_west.register("order-placed-value", ONE)
        analysis = start_with_sources("--sources", both)
        with SchemaRegistryClient(analysis.url) as here:
            assert json.loads(here.get_by_id(first)) == json.loads(ONE), "before anything was copied"
            value = AvroSerializer(in_west, TWO).serialize("order-paid", {"n": 7})
            # A mirrored value of a schema that is newer than the last copy.
            assert AvroDeserializer(here).deserialize(value) == {"n": 7}
            eventually(here.subjects, ["order-paid-value", "order-placed-value"])
            assert here.latest("order-placed-value").schema_id == first
            assert here.versions("order-placed-value") == [1], "both datacenters have the same one"
            with pytest.raises(RegistryError, match="Schema 12345 not found") as refused:
                here.get_by_id(12345)
            assert refused.value.error_code == errors.SCHEMA_NOT_FOUND
        # What was copied stays readable when its datacenter is gone.
        west.kill()
        with SchemaRegistryClient(analysis.url) as here:
            assert json.loads(here.latest("order-paid-value").schema) == json.loads(TWO)
            with pytest.raises(
                RegistryError, match=rf"12346 not found here; west \({west.url}\) did not answer"
            ):
                here.get_by_id(12346)


@pytest.mark.parametrize("place", ["west", "this registry"])
def test_two_schemas_for_one_id_are_an_error_that_names_both(
    place: str,
    zookeeper_server: ZooKeeperServer,
    start_registry: StartRegistry,
    start_with_sources: Callable[..., RegistryProcess],
) -> None:
    """No two such schemas are known, so a ZooKeeper is made to hold another one under east's id."""
    east = start_with_sources()
    with SchemaRegistryClient(east.url) as in_east:
        schema_id = in_east.register("order-placed-value", ONE)
    room = room_on(zookeeper_server)
    with ZooKeeperSession(room.hosts, timeout_s=4.0, call_timeout_s=20.0, name="test") as session:
        store = SchemaStore(session)
        store.prepare()
        stored = StoredSchema(THREE, parse(THREE).guid)
        store.add("order-paid-value", schema_id, stored, is_same=lambda _: True, decide=lambda _: None)
    if place == "west":
        west = start_registry(hosts=room.hosts)
        analysis = start_with_sources("--sources", f"east={east.url},west={west.url}")
    else:
        analysis = start_registry(hosts=room.hosts, options=("--sources", f"east={east.url}"))

    def answer() -> tuple[int, str]:
        with SchemaRegistryClient(analysis.url) as here:
            try:
                return len(here.subjects()), here.get_by_id(schema_id)
            except RegistryError as error:
                assert "One at east" in error.message and f"Three at {place}" in error.message
                return len(here.subjects()), str(error.error_code)

    # The other datacenter's version is not copied.
    eventually(answer, (1, str(errors.ID_CONFLICT)))


def test_a_deletion_here_stays_and_one_at_the_source_is_not_copied(
    start_with_sources: Callable[..., RegistryProcess],
) -> None:
    east = start_with_sources()
    with SchemaRegistryClient(east.url) as in_east:
        for name, schema in (("one-value", ONE), ("two-value", TWO)):
            in_east.register(name, schema)
        analysis = start_with_sources("--sources", f"east={east.url}")
        with SchemaRegistryClient(analysis.url) as here:
            eventually(here.subjects, ["one-value", "two-value"])
            here.delete_subject("one-value")
            in_east.delete_subject("two-value")
            in_east.register("three-value", THREE)
            eventually(here.subjects, ["three-value", "two-value"])


def test_registries_that_ask_each_other_end(
    zookeeper_server: ZooKeeperServer,
    start_registry: StartRegistry,
    start_with_sources: Callable[..., RegistryProcess],
) -> None:
    room = room_on(zookeeper_server)
    east = start_registry(hosts=room.hosts)
    analysis = start_with_sources("--sources", f"east={east.url}")
    assert east.stop() == 0
    listen = east.url.removeprefix("http://")
    east = start_registry(listen, room.hosts, ("--sources", f"analysis={analysis.url}"))
    for registry in (east, analysis):
        with SchemaRegistryClient(registry.url) as here, pytest.raises(RegistryError, match="5 not found"):
            here.get_by_id(5)
    with SchemaRegistryClient(east.url) as in_east, SchemaRegistryClient(analysis.url) as here:
        schema_id = here.register("one-value", ONE)
        assert json.loads(in_east.get_by_id(schema_id)) == json.loads(ONE)
