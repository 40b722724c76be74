"""Values of schemas that anybody registered: too deep, or with parts without end. A reader names them.

Each case of `DEEP` ended a consumer with SIGSEGV: fastavro's compiled reader descends without a bound.
"""

from __future__ import annotations

import io
import json
import time
from typing import Any

import fastavro
import pytest

from headrace.registry.framing import prefix
from headrace.registry.serializers import AvroDeserializer, DeserializationError
from headrace.registry.value_reading import FREE_PARTS_MAX, endless, has_empty_items, refers_to_itself

LINK = {"type": "record", "name": "a.Link", "fields": [{"name": "next", "type": ["null", "a.Link"]}]}
TREE = {
    "type": "record",
    "name": "a.Tree",
    "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}],
}
MAPS = {
    "type": "record",
    "name": "Maps",
    "fields": [{"name": "inner", "type": {"type": "map", "values": "Maps"}}],
}
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "link", "type": LINK}, {"name": "x", "type": "int"}],
}
DEEP: dict[str, tuple[dict[str, Any], bytes]] = {
    "link": (LINK, b"\x02"),
    "tree": (TREE, b"\x02"),
    "maps": (MAPS, b"\x02\x02a"),
    "event": (EVENT, b"\x02"),
}
BYTES = 900_000


class Registry:
    """A registry of one schema, whatever the id."""

    def __init__(self, schema: Any) -> None:
        self.text = json.dumps(schema)

    def get_by_id(self, _schema_id: int) -> str:
        return self.text


def deserializer(schema: Any, reader: Any = None) -> AvroDeserializer:
    return AvroDeserializer(Registry(schema), reader_schema=reader)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_value_that_nests_in_each_byte_is_an_error(name: str, is_skipped: bool) -> None:
    schema, step = DEEP[name]
    reader = {"type": "record", "name": schema["name"], "fields": []} if is_skipped else None
    with pytest.raises(DeserializationError, match="RecursionError"):
        deserializer(schema, reader).deserialize(prefix(1) + step * (BYTES // len(step)))


def test_a_number_of_a_megabyte_takes_no_minutes() -> None:
    """Python's reader shifted a number of all bytes so far, a million times: loads stood still."""
    chain = {**LINK, "fields": [{"name": "x", "type": "long"}, *LINK["fields"]]}
    began_s = time.process_time()
    for payload in (b"\xff" * BYTES + b"\1\0", b"\0\2" * 3 + b"\xff" * BYTES):
        with pytest.raises(DeserializationError, match="a number has more than 10 bytes"):
            deserializer(chain).deserialize(prefix(1) + payload)
    assert time.process_time() - began_s < 2
    longest = b"\xff" * 9 + b"\1"
    read = deserializer(chain).deserialize(prefix(1) + longest + b"\0")
    assert read == {"x": -(2**63), "next": None}


def test_honest_values_of_such_schemas_are_read() -> None:
    tree: dict[str, Any] = {"children": []}
    for _ in range(50):
        tree = {"children": [tree, {"children": []}]}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(TREE), tree)
    assert deserializer(TREE).deserialize(prefix(1) + buffer.getvalue()) == tree
    assert deserializer(TREE, TREE).deserialize(prefix(1) + buffer.getvalue()) == tree


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_an_array_of_items_without_bytes_is_not_read(items: Any) -> None:
    field = {"name": "more", "type": {"type": "array", "items": items}}
    schema = {"type": "record", "name": "R", "fields": [field]}
    with pytest.raises(DeserializationError, match="could have no end"):
        deserializer(schema).deserialize(prefix(1) + b"\xff" * 9 + b"\x01")


def test_items_that_are_named_elsewhere_have_the_bytes_of_their_definition() -> None:
    def of(definition: Any) -> Any:
        fields = [
            {"name": "one", "type": definition},
            {"name": "all", "type": {"type": "array", "items": definition["name"]}},
        ]
        return fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})

    item = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    assert not has_empty_items(of(item)) and not refers_to_itself(of(item))
    assert has_empty_items(of({**item, "fields": []}))
    assert not has_empty_items(fastavro.parse_schema(TREE)) and refers_to_itself(fastavro.parse_schema(TREE))


def doubled(innermost: Any, levels: int, between: Any = None) -> Any:
    """A record that holds the next record twice, and so on: written out, 2**levels of the innermost type."""
    schema = innermost
    for level in range(levels):
        name = schema["name"] if isinstance(schema, dict) else schema
        schema = {
            "type": "record",
            "name": f"D{level}",
            "fields": [
                {"name": "one", "type": schema if between is None else between(schema)},
                {"name": "other", "type": name if between is None else between(name)},
            ],
        }
    return schema


EMPTY = {"type": "record", "name": "E", "fields": []}


@pytest.mark.parametrize(
    "schema",
    [
        doubled(EMPTY, 45),
        doubled("null", 45),
        doubled({"type": "fixed", "name": "F", "size": 0}, 45),
        {"type": "array", "items": doubled(EMPTY, 45)},
        {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", doubled(EMPTY, 45)]}]},
        {"type": "map", "values": {**doubled(EMPTY, 45)}},
    ],
    ids=["records", "nulls", "fixed", "items", "a branch", "a map"],
)
def test_a_value_of_no_bytes_with_parts_without_end_is_not_read(schema: Any) -> None:
    """Each took a reader 2**45 steps: years, with the interpreter's lock held."""
    with pytest.raises(DeserializationError, match=r"it has .* without bytes"):
        deserializer(schema).deserialize(prefix(1) + b"\2" * 20)
    assert "without bytes" in endless(fastavro.parse_schema(schema))


def test_values_whose_parts_have_bytes_end_with_them() -> None:
    one_byte = {"type": "record", "name": "B", "fields": [{"name": "b", "type": "boolean"}]}
    with pytest.raises(DeserializationError, match="EOFError"):
        deserializer(doubled(one_byte, 45)).deserialize(prefix(1) + b"\1" * 50)
    with pytest.raises(DeserializationError):
        deserializer(doubled(EMPTY, 45, lambda inner: ["null", inner])).deserialize(prefix(1) + b"\2" * 50)
    few = {
        "type": "record",
        "name": "Few",
        "fields": [{"name": f"n{number}", "type": "null"} for number in range(FREE_PARTS_MAX - 1)],
    }
    assert len(deserializer(few).deserialize(prefix(1)).keys()) == FREE_PARTS_MAX - 1
    for schema in (LINK, TREE, MAPS, EVENT, doubled(one_byte, 45)):
        assert not endless(fastavro.parse_schema(schema))
