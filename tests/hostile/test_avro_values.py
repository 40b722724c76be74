"""Values of schemas that anybody registered: too deep, or with arrays without end. A reader names them.

Each case of `DEEP` ended a consumer with SIGSEGV: fastavro's compiled reader descends without a bound.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from headrace.registry.framing import prefix
from headrace.registry.serializers import AvroDeserializer, DeserializationError
from headrace.registry.value_reading import has_empty_items, refers_to_itself

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
