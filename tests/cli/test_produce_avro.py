"""`headrace produce --avro`: JSON lines become events that the audit counts; wrong lines are named."""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

import pytest

from fix_broker import BrokerCluster
from fix_cli import Headrace, Result, command_runner
from headrace.cli import cluster as cli_cluster
from headrace.cli import consume as cli_consume
from headrace.cli import produce as cli_produce
from headrace.cli.errors import ExitCode
from headrace.client import Admin
from headrace.events.schemas import read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.site.context import ContextDatacenter

VIEW = {"remote_host": "192.0.2.7", "method": "GET", "path": "/", "status": 200}
NOON_MS = 1_431_864_000_000


class World(NamedTuple):
    run: Headrace
    topic: str
    registry_url: str
    bootstrap: str

    def produce(self, *lines: object, options: tuple[object, ...] = ()) -> Result:
        data = b"".join(
            (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
        )
        return self.run("produce", self.topic, "--avro", *options, stdin=data)

    def records(self) -> list[Any]:
        result = self.run("consume", self.topic, "--from", "beginning", "--to-end", "-o", "json")
        return [json.loads(line) for line in result.out.splitlines()]


@pytest.fixture
def world(
    one_broker: BrokerCluster,
    registry_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> World:
    datacenter = ContextDatacenter(
        name="east",
        bootstrap_servers=tuple(one_broker.bootstrap.split(",")),
        broker_ids=tuple(each.broker_id for each in one_broker.brokers),
        registry_url=registry_url,
    )
    for module in (cli_cluster, cli_consume, cli_produce):
        monkeypatch.setattr(module, "datacenter", lambda _: datacenter)

    topic = f"view-{uuid.uuid4().hex[:8]}"
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, 2)
    return World(command_runner(monkeypatch, capsys), topic, registry_url, one_broker.bootstrap)


def register(world: World, schema: str) -> None:
    with SchemaRegistryClient(world.registry_url) as registry:
        registry.register(f"{world.topic}-value", schema)


def test_lines_become_events_with_a_header(world: World) -> None:
    register(world, read_schema("page-view.avsc"))
    result = world.produce(VIEW, {**VIEW, "header": {"time": NOON_MS}, "status": 404})
    assert (result.exit_code, f"published 2 records to {world.topic}" in result.out) == (0, True), result.err
    records = sorted(world.records(), key=lambda record: record["value"]["status"])
    assert [record["value"]["status"] for record in records] == [200, 404]
    assert {record["value"]["header"]["service"] for record in records} == {"headrace-produce"}
    assert {record["value"]["header"]["datacenter"] for record in records} == {"east"}
    assert records[1]["value"]["header"]["time"] == records[1]["timestamp_ms"] == NOON_MS
    assert all("published-ms" in record["headers"] for record in records)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b"[1]", "'[1]' is not a JSON object"),
        ({**VIEW, "status": "200"}, "status is '200' (expected int)"),
        ({"method": "GET"}, "remote_host is missing"),
        (
            {**VIEW, "header": {"time": 1_700_000_000}},
            "1700000000 looks like seconds instead of milliseconds",
        ),
        ({**VIEW, "header": {"time": 1_700_000_000_000_000}}, "looks like microseconds"),
        ({**VIEW, "header": {"time": 86_400_000}}, "before 1990; --allow-before-1990 allows it"),
        ({**VIEW, "header": {"time": 86_400_000}}, "header.time: 86400000"),
        ({**VIEW, "header": {"time": "noon"}}, "field header.time is 'noon' (expected timestamp-millis)"),
        ({**VIEW, "header": 5}, "field header is 5 (expected an object; it may be left out)"),
        (b"[" * 100_000, "its JSON is nested too deeply"),
    ],
)
def test_a_wrong_line_is_named_and_those_before_it_are_published(
    world: World, line: object, problem: str
) -> None:
    register(world, read_schema("page-view.avsc"))
    result = world.produce(VIEW, VIEW, line, VIEW)
    assert result.exit_code == ExitCode.USAGE
    assert result.err.startswith("error: line 3: ") and problem in result.err, result.err
    assert "; 2 lines before it are published" in result.err
    assert len(world.records()) == 2


