"""Which part of a reader's schema reads which part of a writer's, by Avro's rules. Pure.

fastavro takes the first branch of a reader's union to which it can convert a value, also where a later one is
the value's own type: a long becomes a double, bytes become text, a record one of the same name in another
namespace. And what a number means it takes from the writer's schema alone: old numbers stay numbers where the
reader's schema says that they are times. So both schemas are written anew for it: each union of the reader
has just the branches that are wanted, and the first one that fits is the right one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import fastavro.schema
from fastavro._read_py import LOGICAL_READERS as LOGICAL_READERS_IN_PYTHON
from fastavro.read import LOGICAL_READERS

from headrace.registry.default_values import NAMED, definitions

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "double", "float", "string", "bytes")
"""In an order in which no earlier one reads a later one with a loss, but for the last two."""
_PROMOTIONS: Final = {
    "int": ("long", "double", "float"),
    "long": ("double", "float"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What else reads a primitive type; first what loses the least."""
PARTS_MAX: Final = 200_000
"""Pairs of types that are looked at: a writer's schema of 1 MB may ask for millions. Some 0.5 s."""
_KINDS: Final = (*_PRIMITIVES, *NAMED, "array", "map", "union", "error_union", "request")
_MEANING: Final = ("logicalType", "precision", "scale")
_UNREAD: Final = "unread"
_AS_WRITTEN: Final = {"type": "string", "logicalType": "as-written"}
"""A string that stays one, also where bytes are read."""


class TooManyPartsError(ValueError):
    """Both schemas together have more pairs of types than anybody means."""


def _as_written(data: str, *_: Any) -> str:
    return data


for _readers in (LOGICAL_READERS, LOGICAL_READERS_IN_PYTHON):
    _readers["string-as-written"] = _as_written


def resolved(writer: Any, reader: Any) -> tuple[Any, Any]:
    """Returns two parsed schemas as fastavro has to see them; their types have other names. Raises
    `TooManyPartsError`, `RecursionError`.
    """
    before, after = _Walk(writer, reader).types(writer, reader)
    parse = fastavro.schema.parse_schema
    return parse(before), parse(after, _ignore_default_error=True)


class _Branches:
    """Of a reader's union, by kind and by name: there may be thousands."""

    def __init__(self, branches: list[Any]) -> None:
        self._by_kind: dict[str, Any] = {}
        self._by_name: dict[tuple[str, str], Any] = {}
        named = [branch for branch in branches if _kind(branch) in NAMED]
        for branch in branches:
            self._by_kind.setdefault(_kind(branch), branch)
        for branch in named:  # a full name before those that are like it
            self._by_name.setdefault((_kind(branch), branch["name"]), branch)
        for branch in named:
            for name in (_short(branch["name"]), *branch.get("aliases", ())):
                self._by_name.setdefault((_kind(branch), name), branch)

    def best(self, writer: Any) -> Any:
        """Returns the branch that reads a type of the writer; None if none does."""
        kind = _kind(writer)
        if kind in NAMED:
            keys = [(kind, writer["name"]), (kind, _short(writer["name"]))]
            return next((self._by_name[key] for key in keys if key in self._by_name), None)
        kinds = (kind, *_PROMOTIONS.get(kind, ()))
        return next((self._by_kind[each] for each in kinds if each in self._by_kind), None)


