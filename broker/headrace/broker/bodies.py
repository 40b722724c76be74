"""Control responses from plain values: `build` makes kio's dataclasses of the version that the client speaks.

A handler returns all it knows as a tree of dicts and lists, by the newest version's names; fields that an
older version lacks are left out, and missing ones take the protocol's default.
"""

from __future__ import annotations

import datetime
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.protocol import ResponsePayload

from headrace.wire.own_fields import response_schema

Tree = dict[str, Any]
"""A response, or a part of one, by the names of its fields."""


def build(api_key: int, version: int, tree: Tree) -> ResponsePayload:
    """Returns the response of that API and version. In the tree times are in ms, error codes numbers.

    Raises `TypeError` for a missing field that has no default.
    """
    schema: type[ResponsePayload] = response_schema(api_key, version)
    made: ResponsePayload = _maker(schema)(tree)
    return made


@lru_cache(maxsize=1024)
def _maker(entity: type[Any]) -> Callable[[Tree], Any]:
    hints = typing.get_type_hints(entity)
    plan: list[tuple[str, Callable[[Any], Any], Any]] = []
    for field in fields(entity):
        convert = _converter(field.metadata.get("kafka_type"), hints[field.name])
        fallback = _fallback(field, hints[field.name])
        plan.append((field.name, convert, fallback))

    def make(tree: Tree) -> Any:
        values = {}
        for name, convert, fallback in plan:
            if name in tree:
                values[name] = convert(tree[name])
            elif fallback is not MISSING:
                values[name] = fallback
        return entity(**values)

    return make


def _fallback(field: Any, hint: Any) -> Any:
    if field.default is not MISSING:
        return MISSING  # the dataclass knows
    if typing.get_origin(hint) is tuple:
        return ()
    kind = field.metadata.get("kafka_type")
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(0)
    if kind == "error_code":
        return KioErrorCode.none
    if type(None) in typing.get_args(hint):
        return None
    return MISSING


def _converter(kind: str | None, hint: Any) -> Callable[[Any], Any]:
    if kind == "error_code":
        return lambda code: KioErrorCode(int(code))
    if kind in ("timedelta_i32", "timedelta_i64"):
        return lambda ms: datetime.timedelta(milliseconds=ms)
    if kind is not None:
        return _tuple_of(lambda value: value) if _array_item(hint) is not None else lambda value: value
    item = _array_item(hint)
    if item is not None:
        return _tuple_of(_maker(item))
    entity = next(
        part for part in (hint, *typing.get_args(hint)) if isinstance(part, type) and part is not type(None)
    )
    make = _maker(entity)
    return lambda tree: None if tree is None else make(tree)


def _tuple_of(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: None if items is None else tuple(convert(item) for item in items)


def _array_item(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next((part for part in typing.get_args(hint) if typing.get_origin(part) is tuple), hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
