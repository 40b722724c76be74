"""Reading one Avro value by its writer's schema, whatever the schema is: anybody may register one.

fastavro's reader is compiled, descends without a bound and believes an array's count. So a value of a schema
that refers to itself is read in Python, where too deep a value is an error; and schemas are refused by which
a value of a few bytes could have items without end.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro
import fastavro._read_py
import fastavro.schema

_WITH_BYTES: Final = frozenset(
    ("boolean", "int", "long", "float", "double", "bytes", "string", "array", "map", "enum")
)


class EndlessSchemaError(ValueError):
    """A value of a few bytes could have items without end by this schema."""


class ValueReader:
    """Reads values of one writer's schema (JSON's text or objects), into the parsed schema `reader` if given.

    Raises `EndlessSchemaError`, and whatever the libraries raise for what is not a schema.
    """

    def __init__(self, writer: Any, reader: Any = None) -> None:
        self.schema = fastavro.schema.parse_schema(json.loads(writer) if isinstance(writer, str) else writer)
        if has_empty_items(self.schema):
            raise EndlessSchemaError("it has an array of items without bytes, which could have no end")
        self._reader = reader
        self._read: Callable[..., Any] = fastavro.schemaless_reader
        if refers_to_itself(self.schema):
            self._read = fastavro._read_py.schemaless_reader

    def read(self, payload: bytes, *, unicode_errors: str = "strict") -> tuple[Any, int]:
        """Returns the value, and how many bytes follow it. Raises anything for bytes that do not fit.

        `unicode_errors`: what becomes of strings that are not UTF-8, as of `bytes.decode`.
        """
        buffer = io.BytesIO(payload)
        value = self._read(buffer, self.schema, self._reader, handle_unicode_errors=unicode_errors)
        return value, len(payload) - buffer.tell()


def refers_to_itself(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Whether a value of a parsed schema can hold another one of the same type."""
    if isinstance(schema, list):
        return any(refers_to_itself(branch, within) for branch in schema)
    if not isinstance(schema, dict):
        return schema in within
    if schema.get("type") in ("record", "error"):
        within |= {schema["name"]}
        return any(refers_to_itself(field["type"], within) for field in schema["fields"])
    inner = (schema.get("type"), schema.get("items"), schema.get("values"))
    return any(refers_to_itself(each, within) for each in inner if each is not None)


def has_empty_items(schema: Any) -> bool:
    """Whether some array of a parsed schema holds items of no bytes: a few bytes can claim 2**63 of them."""
    named: dict[str, Any] = {}
    arrays: list[Any] = []
    _collect(schema, named, arrays)
    return not all(_has_bytes(array["items"], named) for array in arrays)


def _collect(schema: Any, named: dict[str, Any], arrays: list[Any]) -> None:
    """Adds the definitions in a schema, by full name, and its arrays."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, arrays)
    elif isinstance(schema, dict):
        if schema.get("type") == "array":
            arrays.append(schema)
        if "name" in schema:
            named[schema["name"]] = schema
        inner = [schema.get("items"), schema.get("values"), schema.get("type")]
        for each in inner + [field["type"] for field in schema.get("fields", ())]:
            _collect(each, named, arrays)


def _has_bytes(schema: Any, named: dict[str, Any], within: frozenset[str] = frozenset()) -> bool:
    """Whether each value surely takes a byte."""
    if isinstance(schema, list):
        return True  # the branch's number
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if kind in ("record", "error"):
        if schema["name"] in within:
            return False  # decided by the fields around it
        within |= {schema["name"]}
        return any(_has_bytes(field["type"], named, within) for field in schema["fields"])
    if kind == "fixed":
        return bool(schema["size"] > 0)
    if isinstance(kind, dict | list):
        return _has_bytes(kind, named, within)
    return kind in _WITH_BYTES
