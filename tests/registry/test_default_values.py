"""Old values read by a newer schema: what they lack has the type that newer ones have there."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.value_reading import ValueReader

X = {"name": "x", "type": "int"}
INNER = {
    "type": "record",
    "name": "a.Inner",
    "fields": [
        {"name": "raw", "type": "bytes", "default": "\xff"},
        {"name": "n", "type": ["null", "int"], "default": None},
    ],
}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}


def record(*fields: Any) -> Any:
    return {"type": "record", "name": "a.R", "fields": [X, *fields]}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\x00\xff", b"\x00\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        (PRICE, "\x01", Decimal("0.01")),
        (MOMENT, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        ("double", 1, 1.0),
        (["bytes", "null"], "\xfe", b"\xfe"),
        (["null", "bytes"], None, None),
        (INNER, {}, {"raw": b"\xff", "n": None}),
        (INNER, {"n": 7}, {"raw": b"\xff", "n": 7}),
        ({"type": "array", "items": INNER}, [{}], [{"raw": b"\xff", "n": None}]),
        ({"type": "map", "values": "bytes"}, {"k": "\xff"}, {"k": b"\xff"}),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
        ("string", "\xff", "\xff"),
        (MOMENT, 2**62, 2**62),
    ],
)
def test_a_default_is_read_as_a_value_of_its_type(kind: Any, default: Any, value: Any) -> None:
    """Text stood for bytes, a number for a time, and {} for a record whose fields have defaults."""
    old, new = record(), record({"name": "y", "type": kind, "default": default})
    assert incompatibilities(Level.BACKWARD, json.dumps(new), [(1, json.dumps(old))]) == []
    reader = fastavro.parse_schema(new)
    before = json.dumps(reader, default=str)
    read, left = ValueReader(json.dumps(old), reader).read(b"\x02")
    assert (read, left) == ({"x": 1, "y": value}, 0) and type(read["y"]) is type(value)
    assert json.dumps(reader, default=str) == before, "the caller's schema stays as it was"
    if value != default or isinstance(value, str):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, reader, read)
        assert ValueReader(json.dumps(new), reader).read(buffer.getvalue())[0] == read, "as of a new value"


def test_types_that_are_named_elsewhere_and_hold_themselves() -> None:
    chain = {
        "type": "record",
        "name": "a.Chain",
        "fields": [{"name": "next", "type": ["null", "Chain"], "default": None}],
    }
    fields = [
        {"name": "one", "type": INNER, "default": {}},
        {"name": "two", "type": "a.Inner", "default": {"n": 1}},
        {"name": "chain", "type": chain, "default": {}},
    ]
    read, _ = ValueReader(json.dumps(record()), fastavro.parse_schema(record(*fields))).read(b"\x02")
    assert read["one"] == {"raw": b"\xff", "n": None} and read["two"] == {"raw": b"\xff", "n": 1}
    assert read["chain"] == {"next": None}
