"""What a reader's schema must say for Java's Avro to read a writer's as all other decoders do. Pure.

Java renames the writer's field of an alias also where the writer has a field of the new name, or where
another field has the alias, too, and then refuses the record, which has two fields of one name. And it takes
the unit of a time from the reader's schema: milliseconds would become microseconds.
"""

import json
from typing import Any, Final

import fastavro.schema

from headrace.registry.default_values import definitions
from headrace.warehouse.types import LOGICAL

_LOCAL: Final = "local-"
Written = dict[str, dict[str, Any]]
"""By the short name of a record, the types of its fields."""


def reader_for(reader: str, writer: str) -> Any:
    """Returns the reader's schema without the aliases of fields that the writer has by their own names, or
    for which an earlier field is read; its times count in the writer's units.
    """
    written: Written = {}
    for name, definition in definitions(fastavro.schema.parse_schema(json.loads(writer))).items():
        fields = {field["name"]: field["type"] for field in definition.get("fields", ())}
        written.setdefault(_short(name), {}).update(fields)
    return _of(json.loads(reader), written)


def _of(schema: Any, written: Written) -> Any:
    if isinstance(schema, list):
        return [_of(each, written) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema | {key: _of(schema[key], written) for key in schema.keys() & {"type", "items", "values"}}
    if "fields" in schema:
        present: dict[str, Any] = {}
        for name in (*schema.get("aliases", ()), schema["name"]):
            present |= written.get(_short(name), {})
        kept["fields"] = _fields(schema["fields"], written, present)
    return kept


def _fields(fields: list[Any], written: Written, present: dict[str, Any]) -> list[Any]:
    read = {field["name"] for field in fields} & present.keys()
    found = []
    for field in fields:
        kept = field | {"type": _of(field["type"], written)}
        aliases, source = kept.pop("aliases", ()), field["name"]
        if source not in present:
            source = next((each for each in aliases if each in present and each not in read), "")
            if source:
                read.add(source)
                kept["aliases"] = [source]
        if source:
            kept["type"] = _with_units(kept["type"], present[source])
        found.append(kept)
    return found


def _with_units(reader: Any, writer: Any) -> Any:
    """Returns the reader's type, whose times count in the units of the writer's."""
    if isinstance(reader, list):
        return [_with_units(each, writer) for each in reader]
    if isinstance(writer, list):
        alike = next((each for each in writer if _kind(each) == _kind(reader)), None)
        return reader if alike is None else _with_units(reader, alike)
    if not isinstance(reader, dict) or not isinstance(writer, dict) or _kind(reader) != _kind(writer):
        return reader
    for inner in {"items", "values"} & reader.keys():
        reader = reader | {inner: _with_units(reader[inner], writer[inner])}
    mine, others = (_time(each) for each in (reader, writer))
    if not mine or not others:
        return reader
    local = _LOCAL if mine.startswith(_LOCAL) else ""
    return reader | {"logicalType": local + others.removeprefix(_LOCAL)}


def _time(schema: dict[str, Any]) -> str:
    logical: Any = schema.get("logicalType")
    return str(logical) if _kind(schema) == "long" and ("long", logical) in LOGICAL else ""


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
