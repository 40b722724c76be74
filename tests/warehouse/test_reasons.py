"""The reason of a dead letter names the field and the value that no reader could show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fix_bad_values import framed_unchecked
from headrace.warehouse.reasons import REASON_SIZE_MAX, reason

ID = 7
KIND = {"type": "enum", "name": "Kind", "symbols": ["A"]}
FIELDS: dict[str, Any] = {
    "word": "string",
    "maybe": ["null", KIND, "string"],
    "names": {"type": "array", "items": "string"},
    "counts": {"type": "map", "values": "string"},
    "inner": {"type": "record", "name": "x.Inner", "fields": [{"name": "w", "type": "string"}]},
    "again": ["null", "x.Inner"],
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "times": {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}},
    "day": ["null", {"type": "int", "logicalType": "date"}],
    "clock": {"type": "long", "logicalType": "time-micros"},
}  # fmt: skip
GOOD: dict[str, Any] = {
    "word": b"w",
    "maybe": None,
    "names": [b"a"],
    "counts": {"k": b"v"},
    "inner": {"w": b""},
    "again": {"w": b"x"},
    "at": 0,
    "times": [0],
    "day": 1,
    "clock": 0,
}
BAD = b"caf\xe9"


SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": n, "type": t} for n, t in FIELDS.items()],
}


def framed(event: dict[str, Any]) -> bytes:
    return framed_unchecked(ID, SCHEMA, event)


def reason_of(value: bytes, reader: Any = None, time_us: int = 0) -> str:
    return reason(value, ID, time_us, {ID: json.dumps(SCHEMA)}, json.dumps(reader) if reader else None)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"word": BAD}, "field word: the string b'caf\\xe9' is not UTF-8"),
        ({"maybe": BAD}, "field maybe: the string b'caf\\xe9' is not UTF-8"),
        ({"names": [b"a", BAD]}, "field names[]: the string b'caf\\xe9' is not UTF-8"),
        ({"counts": {"k": BAD}}, "field counts[]: the string b'caf\\xe9' is not UTF-8"),
        ({"inner": {"w": BAD}}, "field inner.w: the string b'caf\\xe9' is not UTF-8"),
        ({"again": {"w": BAD}}, "field again.w: the string b'caf\\xe9' is not UTF-8"),
        ({"word": BAD * 100}, "field word: the string " + repr((BAD * 10)[:40]) + "… is not UTF-8"),
        ({"at": 2**62}, f"field at: {2**62} (timestamp-millis) is before the year 1 or after 9999"),
        ({"times": [0, 2**60]}, f"field times[]: {2**60} (timestamp-micros) is before the year 1"),
        ({"day": -(2**31)}, f"field day: {-(2**31)} (date) is before the year 1 or after 9999"),
        ({"clock": -1}, "the event has no time"),  # the number is kept: Spark has no type for a time of day
        ({}, "the event has no time, or one before 1970 or after 9999"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_shown_is_named(changes: dict[str, Any], wanted: str) -> None:
    found = reason_of(framed(GOOD | changes))
    assert found.startswith(wanted) and len(found) <= REASON_SIZE_MAX


def test_a_map_key_is_named() -> None:
    value = framed(GOOD | {"counts": {"cafe": b"v"}}).replace(b"cafe", BAD)
    assert reason_of(value) == "field counts: the map key b'caf\\xe9' is not UTF-8"


def test_a_field_that_the_table_lacks_is_no_reason() -> None:
    reader = SCHEMA | {"fields": [field for field in SCHEMA["fields"] if field["name"] != "word"]}
    assert reason_of(framed(GOOD | {"word": BAD}), reader).startswith("the event has no time")
    assert reason_of(framed(GOOD | {"word": BAD, "at": 2**62}), reader).startswith("field at: ")


def test_broken_bytes_and_what_is_not_avro() -> None:
    value = framed(GOOD)
    assert reason_of(value[:-1]).startswith("the bytes aren't what schema 7 says: ")
    assert reason_of(value + b"\0") == "1 bytes are left after the record of schema 7"
    assert reason_of(b"\x01abcdef") == "no schema id: the value begins with 01 61 62 63 64, not with 00"
    assert reason(None, ID, 0, {}) == "the value is null"
    assert reason(value, 8, 0, {}) == "no registry knows schema id 8"
    assert reason_of(value, time_us=2**62).startswith(f"the Kafka timestamp is {2**62 // 1000} ms")


def test_a_schema_that_refers_to_itself_ends_no_process() -> None:
    """fastavro's compiled reader descends without a bound: a megabyte of such a value was a SIGSEGV."""
    schema = json.dumps(
        {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    )
    value = b"\0\0\0\0\7" + b"\2" * 1_000_000 + b"\0"
    assert reason(value, 7, 0, {7: schema}).startswith("the bytes aren't what schema 7 says: RecursionError")