class _Walk:
    """Walks both schemas at once. Each pair of named types has a name that no other one has."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writers = definitions(writer)
        self._readers = definitions(reader)
        self._pairs: dict[tuple[str, str | None], str] = {}
        self._taken = set(_KINDS)
        self._branches: dict[int, _Branches] = {}
        self._unread: set[str] = set()
        self._parts = 0

    def types(self, writer: Any, reader: Any) -> tuple[Any, Any]:
        """Returns a pair of types. `reader`: None for what is not read."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise TooManyPartsError(f"it has more than {PARTS_MAX:,} parts beside the reader's schema")
        writer, reader = _defined(writer, self._writers), _defined(reader, self._readers)
        if isinstance(writer, list):
            return self._union(writer, reader)
        found, kind = self._best(writer, reader), _kind(writer)
        if kind in NAMED:
            before, after = self._named(writer, found)
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            before, after = self.types(writer[inner], found and found[inner])
            before, after = {"type": kind, inner: before}, {"type": kind, inner: after}
        else:
            before, after = writer if found is None else _meant(writer, found), found
        return before, self._not_read(reader) if found is None else after

    def _best(self, writer: Any, reader: Any) -> Any:
        if reader is None:
            return None
        known = self._branches.get(id(reader))
        if known is None:
            listed = reader if isinstance(reader, list) else [reader]
            known = _Branches([_defined(each, self._readers) for each in listed])
            self._branches[id(reader)] = known
        return known.best(writer)

    def _union(self, writer: list[Any], reader: Any) -> tuple[Any, Any]:
        pairs = [self.types(branch, reader) for branch in writer]
        before, after = [each for each, _ in pairs], list(_distinct(each for _, each in pairs))
        after = [each for each in after if _name(each) not in self._unread] or after
        if {("string", "string"), ("bytes", "bytes")} <= {(_kind(one), _kind(other)) for one, other in pairs}:
            # Neither can be the first: each reads the other one.
            before = [_AS_WRITTEN if _is_text(each) else each for each in before]
            after = [each for each in after if _kind(each) != "string"]
        return before, sorted(after, key=_place)

    def _named(self, writer: Any, reader: Any) -> tuple[Any, Any]:
        key = (writer["name"], reader and reader["name"])
        if key in self._pairs:
            return self._pairs[key], self._pairs[key]
        name = self._pairs[key] = self._fresh(_short(writer["name"]))
        before, after = _renamed(writer, name), _renamed(reader or writer, name)
        if _kind(writer) in ("record", "error"):
            before["fields"], after["fields"] = self._fields(writer, reader)
        elif reader is not None:
            before = _meant(before, after)
        return before, after

    def _fields(self, writer: Any, reader: Any) -> tuple[list[Any], list[Any]]:
        """Returns them in the order of the writer's: a type is defined where it is met first."""
        wanted = {field["name"]: field for field in (reader["fields"] if reader else ())}
        names, written = set(wanted), {field["name"] for field in writer["fields"]}
        # A field that is there by its own name is not looked for by its aliases, as the registry judges it.
        renamed = [field for field in wanted.values() if field["name"] not in written]
        aliases = {alias: field for field in reversed(renamed) for alias in field.get("aliases", ())}
        before, after = [], []
        for field in writer["fields"]:
            found = wanted.get(field["name"], aliases.get(field["name"]))
            if found is not None and wanted.pop(found["name"], None) is not None:
                pair = self.types(field["type"], found["type"])
                after.append(
                    {key: each for key, each in found.items() if key != "aliases"} | {"type": pair[1]}
                )
                before.append({"name": found["name"], "type": pair[0]})
            else:
                before.append(
                    {"name": _other(field["name"], names), "type": self.types(field["type"], None)[0]}
                )
        left = [{"name": each["name"], "type": "null"} | _default_of(each) for each in wanted.values()]
        return before, after + left

    def _not_read(self, reader: Any) -> Any:
        """Returns a type that reads nothing, like the reader's: errors show it."""
        kind = _kind(reader)
        if kind in _PRIMITIVES:
            return reader
        name = self._fresh(_short(reader["name"]) if kind in NAMED else _UNREAD)
        self._unread.add(name)
        return {"type": "enum", "name": name, "symbols": []}

    def _fresh(self, name: str) -> str:
        fresh, number = name, 1
        while fresh in self._taken:
            number += 1
            fresh = f"{name}_{number}"
        self._taken.add(fresh)
        return fresh


def _defined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Returns what a name stands for, and what is wrapped in other attributes."""
    while True:
        if isinstance(schema, str) and schema in definitions:
            schema = definitions[schema]
        elif isinstance(schema, dict) and (
            isinstance(schema["type"], dict | list) or schema["type"] in definitions
        ):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _renamed(schema: Any, name: str) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in ("aliases", "namespace")}
    return {key: value for key, value in kept.items() if not key.startswith("__")} | {"name": name}


def _meant(writer: Any, reader: Any) -> Any:
    """Returns the writer's type, with the reader's logical type if just one of both has one."""
    before, after = (
        {key: each[key] for key in _MEANING if key in each} if isinstance(each, dict) else {}
        for each in (writer, reader)
    )
    if ("logicalType" in before) == ("logicalType" in after):
        return writer
    plain = writer if isinstance(writer, dict) else {"type": writer}
    return {key: value for key, value in plain.items() if key not in _MEANING} | after


def _distinct(types: Iterable[Any]) -> Iterator[Any]:
    seen: list[Any] = []
    for each in types:
        if _kind(each) not in _PRIMITIVES:
            yield each
        elif _kind(each) not in seen:
            seen.append(_kind(each))
            yield each


def _name(schema: Any) -> str:
    return str(schema.get("name", "")) if isinstance(schema, dict) else str(schema)


def _is_text(schema: Any) -> bool:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return _kind(schema) == "string" and f"string-{logical}" not in LOGICAL_READERS


def _other(name: str, names: set[str]) -> str:
    """Returns a name for a field that the reader has not."""
    while name in names:
        name += "_"
    return name


def _default_of(field: Any) -> dict[str, Any]:
    return {"default": field["default"]} if "default" in field else {}


def _place(schema: Any) -> int:
    kind = _kind(schema)
    return _PRIMITIVES.index(kind) if kind in _PRIMITIVES else len(_PRIMITIVES)
