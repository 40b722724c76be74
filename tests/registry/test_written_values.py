"""An event is written as it was handed over, or refused with the field that does not fit."""

import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroSerializer, SerializationError

OFFLINE = SchemaRegistryClient("http://127.0.0.1:1")
"""Nothing is asked of it."""
V1 = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        ("string", "a\ud800", r"x is 'a\\ud800'"),
        (["null", "string"], "\udfff", r"x is '\\udfff'"),
        ({"type": "array", "items": "string"}, ["", "\ud900"], r"x\[1\] is"),
        ({"type": "map", "values": "string"}, {"k": "\udc00"}, r"x\.k is"),
        ({"type": "map", "values": "string"}, {"\udc00": ""}, r"x, a key is"),
    ],
)
def test_half_of_a_surrogate_pair_is_named_with_its_field(kind: Any, value: Any, where: str) -> None:
    """JSON's escapes can make it. The error was fastavro's, of a codec, and named no field."""
    schema = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": kind}]}
    problem = rf"field a\.R\.{where}.*half of a surrogate pair"
    with pytest.raises(SerializationError, match=problem):
        AvroSerializer(OFFLINE, schema).encode({"x": value})


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (["null", "int"], lambda v: v),
        ({"type": "array", "items": "int"}, lambda v: [1, v]),
        ({"type": "map", "values": ["string", "int"]}, lambda v: {"a": "b", "c": v}),
        ({"type": "array", "items": "a.R"}, lambda v: [{"x": 1, "w": []}, {"x": v, "w": []}]),
        ({"type": "record", "name": "In", "fields": [{"name": "i", "type": "int"}]}, lambda v: {"i": v}),
        (["null", "a.R"], lambda v: {"x": v, "w": None}),
    ],
)
def test_an_int_has_32_bits_wherever_it_stands(kind: Any, wrap: Callable[[int], Any], value: int) -> None:
    schema = {"type": "record", "name": "a.R", "fields": [*V1["fields"], {"name": "w", "type": kind}]}
    serializer = AvroSerializer(OFFLINE, schema)
    with pytest.raises(SerializationError, match=rf"is {value} \(expected .*int"):
        serializer.encode({"x": 1, "w": wrap(value)})
    serializer.encode({"x": 1, "w": wrap(2**31 - 1)})
    longs = AvroSerializer(
        OFFLINE, {"type": "record", "name": "L", "fields": [{"name": "x", "type": "long"}]}
    )
    assert longs.encode({"x": value})


MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
INNER = {"type": "record", "name": "I", "fields": [{"name": "i", "type": "int"}]}
DAY = {"type": "int", "logicalType": "date"}
STRINGS = {"type": "array", "items": "string"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 5.7), ("int", Decimal("5.7")), ("long", 5.7), (MOMENT, 5.7), (DAY, 5.7),
        (DAY, 2**31), ({"type": "int", "logicalType": "percent"}, 2**40),
        ("boolean", "no"), ("boolean", 2), ("boolean", None), ("null", 5),
        ("float", "5"), ("float", 1e39), ("double", "1e3"),
        ({"type": "array", "items": "boolean"}, [True, "no"]),
        ({"type": "map", "values": "long"}, {"a": 1.5}),
        (["null", "int"], ("int", 2**40)),
        (["null", INNER], ("I", {"i": 1.5})),
        (STRINGS, "abc"), (STRINGS, {"a": "b"}), ({"type": "array", "items": "int"}, b"abc"),
        ({"type": "map", "values": STRINGS}, {"k": "abc"}), ({"type": "array", "items": STRINGS}, ["abc"]),
        (["null", "double", "long"], 2**53 + 1), (["float", "int"], 2**24 + 1),
        (["int", "double", "long"], 2**62 + 1),
        ([DAY, MOMENT], datetime(2015, 5, 17, 12, tzinfo=UTC)), (DAY, datetime(2015, 5, 17, 12, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_value_that_would_be_written_as_another_one_is_refused(kind: Any, value: Any) -> None:
    """fastavro wrote 5 for 5.7, true for "no", infinity for 1e39, ["a", "b"] for "ab"; nobody noticed."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "w", "type": kind}]}
    with pytest.raises(SerializationError, match=r"field [RI]\.[wi] is .*expected "):
        AvroSerializer(OFFLINE, schema).encode({"w": value})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [5, 5.0, True, Decimal(5), 2**31 - 1]),
        ("long", [2**63 - 1, -(2**63)]),
        ("boolean", [True, False, 1, 0]),
        ("float", [1, 1.5, Decimal("1.5"), 3.4028235e38, math.inf, math.nan]),
        ("double", [1e308, 7, math.nan]),
        (DAY, [date(2015, 5, 17), 16_572]),
        (MOMENT, [datetime(2015, 5, 17, tzinfo=UTC), 1_431_820_800_000]),
        ("null", [None]),
        (["null", "double", "long"], [2**53, 0.1, ("long", 2**53 + 1)]),
        (["float", "int", "double"], [2**24 + 1, ("int", 2**24 + 1)]),
        (["double", "string"], [2**53 + 1]),
        ([MOMENT, DAY], [datetime(2015, 5, 17, 12, tzinfo=UTC), date(2015, 5, 17)]),
        (DAY, [datetime(2015, 5, 17)]),
        (STRINGS, [["a"], ("a", "b"), [], deque(["a"])]),
    ],
)
def test_values_that_are_written_as_they_are_given_are_taken(kind: Any, values: list[Any]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "w", "type": kind}]}
    serializer = AvroSerializer(OFFLINE, schema)
    for value in values:
        serializer.encode({"w": value})


@pytest.mark.parametrize(
    ("kind", "default", "payload"),
    [
        ("bytes", "\xff\x01", b"\x04\xff\x01"),
        ({"type": "fixed", "name": "F", "size": 2}, "\xff\x01", b"\xff\x01"),
        (["bytes", "null"], "\xff", b"\x00\x02\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\x7b", b"\x02\x7b"),
        ({"type": "map", "values": "bytes"}, {"k": "\xff"}, b"\x02\x02k\x02\xff\x00"),
        ({**INNER, "fields": [{"name": "i", "type": "bytes", "default": "\xff"}]}, {}, b"\x02\xff"),
        (MOMENT, 1, b"\x02"),
    ],
)
def test_defaults_of_every_type_may_be_left_out(kind: Any, default: Any, payload: bytes) -> None:
    """Bytes stand as text in a schema; that was taken for the value, and the event refused."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind, "default": default}]}
    assert AvroSerializer(OFFLINE, schema).encode({}) == payload


def test_an_id_that_no_reader_takes_is_refused() -> None:
    """Whoever read it by Avro's libraries got an error in place of the event."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "f", "type": ["null", {"type": "string", "logicalType": "uuid"}]}],
    }
    serializer = AvroSerializer(OFFLINE, schema)
    for value in ("visitor 7", ("string", "visitor 7")):
        with pytest.raises(SerializationError, match=r"R\.f is .*visitor 7.*expected .*uuid"):
            serializer.encode({"f": value})
    number = UUID(int=7)
    assert serializer.encode({"f": number}) == serializer.encode({"f": str(number)})