def test_a_headers_time_may_be_iso_8601(world: World) -> None:
    register(world, read_schema("page-view.avsc"))
    result = world.produce(
        *({**VIEW, "header": {"time": text}} for text in ("2015-05-17T12:00:00Z", "2015-05-17T12:00:00"))
    )
    assert result.exit_code == 0, result.err
    assert [record["timestamp_ms"] for record in world.records()] == [NOON_MS, NOON_MS]


def test_no_way_out_is_offered_for_a_time_in_the_wrong_unit(world: World) -> None:
    register(world, read_schema("page-view.avsc"))
    result = world.produce({**VIEW, "header": {"time": 1_431_864_000}})
    assert "header.time: 1431864000 looks like seconds" in result.err
    assert "--allow-before-1990" not in result.err


def test_empty_lines_are_passed_over_and_counted(world: World) -> None:
    register(world, read_schema("page-view.avsc"))
    result = world.produce(VIEW, b"", b"  ", b"{")
    assert result.exit_code == ExitCode.USAGE
    assert "line 4: not JSON" in result.err and "1 line before" in result.err


def test_old_events_are_published_if_that_is_allowed(world: World) -> None:
    register(world, read_schema("page-view.avsc"))
    old = {**VIEW, "header": {"time": 86_400_000}}
    assert world.produce(old, options=("--allow-before-1990",)).exit_code == 0
    assert [record["timestamp_ms"] for record in world.records()] == [86_400_000]


NESTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}],
                },
            },
        },
    ],
}
ORDER = {
    "at": 1_431_864_000_000_007,
    "price": "12.30",
    "raw": "\x00\x1b\xff",
    "items": [{"day": "2015-05-17"}],
}


def test_what_is_consumed_as_json_can_be_published_again(world: World) -> None:
    """Nested records, decimals, microseconds, bytes and control bytes."""
    register(world, json.dumps(NESTED))
    assert world.produce(ORDER, {**ORDER, "at": "2015-05-17T12:00:00.000007Z", "price": 12.3}).exit_code == 0
    values = [record["value"] for record in world.records()]
    assert values == [ORDER, ORDER]
    assert world.produce(*values, options=("-k", "again")).exit_code == 0
    assert [record["value"] for record in world.records() if record["key"] == "again"] == values
    shown = world.run("consume", world.topic, "--from", "beginning", "--to-end").out
    assert "\x1b" not in shown and "\x00" not in shown
    wrong = world.produce(ORDER, {**ORDER, "items": [{"dya": 1}]})
    assert wrong.exit_code == ExitCode.USAGE
    assert "line 2: field items[0].dya is not in the schema; did you mean day?" in wrong.err


def test_a_schema_without_a_header_is_only_serialized(world: World) -> None:
    register(world, json.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}))
    result = world.produce(b'a={"n": 1}', b'b={"n": 2}', options=("-K", "="))
    assert result.exit_code == 0, result.err
    assert {record["key"]: record["value"] for record in world.records()} == {"a": {"n": 1}, "b": {"n": 2}}
    result = world.produce({"n": "x"})
    assert (
        result.exit_code == ExitCode.USAGE and "line 1: " in result.err and "0 lines before it" in result.err
    )


def test_a_topic_without_a_schema_says_how_to_register_one(world: World) -> None:
    result = world.produce(VIEW)
    assert result.exit_code == ExitCode.NEGATIVE
    assert f"headrace schemas register {world.topic}-value FILE" in result.err
    result = world.run("produce", world.topic, "--avro", "-b", world.bootstrap)
    assert result.exit_code == ExitCode.USAGE and "needs --registry URL" in result.err
