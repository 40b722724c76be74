"""Reading one Avro value by its writer's schema, whatever the schema is: anybody may register one.

fastavro's reader is compiled, descends without a bound and believes an array's count. So a value of a schema
that refers to itself is read in Python, where too deep a value is an error, and so is a number of more bytes
than any has; and schemas are refused by which a value of a few bytes could have items without end.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import fastavro
import fastavro._read_py
import fastavro.schema
from fastavro.io.binary_decoder import BinaryDecoder

from headrace.registry.decimals import without_invalid_decimals
from headrace.registry.default_values import with_default_values
from headrace.registry.resolving import resolved

FREE_PARTS_MAX: Final = 1_000
"""Of a value, between two of its bytes: a record of records of records … can hold 2**40 nulls in no bytes."""
NUMBER_MAX_BYTES: Final = 10
"""Of an Avro `long`, of 64 bits."""
_WITH_BYTES: Final = frozenset(("boolean", "int", "long", "float", "double", "bytes", "string", "enum"))


class EndlessSchemaError(ValueError):
    """A value of a few bytes could have items without end by this schema."""


class ValueReader:
    """Reads values of one writer's schema (JSON's text or objects), into the parsed schema `reader` if given.

    Raises `EndlessSchemaError`, and whatever the libraries raise for what is not a schema.
    """

    def __init__(self, writer: Any, reader: Any = None) -> None:
        tree = json.loads(writer) if isinstance(writer, str) else writer
        # Nothing is read by a writer's defaults, and other registries took any.
        plain = without_invalid_decimals(tree)
        self.schema = fastavro.schema.parse_schema(plain, _ignore_default_error=True)
        if problem := endless(self.schema):
            raise EndlessSchemaError(f"it has {problem}")
        self._pair = self.schema, None if reader is None else with_default_values(reader)
        if reader is not None and reader != self.schema:
            with contextlib.suppress(RecursionError):  # of a schema that nobody means: fastavro may read it
                self._pair = resolved(*self._pair)
        self._read: Callable[..., Any] = fastavro.schemaless_reader
        if refers_to_itself(self.schema):
            self._read = _read_in_python

    def read(
        self, payload: bytes, *, unicode_errors: str = "strict", with_names: bool = False
    ) -> tuple[Any, int]:
        """Returns the value, and how many bytes follow it. Raises anything for bytes that do not fit.

        `unicode_errors`: what becomes of strings that are not UTF-8, as of `bytes.decode`. `with_names`: a
        record of a union is a pair, with the full name of its branch.
        """
        buffer = io.BytesIO(payload)
        value = self._read(
            buffer, *self._pair, handle_unicode_errors=unicode_errors, return_record_name=with_names
        )
        return value, len(payload) - buffer.tell()


class _Decoder(BinaryDecoder):  # type: ignore[misc]
    """The library's, whose numbers have no bound: for one of a megabyte it shifts as long a number a million
    times, which takes minutes.
    """

    def read_long(self) -> int:
        number: int = 0
        for shift in range(0, 7 * NUMBER_MAX_BYTES, 7):
            if not (read := self.fo.read(1)):
                raise EOFError
            number |= (read[0] & 0x7F) << shift
            if read[0] < 0x80:
                break
        else:
            raise ValueError(f"a number has more than {NUMBER_MAX_BYTES} bytes")
        return (number >> 1) ^ -(number & 1)

    read_int = read_long


def _read_in_python(buffer: io.BytesIO, writer: Any, reader: Any, **options: Any) -> Any:
    """As the library's `_read_py.schemaless_reader`, with our decoder."""
    named: dict[str, dict[str, Any]] = {"writer": {}, "reader": {}}
    parsed = fastavro.schema.parse_schema(writer, named["writer"], _ignore_default_error=True)
    wanted = None
    if reader is not None and reader != writer:
        wanted = fastavro.schema.parse_schema(reader, named["reader"])
    return fastavro._read_py.read_data(_Decoder(buffer), parsed, named, wanted, options)


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
    costs = _Costs(schema)
    return not all(costs.of(array["items"]).has_bytes for array in costs.arrays)


def endless(schema: Any) -> str:
    """Returns by what a value of a few bytes could have parts without end; "" if a parsed schema has none."""
    if has_empty_items(schema):
        return "an array of items without bytes, which could have no end"
    if _Costs(schema).of(schema).free_parts > FREE_PARTS_MAX:
        return f"more than {FREE_PARTS_MAX} parts in a row without bytes, such as empty records"
    return ""


class _Cost(NamedTuple):
    """Of a value's parts. `has_bytes`: each value surely takes a byte. `free_parts`: the most parts without
    any that lie between two bytes, saturating above `FREE_PARTS_MAX`.
    """

    has_bytes: bool
    free_parts: int


class _Costs:
    """The costs of a parsed schema's types. Each is judged once: written out, they may be 2**40."""

    def __init__(self, schema: Any) -> None:
        self.arrays: list[Any] = []
        self._named: dict[str, Any] = {}
        self._known: dict[str, _Cost] = {}
        self._collect(schema)

    def _collect(self, schema: Any) -> None:
        """Notes the definitions in a schema, by full name, and its arrays."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, dict):
            if schema.get("type") == "array":
                self.arrays.append(schema)
            if "name" in schema:
                self._named[schema["name"]] = schema
            inner = [schema.get("items"), schema.get("values"), schema.get("type")]
            for each in inner + [field["type"] for field in schema.get("fields", ())]:
                self._collect(each)

    def of(self, schema: Any, within: frozenset[str] = frozenset()) -> _Cost:
        """`within`: the records around, whose own fields decide about a value that refers to them."""
        if isinstance(schema, list):
            # The branch's number is a byte.
            return _Cost(True, max((self.of(branch, within).free_parts for branch in schema), default=0))
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if kind in ("record", "error"):
            return self._of_record(schema, within)
        if kind in ("array", "map"):
            return _Cost(True, self.of(schema["items" if kind == "array" else "values"], within).free_parts)
        if isinstance(kind, dict | list):
            return self.of(kind, within)
        has_bytes = schema["size"] > 0 if kind == "fixed" else kind in _WITH_BYTES
        return _Cost(has_bytes, 0 if has_bytes else 1)

    def _of_record(self, schema: Any, within: frozenset[str]) -> _Cost:
        name = schema["name"]
        if name in within:
            return _Cost(False, 0)
        if name not in self._known:
            fields = [self.of(field["type"], within | {name}) for field in schema["fields"]]
            has_bytes = any(field.has_bytes for field in fields)
            free_parts = sum(field.free_parts for field in fields) + (not has_bytes)
            self._known[name] = _Cost(has_bytes, min(free_parts, FREE_PARTS_MAX + 1))
        return self._known[name]
