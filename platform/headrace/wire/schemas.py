"""Reads messages by kio's schemas: compiles a kio dataclass into a reader. kio itself writes messages.

kio's own reader is not safe for a server: it allocates as many array items as a length claims, so a frame of
20 bytes can abort the process; and it refuses unknown tagged fields, which KIP-482 says to skip. Here, an
array may not claim more items than there are bytes left, nor a request more than its `ItemBound`.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType
from typing import Any, Final, get_args

from kio.schema.errors import ErrorCode as KioErrorCode

from headrace.wire.errors import MalformedMessageError
from headrace.wire.primitives import (
    NO_UUID,
    ItemBound,
    read_bytes,
    read_nullable_count,
    read_string,
    read_tags,
    read_uuid,
)

Reader = Callable[[memoryview, int, ItemBound], tuple[Any, int]]

BROKEN_MESSAGE: Final = (IndexError, ValueError, OverflowError, struct.error)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def reader(schema: Any) -> Reader:
    """Returns the reader of kio's dataclass `schema`: `(view, at, items)` to `(instance, position after it)`;
    arrays are counted against `items`.

    The reader raises `MalformedMessageError` or one of `BROKEN_MESSAGE` on invalid bytes.
    """
    try:
        return _READERS[schema]
    except KeyError:
        return _READERS.setdefault(schema, _compile(schema))


_READERS: Final[dict[Any, Reader]] = {}  # bounded by the number of kio's schemas


def _compile(schema: Any) -> Reader:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in fields(schema):
        read = _field_reader(field, schema.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = (field.name, read)
            if field.default is not MISSING:
                defaults[field.name] = field.default
        else:
            plain.append((field.name, read))

    def read_entity(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        values = {}
        for name, read in plain:
            values[name], at = read(view, at, items)
        return schema(**values), at

    def read_flexible_entity(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        values = defaults.copy()
        for name, read in plain:
            values[name], at = read(view, at, items)
        if view[at] == 0:
            return schema(**values), at + 1
        found, at = read_tags(view, at)
        for tag, content in found.items():
            if tag in tagged:
                name, read = tagged[tag]
                values[name], _ = read(content, 0, items)
        return schema(**values), at

    if not schema.__flexible__:
        return read_entity
    if len(defaults) < len(tagged):
        return _refusing_missing_tags(read_flexible_entity, schema)
    return read_flexible_entity


def _refusing_missing_tags(read: Reader, schema: type[Any]) -> Reader:
    """Wraps the reader of a schema whose tagged fields have no default: without them it is malformed."""

    def read_entity(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        try:
            return read(view, at, items)
        except TypeError as error:
            raise MalformedMessageError(f"{schema.__name__}: {error}") from None

    return read_entity


def _field_reader(field: Field[Any], flexible: bool) -> Reader:
    kind, nullable = _without_none(field.type)
    if getattr(kind, "__origin__", None) is tuple:
        item, item_nullable = _without_none(get_args(kind)[0])
        return _array_reader(_value_reader(field, item, item_nullable, flexible), nullable, flexible)
    if is_dataclass(kind) and nullable:
        return _nullable_entity_reader(reader(kind))
    return _value_reader(field, kind, nullable, flexible)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Returns `(X, True)` for `X | None`, `(annotation, False)` for any other."""
    args = get_args(annotation)
    if NoneType not in args:
        return annotation, False
    return next(arg for arg in args if arg is not NoneType), True


def _array_reader(read_item: Reader, nullable: bool, flexible: bool) -> Reader:
    def read_array(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        number, at = read_nullable_count(view, at, flexible)
        if number < 0:
            return (None if nullable else ()), at
        items.take(number, len(view) - at)
        found = []
        for _ in range(number):
            item, at = read_item(view, at, items)
            found.append(item)
        return tuple(found), at

    return read_array


def _nullable_entity_reader(read: Reader) -> Reader:
    """Reads a structure that may be null: a marker byte precedes it (KIP-893)."""

    def read_nullable(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        return (None, at + 1) if view[at] == 0xFF else read(view, at + 1, items)

    return read_nullable


def _value_reader(field: Field[Any], kind: Any, nullable: bool, flexible: bool) -> Reader:
    if is_dataclass(kind):
        return reader(kind)
    name = field.metadata["kafka_type"]
    if name in ("string", "bytes", "records"):
        return _text_reader(name, field.name, nullable, flexible)
    if name == "uuid":
        return _read_uuid
    shape, convert = _FIXED[name]
    size_bytes = shape.size
    if convert is None:

        def read_fixed(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
            return shape.unpack_from(view, at)[0], at + size_bytes

        return read_fixed

    def read_converted(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        return convert(shape.unpack_from(view, at)[0]), at + size_bytes

    return read_converted


def _text_reader(kind: str, name: str, nullable: bool, flexible: bool) -> Reader:
    def read_text(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
        value: Any
        if kind == "string":
            value, at = read_string(view, at, flexible)
        else:
            found, at = read_bytes(view, at, flexible)
            value = None if found is None else bytes(found)
        if value is None and not nullable:
            raise MalformedMessageError(f"{name} is null")
        return value, at

    return read_text


def _read_uuid(view: memoryview, at: int, items: ItemBound) -> tuple[Any, int]:
    """Reads a UUID; the zero UUID becomes None."""
    if at + 16 > len(view):
        raise MalformedMessageError(f"uuid in {len(view) - at} bytes")
    value, at = read_uuid(view, at)
    return (None if value == NO_UUID else value), at


def _error_code(number: int) -> KioErrorCode:
    try:
        return KioErrorCode(number)
    except ValueError:
        return KioErrorCode.unknown_server_error


def _milliseconds(number: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=number)


def _time(number: int) -> datetime.datetime | None:
    return None if number < 0 else _EPOCH + datetime.timedelta(milliseconds=number)


_FIXED: Final[dict[str, tuple[struct.Struct, Callable[[Any], Any] | None]]] = {
    "bool": (struct.Struct(">?"), None),
    "int8": (struct.Struct(">b"), None),
    "int16": (struct.Struct(">h"), None),
    "uint16": (struct.Struct(">H"), None),
    "int32": (struct.Struct(">i"), None),
    "int64": (struct.Struct(">q"), None),
    "float64": (struct.Struct(">d"), None),
    "error_code": (struct.Struct(">h"), _error_code),
    "timedelta_i32": (struct.Struct(">i"), _milliseconds),
    "timedelta_i64": (struct.Struct(">q"), _milliseconds),
    "datetime_i64": (struct.Struct(">q"), _time),
}
