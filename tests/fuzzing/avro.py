"""Avro binary of any value by any schema, also of what no library writes; and schemas that nearly fit.

A writer's schema comes from the registry, where anybody may register one. So a reader meets schemas, too,
that no program of ours would write by.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any, Final

from fuzzing.values import integer, text, varint

MISSING: Final = object()
"""Stands for a value that is not given: a random one is written."""
LIE: Final = 0.004
"""How often a count, a length, a branch or a symbol is not the true one."""
DEPTH_MAX: Final = 30
SIZE_MAX_BYTES: Final = 600_000
TOWER: Final = (10, 1_000, 300_000)
"""How deep a value nests whose schema refers to itself."""


class AvroWriter:
    """Writes values of one schema, given as JSON's objects. `lie`: how often a number is not the true one."""

    def __init__(self, rng: random.Random, schema: Any, lie: float = LIE) -> None:
        self._rng = rng
        self._lie_share = lie
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._left_bytes = SIZE_MAX_BYTES

    def write(self, value: Any = MISSING) -> bytes:
        """The value's bytes; of a random value if none is given."""
        return self._write(self._schema, value, 0)

    def _write(self, schema: Any, value: Any, depth: int) -> bytes:
        if isinstance(schema, str):
            schema = self._named.get(schema, schema)
        if isinstance(schema, list):
            return self._union(schema, value, depth)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and "name" in schema:
            self._named[str(schema["name"])] = schema
            self._named[f"{schema.get('namespace')}.{schema['name']}"] = schema
        if isinstance(kind, dict | list):
            return self._write(kind, value, depth)
        if depth > DEPTH_MAX or self._left_bytes <= 0:
            return b""
        if kind in ("record", "error"):
            given = value if isinstance(value, dict) else {}
            return b"".join(
                self._write(each["type"], given.get(each["name"], MISSING), depth + 1)
                for each in schema["fields"]
            )
        if kind in ("array", "map"):
            return self._items(schema, kind, value, depth)
        written = self._primitive(schema, str(kind), value)
        self._left_bytes -= len(written)
        return written

    def _union(self, branches: list[Any], value: Any, depth: int) -> bytes:
        """The first branch is taken for None, the last one for anything else."""
        if not branches:
            return b""
        place = 0 if value is None else len(branches) - 1
        if value is MISSING:
            place = self._rng.randrange(len(branches))
        return varint(self._lie(place)) + self._write(branches[place], value, depth + 1)

    def _items(self, schema: Any, kind: str, value: Any, depth: int) -> bytes:
        items = value if isinstance(value, list | tuple) else [MISSING] * self._rng.choice((0, 1, 3))
        inner = schema["items"] if kind == "array" else schema["values"]
        if not items:
            return varint(self._lie(0))
        parts = [
            (self._text(MISSING) if kind == "map" else b"") + self._write(inner, item, depth + 1)
            for item in items
        ]
        packed = b"".join(parts)
        count = varint(self._lie(len(parts)))
        if self._rng.random() < 0.2:  # a block with its size in bytes before it
            count = varint(-len(parts)) + varint(self._lie(len(packed)))
        return count + packed + (b"\x00" if self._rng.random() >= self._lie_share else b"")

    def _primitive(self, schema: Any, kind: str, value: Any) -> bytes:
        rng = self._rng
        if kind == "boolean":
            return bytes((int(bool(value)) if value is not MISSING else rng.choice((0, 1, 7)),))
        if kind in ("int", "long"):
            return varint(value if isinstance(value, int) else integer(rng, 64))
        if kind == "enum":
            symbols = schema.get("symbols") or [""]
            place = symbols.index(value) if value in symbols else rng.randrange(-1, len(symbols) + 1)
            return varint(self._lie(place))
        if kind in ("string", "bytes"):
            return self._text(value)
        if kind == "fixed":
            size = schema.get("size", 0)
            return rng.randbytes(min(size, 1000)) if isinstance(size, int) and size >= 0 else b""
        if kind in ("float", "double"):
            return struct.pack("<f" if kind == "float" else "<d", rng.choice((0.0, 1e30, float("nan"))))
        return b""

    def _text(self, value: Any) -> bytes:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else text(self._rng, ())
        return varint(self._lie(len(data))) + data

    def _lie(self, number: int) -> int:
        return number if self._rng.random() >= self._lie_share else integer(self._rng, 64)


# --- schemas that nearly fit ---


def _renamed(rng: random.Random, schema: Any) -> None:
    schema["name"] = rng.choice(("Other", schema["name"].lower(), "Tier"))


def _retyped(rng: random.Random, schema: Any) -> None:
    """Another type for a field: some can be resolved into ours, most cannot."""
    number = rng.randrange(1000)
    rng.choice(schema["fields"])["type"] = rng.choice(
        (
            *("null", "boolean", "int", "long", "double", "bytes", "string"),
            {"type": "fixed", "name": f"F{number}", "size": rng.choice((0, 16, 2**31 - 1))},
            {"type": "map", "values": "long"},
            {"type": "array", "items": "null"},
            {"type": "array", "items": {"type": "record", "name": f"E{number}", "fields": []}},
            {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 49},
            {"type": "string", "logicalType": "uuid"},
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "int", "logicalType": "date"},
            ["null", "long", "string"],
            [],
        )
    )


def _without_a_field(rng: random.Random, schema: Any) -> None:
    schema["fields"].pop(rng.randrange(len(schema["fields"])))


def _with_a_field(rng: random.Random, schema: Any) -> None:
    """One more field, which a reader skips: also one whose type refers to itself."""
    number = rng.randrange(1000)
    node = f"headrace.audit.Node{number}"
    link = {"type": "record", "name": node, "fields": [{"name": "next", "type": ["null", node]}]}
    kind: Any = rng.choice(("string", {"type": "array", "items": "null"}, ["null", link], ["null", link]))
    schema["fields"].insert(rng.randrange(2), {"name": f"more{number}", "type": kind})


def _shuffled(rng: random.Random, schema: Any) -> None:
    rng.shuffle(schema["fields"])


def _within_itself(rng: random.Random, schema: Any) -> None:
    """A field holds the whole record again."""
    own = f"{schema['namespace']}.{schema['name']}"
    inner: Any = rng.choice((["null", own], {"type": "array", "items": own}, {"type": "map", "values": own}))
    schema["fields"].insert(0, {"name": "within", "type": inner})


_CHANGES: Final[tuple[Callable[[random.Random, Any], None], ...]] = (
    *(_renamed, _retyped, _retyped, _without_a_field, _with_a_field, _with_a_field, _shuffled),
    *(_within_itself, _within_itself),
)


def changed_schema(rng: random.Random, schema_text: str) -> str:
    """The schema with one or two changes, as a stranger may register it."""
    schema = copy.deepcopy(json.loads(schema_text))
    for _ in range(rng.choice((1, 1, 2))):
        if schema["fields"]:
            rng.choice(_CHANGES)(rng, schema)
    return json.dumps(schema)


def tower(rng: random.Random) -> bytes:
    """Bytes that nest as deep as they are long, where a schema refers to itself in its first field."""
    return rng.choice((b"\x02", b"\x02\x02a", b"\x01\x02")) * rng.choice(TOWER)
