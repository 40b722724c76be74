"""A topic's contract: what keeps to it, what breaks it, and the file that `headrace topics new` writes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.events.contract import Contract, ContractError
from headrace.fleet.topics.contract_test import contract_test, contract_test_name, example_event, literal
from headrace.fleet.topics.making import write_contract_test
from headrace.fleet.topics.wanted import EventSchema, NewTopic, NewTopicError
from headrace.registry.client import SchemaRegistryClient

HEADER = json.loads((Path(__file__).parents[2] / "schemas" / "page-view.avsc").read_text())["fields"][0]
NOWHERE = "http://127.0.0.1:1"


def write_schema(folder: Path, *fields: dict[str, Any], header: Any = HEADER) -> Path:
    path = folder / "order-placed.avsc"
    path.write_text(json.dumps({"type": "record", "name": "OrderPlaced", "fields": [header, *fields]}))
    return path


KINDS: dict[str, Any] = {
    "a_text": "string",
    "a_flag": "boolean",
    "an_int": "int",
    "a_long": "long",
    "a_float": "float",
    "a_double": "double",
    "bytes_": "bytes",
    "perhaps": ["null", "long"],
    "nothing": "null",
    "a_moment": {"type": "long", "logicalType": "timestamp-millis"},
    "a_fine_moment": {"type": "long", "logicalType": "timestamp-micros"},
    "a_local_moment": {"type": "long", "logicalType": "local-timestamp-millis"},
    "a_day": {"type": "int", "logicalType": "date"},
    "a_time": {"type": "int", "logicalType": "time-millis"},
    "a_uuid": {"type": "string", "logicalType": "uuid"},
    "a_decimal": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "an_enum": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]},
    "again": "Colour",
    "a_fixed": {"type": "fixed", "name": "Digest", "size": 4},
    "a_list": {"type": "array", "items": {"type": "array", "items": "long"}},
    "a_map": {"type": "map", "values": "string"},
    "a_record": {"type": "record", "name": "Line", "fields": [{"name": "item", "type": "string"}]},
    "a_choice": ["string", "long"],
}


def test_the_example_of_any_schema_is_an_event_of_it(tmp_path: Path) -> None:
    file = write_schema(tmp_path, *({"name": name, "type": kind} for name, kind in KINDS.items()))
    event = example_event(file.read_text())
    assert event.keys() == KINDS.keys()
    contract = Contract("order-placed", file, NOWHERE)
    contract.check_header()
    contract.check_event(event)
    assert ast.literal_eval(literal(event, 4)) == event
    assert max(map(len, literal(event, 4).splitlines())) <= 110


def test_an_event_that_does_not_fit_is_named(tmp_path: Path) -> None:
    contract = Contract("t", write_schema(tmp_path, {"name": "count", "type": "int"}), NOWHERE)
    contract.check_event({"count": 1})
    for event, problem in (
        ({"count": "one"}, "count is 'one'"),
        ({"count": 2**40}, "count is 1099511627776"),
        ({}, "count"),
        ({"header": {}, "count": 1}, "leave out the header"),
    ):
        with pytest.raises(ContractError, match=problem):
            contract.check_event(event)


def test_a_schema_without_the_whole_header_is_named(tmp_path: Path) -> None:
    header = {**HEADER, "type": {**HEADER["type"], "fields": HEADER["type"]["fields"][1:]}}
    with pytest.raises(ContractError, match="its header lacks the field time"):
        Contract("t", write_schema(tmp_path, header=header), NOWHERE).check_header()
    with pytest.raises(ContractError, match="cannot be read: No such file"):
        Contract("t", tmp_path / "none.avsc", NOWHERE).check_header()
    (tmp_path / "bad.avsc").write_text("{")
    with pytest.raises(ContractError, match="is not an Avro schema"):
        Contract("t", tmp_path / "bad.avsc", NOWHERE).check_event({})


def new_topic(schema: Path, **options: Any) -> NewTopic:
    return NewTopic("order-placed", EventSchema(schema, schema.read_text()), **options)


def test_the_file_is_named_after_the_topic_and_kept_once_it_is_there(tmp_path: Path) -> None:
    assert contract_test_name("Order-placed.v2") == "test_order_placed_v2_contract.py"
    schemas, tests = tmp_path / "schemas", tmp_path / "tests"
    schemas.mkdir()
    wanted = new_topic(write_schema(schemas, {"name": "n", "type": "long"}))
    path = tests / "test_it.py"
    assert write_contract_test(wanted, path, NOWHERE)
    assert 'parent / "../schemas/order-placed.avsc"' in path.read_text()
    path.write_text("mine")
    assert not write_contract_test(wanted, path, NOWHERE)
    assert path.read_text() == "mine"
    with pytest.raises(NewTopicError, match="cannot be written: "):
        write_contract_test(wanted, path / "below", NOWHERE)


def test_the_written_test_follows_the_registry(registry_url: str, tmp_path: Path) -> None:
    """It fails for a topic that is not there, passes for its schema, fails for one that may not follow."""
    schema = write_schema(tmp_path, {"name": "n", "type": "long"})
    file = tmp_path / contract_test_name("order-placed")
    file.write_text(contract_test(new_topic(schema), file, NOWHERE))

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", str(file)],
            cwd=tmp_path,
            env={**os.environ, "REGISTRY_URL": registry_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout

    assert "has no subject order-placed-value: has the topic been made there?" in run()
    with SchemaRegistryClient(registry_url) as client:
        client.register("order-placed-value", schema.read_text())
    assert "3 passed" in run()
    write_schema(tmp_path, {"name": "n", "type": "long"}, {"name": "more", "type": "long"})
    output = run()
    assert "may not follow version 1 of order-placed-value" in output
    assert "more" in output
