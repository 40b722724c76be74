"""Avro values as JSON and back: what is printed can be published again, with the same bytes."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.json_values import JsonForm
from headrace.registry.value_validation import SerializationError

NOON_MS = 1_431_864_000_000
KINDS: dict[str, Any] = {
    "millis": {"type": "long", "logicalType": "timestamp-millis"},
    "micros": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-millis"},
    "day": {"type": "int", "logicalType": "date"},
    "clock": {"type": "int", "logicalType": "time-millis"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "id": {"type": "string", "logicalType": "uuid"},
    "raw": "bytes",
    "mac": {"type": "fixed", "name": "Mac", "size": 6},
    "ratio": "double",
    "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    "maybe": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
    "either": [
        "null",
        "string",
        "bytes",
        {"type": "record", "name": "I", "fields": [{"name": "x", "type": "bytes"}]},
    ],
    "items": {"type": "array", "items": "I"},
    "labels": {"type": "map", "values": ["null", "bytes"]},
}


def parsed(fields: dict[str, Any]) -> Any:
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    return fastavro.schema.parse_schema(schema)


SCHEMA = parsed(KINDS)
VALUE: dict[str, Any] = {
    "millis": NOON_MS + 7,
    "micros": NOON_MS * 1000 + 7,
    "local": NOON_MS,
    "day": "2015-05-17",
    "clock": "10:05:00.123000",
    "price": "12.30",
    "id": "12345678-1234-5678-1234-567812345678",
    "raw": "\x00\xff",
    "mac": "abcdef",
    "ratio": "NaN",
    "kind": "B",
    "maybe": None,
    "either": {"x": "\xfe"},
    "items": [{"x": ""}, {"x": "a"}],
    "labels": {"a": "\x80", "b": None},
}


def written(value: Any, schema: Any = SCHEMA) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, JsonForm(schema).from_json(value), strict_allow_default=True)
    return buffer.getvalue()


def shown(data: bytes, schema: Any = SCHEMA) -> Any:
    value = JsonForm(schema).to_json(fastavro.schemaless_reader(io.BytesIO(data), schema, None))
    return json.loads(json.dumps(value, allow_nan=False))


def test_what_is_printed_can_be_published_again() -> None:
    assert shown(written(VALUE)) == VALUE
    assert written(shown(written(VALUE))) == written(VALUE)


# JSON has one NaN, of the many that 64 bits can say.
FLOATS = st.floats(allow_nan=False) | st.just(math.nan)


@given(st.integers(0, 253_402_300_799_999_999), st.binary(), FLOATS, st.none() | st.integers(0, 10**15))
def test_every_value_survives(micros: int, raw: bytes, ratio: float, maybe: int | None) -> None:
    value = {**VALUE, "micros": micros, "raw": raw.decode("latin-1"), "maybe": maybe, "either": "text"}
    data = written({**value, "ratio": ratio})
    assert written(shown(data)) == data
    assert shown(data) | {"ratio": 0} == value | {"ratio": 0}


@pytest.mark.parametrize(
    ("field", "value", "same_as"),
    [
        ("millis", "2015-05-17T12:00:00Z", NOON_MS),
        ("millis", "2015-05-17T14:00:00+02:00", NOON_MS),
        ("millis", "2015-05-17T12:00:00", NOON_MS),
        ("local", "2015-05-17T12:00:00", NOON_MS),
        ("day", 16572, "2015-05-17"),
        ("price", 12.3, "12.30"),
        ("price", 12, "12.00"),
        ("maybe", {"long": 5}, 5),
        ("either", {"string": "x"}, "x"),
        ("either", {"I": {"x": "y"}}, {"x": "y"}),
    ],
)
def test_other_spellings_are_read(field: str, value: Any, same_as: Any) -> None:
    schema = parsed({name: kind for name, kind in KINDS.items() if name in (field, "either")})
    rest = {"either": None}
    assert written({**rest, field: value}, schema) == written({**rest, field: same_as}, schema)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"pirce": 1}, "field pirce is not in the schema; did you mean price?"),
        ({"items": [{"y": ""}]}, "field items[0].y is not in the schema"),
        ({"price": "much"}, "field price is 'much' (expected decimal)"),
        ({"day": "17 May"}, "field day is '17 May' (expected date)"),
        ({"millis": "noon"}, "field millis is 'noon' (expected timestamp-millis)"),
        ({"millis": 1_700_000_000}, "field millis: 1700000000 looks like seconds"),
        ({"raw": "\u20ac"}, "one for each byte"),
    ],
)
def test_what_is_wrong_is_named(value: Any, problem: str) -> None:
    with pytest.raises(SerializationError) as caught:
        JsonForm(SCHEMA).from_json(value)
    assert problem in str(caught.value)


def test_old_times_are_taken_if_that_is_allowed() -> None:
    assert JsonForm(SCHEMA, checks_times=False).from_json({"millis": 1_700_000_000}) == {
        "millis": 1_700_000_000
    }


def test_times_at_the_edges_of_the_calendar() -> None:
    form = JsonForm({"type": "long", "logicalType": "timestamp-millis"})
    edges = [datetime.min, datetime.max, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    first_ms, last_ms = -62_135_596_800_000, 253_402_300_799_999
    assert [form.to_json(each) for each in edges] == [first_ms, last_ms] * 2
    assert form.to_json(date.max) == "9999-12-31"


def test_a_type_that_contains_itself() -> None:
    tree = fastavro.schema.parse_schema(
        {
            "type": "record",
            "name": "Tree",
            "fields": [
                {"name": "raw", "type": "bytes"},
                {"name": "children", "type": {"type": "array", "items": "Tree"}},
            ],
        }
    )
    value = {"raw": "\xff", "children": [{"raw": "\xfe", "children": []}]}
    assert shown(written(value, tree), tree) == value


ANY: dict[str, Any] = {
    "any": [
        "null",
        {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
        "string",
        "int",
        "long",
        {"type": "map", "values": "int"},
        {"type": "record", "name": "Start", "fields": [{"name": "x", "type": "int"}]},
        {
            "type": "record",
            "name": "Stop",
            "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}],
        },
    ]
}


@pytest.mark.parametrize(
    ("value", "branch"),
    [
        ({"Kind": "A"}, 1), ("A", 1), ({"string": "A"}, 2), ({"int": 5}, 3), ({"long": 5}, 4),
        ({"map": {"x": 1}}, 5), ({"Start": {"x": 1}}, 6), ({"Stop": {"x": 1}}, 7),
    ],
)  # fmt: skip
def test_a_branch_that_is_named_is_the_one_that_is_written(value: Any, branch: int) -> None:
    """An event `Stop` was stored as a `Start`, which has the same fields."""
    assert written({"any": value}, parsed(ANY))[0] == 2 * branch
