"""Aliases that a reader's schema does not need to read a writer's: Java's Avro fails at them. Pure.

It renames the writer's field of an alias also where the writer has a field of the new name, or where another
field has the alias, too, and then refuses the record, which has two fields of one name.
"""

import json
from typing import Any

import fastavro.schema

from headrace.registry.default_values import definitions


def without_idle_aliases(reader: str, writer: str) -> Any:
    """Returns the reader's schema without the aliases of fields that these records have by their own names,
    or for which an earlier field is read.
    """
    written: dict[str, set[str]] = {}
    for name, definition in definitions(fastavro.schema.parse_schema(json.loads(writer))).items():
        fields = {field["name"] for field in definition.get("fields", ())}
        written.setdefault(_short(name), set()).update(fields)
    return _of(json.loads(reader), written)


def _of(schema: Any, written: dict[str, set[str]]) -> Any:
    if isinstance(schema, list):
        return [_of(each, written) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema | {key: _of(schema[key], written) for key in schema.keys() & {"type", "items", "values"}}
    if "fields" in schema:
        names = [schema["name"], *schema.get("aliases", ())]
        present = {field for name in names for field in written.get(_short(name), ())}
        kept["fields"] = _fields(schema["fields"], written, present)
    return kept


def _fields(fields: list[Any], written: dict[str, set[str]], present: set[str]) -> list[Any]:
    read = {field["name"] for field in fields} & present
    found = []
    for field in fields:
        kept = field | {"type": _of(field["type"], written)}
        if kept.pop("aliases", None) and field["name"] not in present:
            source = next((each for each in field["aliases"] if each in present and each not in read), None)
            if source is not None:
                read.add(source)
                kept["aliases"] = [source]
        found.append(kept)
    return found


def _short(name: str) -> str:
    return name.rpartition(".")[2]
