"""The compiled decoder against fastavro: every type it handles, schema evolution, broken bytes."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_avro_events import (
    INT,
    LONG,
    PRIMITIVES,
    TEXT,
    WRITER_ID,
    Typed,
    comparable,
    decoded,
    encoded,
    events,
    payloads,
    plain_events,
    read,
)
from headrace.warehouse.layout import DEAD_HOUR, HOUR_MS
from headrace.warehouse.source.events import decode
from headrace.warehouse.source.program import NoProgramError, compile_program


@settings(max_examples=150, deadline=None)
@given(events, st.data())
def test_all_handled_types_are_read_as_by_fastavro(event: Typed, data: st.DataObject) -> None:
    values = data.draw(st.lists(event.values, min_size=1, max_size=4))
    records = [encoded(event.schema, value) for value in values]
    _, rows = decoded(event.schema, event.schema, records)
    assert [comparable(row) for row in rows] == [read(each, event.schema) for each in records]


@settings(max_examples=150, deadline=None)
@given(plain_events, st.data())
def test_of_broken_bytes_only_those_that_fit_are_read(event: Typed, data: st.DataObject) -> None:
    whole = encoded(event.schema, data.draw(event.values))
    broken = [whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0", b"\x80" * 12]
    mutable = bytearray(whole)
    mutable[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    noise = data.draw(st.binary(max_size=30))
    _, rows = decoded(event.schema, event.schema, [*broken, bytes(mutable), noise, whole])
    assert rows[:2] == [None, None]
    for record_bytes, row in zip([*broken, bytes(mutable)], rows, strict=False):
        try:
            wanted = read(record_bytes, event.schema)
            is_canonical = writable(fastavro_value(record_bytes, event.schema), event.schema) == record_bytes
        except Exception:
            assert row is None
            continue
        if row is None:
            # fastavro reads a boolean of 2, and an int of 64 bits; neither can be written.
            assert not is_canonical
        else:
            assert comparable(row) == wanted
    assert comparable(rows[-1]) == read(whole, event.schema)


def writable(value: Any, schema: Any) -> bytes | None:
    """The value's bytes; None if it is none of its schema's: fastavro writes an int of 64 bits unchecked."""
    is_valid = fastavro.validate(value, fastavro.parse_schema(schema), raise_errors=False)
    return encoded(schema, value) if is_valid else None


def fastavro_value(data: bytes, schema: Any) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


UTF8_PIECES = [
    *(b"", b"a", "\u00e9".encode(), "\U0001f600".encode(), b"\x00"),
    *(b"\xff", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80"),  # alone, or cut in the middle
    *(b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),  # overlong, a surrogate, beyond Unicode
]
TEXT_BYTES = st.lists(st.sampled_from(UTF8_PIECES), max_size=4).map(b"".join) | st.binary(max_size=20)


def texts_as(kind: str) -> dict[str, Any]:
    """A schema whose texts are strings, or bytes, which are written in the same way."""
    fields = [{"name": "plain", "type": kind}, {"name": "maybe", "type": ["null", kind]}]
    nested = {"type": "record", "name": "Nested", "fields": fields}
    outer = [{"name": "nested", "type": nested}, {"name": "or_none", "type": ["null", "Nested"]}]
    outer += [{"name": "last", "type": kind}, {"name": "number", "type": "int"}]
    return {"type": "record", "name": "Event", "fields": outer}


NESTED_TEXTS = st.fixed_dictionaries({"plain": TEXT_BYTES, "maybe": st.none() | TEXT_BYTES})
TEXT_EVENTS = st.fixed_dictionaries(
    {"nested": NESTED_TEXTS, "or_none": st.none() | NESTED_TEXTS, "last": TEXT_BYTES, "number": INT}
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT_EVENTS, min_size=1, max_size=6))
def test_strings_that_are_not_utf8_are_refused_as_by_fastavro(events: list[dict[str, Any]]) -> None:
    records = [encoded(texts_as("bytes"), event) for event in events]
    found, rows = decoded(texts_as("string"), texts_as("string"), records)
    for row, record_bytes, number in zip(rows, records, found.columns[-1].to_pylist(), strict=True):
        try:
            wanted = read(record_bytes, texts_as("string"))
        except UnicodeDecodeError:
            assert (row, number) == (None, None)
        else:
            assert row == wanted
    # As bytes, all of them can be read.
    _, rows = decoded(texts_as("bytes"), texts_as("string"), records)
    assert rows == events


IN_RANGE_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
TIME_KINDS = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
    "date": 86_400_000_000,
}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TIME_KINDS)), st.data())
def test_times_outside_of_the_years_1_to_9999_are_refused(kind: str, data: st.DataObject) -> None:
    unit_us, number = TIME_KINDS[kind], "int" if kind == "date" else "long"
    edges = [edge // unit_us + step for edge in IN_RANGE_US for step in (-1, 0, 1)]
    values = data.draw(st.lists(st.sampled_from(edges) | (INT if kind == "date" else LONG), min_size=1))

    def schema(of_time: Any) -> dict[str, Any]:
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": ["null", of_time]}]}
        return {"type": "record", "name": "Event", "fields": [{"name": "inner", "type": inner}]}

    records = [encoded(schema(number), {"inner": {"at": value}}) for value in [*values, None]]
    timed = schema({"type": number, "logicalType": kind})
    found, rows = decoded(timed, timed, records)
    is_good = [IN_RANGE_US[0] <= value * unit_us <= IN_RANGE_US[1] for value in values]
    assert [hour != DEAD_HOUR for hour in found.hours.tolist()] == [*is_good, True]
    assert [row is not None for row in rows] == [*is_good, True]
    # A later schema may read them as numbers.
    _, rows = decoded(schema(number), timed, records)
    assert [row["inner"]["at"] for row in rows] == [*values, None]


@pytest.mark.parametrize("default", [2**63 - 1, -(2**63), 253_402_300_800_000, 1_000])
def test_a_default_that_is_no_time_refuses_the_records_that_lack_it(default: int) -> None:
    """Such as the largest number, which many write for "never"."""
    writer = {"type": "record", "name": "Event", "fields": [{"name": "n", "type": "int"}]}
    expires = {
        "name": "expires",
        "type": {"type": "long", "logicalType": "timestamp-millis"},
        "default": default,
    }
    reader = {**writer, "fields": [*writer["fields"], expires]}
    _, rows = decoded(reader, writer, [encoded(writer, {"n": 1})])
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert rows == ([{"n": 1, "expires": at}] if default == 1_000 else [None])
    _, rows = decoded(reader, reader, [encoded(reader, {"n": 1, "expires": at})])
    assert rows == [{"n": 1, "expires": at}]


PROMOTIONS = {
    "int": ["int", "long", "float", "double"],
    "long": ["long", "float", "double"],
    "float": ["float", "double"],
    "string": ["string"],
}
DEFAULTS = [
    ("long", 5),
    ("double", 1.5),
    ("string", "new"),
    ("boolean", True),
    (["null", "string"], None),
    (["string", "null"], "x"),
    ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B"),
    ({"type": "fixed", "name": "Two", "size": 2}, "\u00ff\u0001"),
    ({"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int", "default": 3}]}, {"x": 4}),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_older_schema_is_read_as_by_fastavro(data: st.DataObject) -> None:
    typed = {"int": INT, "long": LONG, "float": st.floats(width=32, allow_nan=False), "string": TEXT}
    kinds = data.draw(st.lists(st.sampled_from(sorted(typed)), min_size=1, max_size=5))
    are_nullable = [data.draw(st.booleans()) for _ in kinds]
    fields = [
        {"name": f"f{index}", "type": ["null", kind] if is_nullable else kind}
        for index, (kind, is_nullable) in enumerate(zip(kinds, are_nullable, strict=True))
    ]
    unread = data.draw(st.one_of(*PRIMITIVES, plain_events))
    fields.insert(data.draw(st.integers(0, len(fields))), {"name": "unread", "type": unread.schema})
    writer = {"type": "record", "name": "Event", "fields": fields}
    new: list[Any] = []
    for index, (kind, is_nullable) in enumerate(zip(kinds, are_nullable, strict=True)):
        into = data.draw(st.sampled_from(PROMOTIONS[kind]))
        field: dict[str, Any] = {
            "name": f"f{index}",
            "type": ["null", into] if is_nullable or data.draw(st.booleans()) else into,
        }
        if data.draw(st.booleans()):
            field |= {"name": f"renamed{index}", "aliases": [f"f{index}"]}
        new.append(field)
    added = data.draw(st.lists(st.sampled_from(range(len(DEFAULTS))), unique=True))
    new += [{"name": f"new{i}", "type": DEFAULTS[i][0], "default": DEFAULTS[i][1]} for i in added]
    reader = {"type": "record", "name": "Event", "fields": data.draw(st.permutations(new))}
    values = {
        f"f{index}": data.draw(st.none() | typed[kind] if is_nullable else typed[kind])
        for index, (kind, is_nullable) in enumerate(zip(kinds, are_nullable, strict=True))
    }
    values["unread"] = data.draw(unread.values)
    record_bytes = encoded(writer, values)
    _, [row] = decoded(reader, writer, [record_bytes])
    wanted = read(record_bytes, writer, reader)
    for field in new:
        if field["type"] in ("float", ["null", "float"]) and wanted[field["name"]] is not None:
            # fastavro leaves a promoted number as wide as it was.
            wanted[field["name"]] = float(np.float32(wanted[field["name"]]))
    for index in added:
        if index == 7:
            wanted[f"new{index}"] = b"\xff\x01"
    assert comparable(row) == wanted


def test_a_field_that_is_there_by_its_own_name_is_not_taken_by_anothers_alias() -> None:
    """It was, if that other field came first: this one then had its default."""
    plain: dict[str, Any] = {"type": "record", "name": "Event", "fields": [{"name": "a", "type": "int"}]}
    newer = {"name": "b", "type": "int", "aliases": ["a"], "default": 7}
    wanted = {**plain, "fields": [newer, {**plain["fields"][0], "default": 8}]}
    _, rows = decoded(wanted, plain, [encoded(plain, {"a": 1})])
    assert [comparable(row) for row in rows] == [{"b": 7, "a": 1}]


@pytest.mark.parametrize("prefix", ["", "local-"])
@pytest.mark.parametrize("is_null_first", [False, True])
def test_a_time_is_what_its_writer_means(prefix: str, is_null_first: bool) -> None:
    """Where a newer schema has microseconds, milliseconds of producers that know the older one were taken for
    them: their events were in the hours of January 1970.
    """

    def event(unit: str) -> dict[str, Any]:
        kind: Any = {"type": "long", "logicalType": f"{prefix}timestamp-{unit}"}
        kinds = ["null", kind] if is_null_first else kind
        return {"type": "record", "name": "Event", "fields": [{"name": "at", "type": kinds}]}

    time = datetime(2026, 11, 20, 18, 0, 0, 5000, None if prefix else UTC)
    for old, new in (("millis", "micros"), ("micros", "millis")):
        _, rows = decoded(event(new), event(old), [encoded(event(old), {"at": time})])
        assert rows == [{"at": time}]


def test_a_record_of_another_or_an_unknown_schema_does_not_disturb_its_neighbours() -> None:
    def schema(*fields: Any) -> str:
        return json.dumps({"type": "record", "name": "E", "fields": fields})

    number, word = {"name": "n", "type": "long"}, {"name": "w", "type": "string", "default": "-"}
    program = compile_program(schema(number, word), {1: schema(number), 2: schema(number, word)})
    one = encoded(json.loads(schema(number)), {"n": 1})
    two = encoded(json.loads(schema(number, word)), {"n": 2, "w": "two"})
    found = decode(payloads([two, one, two, one], [2, 1, 9, 2]), program, np.zeros(4, np.int64))
    assert found.hours.tolist() == [0, 0, DEAD_HOUR, DEAD_HOUR]
    assert found.columns[0].to_pylist() == [2, 1, None, None]
    assert found.columns[1].to_pylist() == ["two", "-", None, None]


def test_the_hour_is_that_of_the_header_and_must_be_in_range() -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": time}]}
    schema = {"type": "record", "name": "E", "fields": [{"name": "header", "type": header}]}
    plain_time = json.loads(json.dumps(schema).replace(json.dumps(time), '"long"'))
    times_ms = [5 * HOUR_MS - 1, 5 * HOUR_MS, -1, 2**62, 253_402_300_800_000]
    records = [encoded(plain_time, {"header": {"time": each}}) for each in times_ms]
    program = compile_program(json.dumps(schema), {WRITER_ID: json.dumps(schema)})
    assert decode(payloads(records), program, None).hours.tolist() == [4, 5, DEAD_HOUR, DEAD_HOUR, DEAD_HOUR]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["null", "int", "string"],
        "null",
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "record", "name": "Empty", "fields": []},
        ["null", "E"],
    ],
    ids=str,
)
def test_other_types_are_left_to_from_avro(kind: Any) -> None:
    schema = json.dumps({"type": "record", "name": "E", "fields": [{"name": "f", "type": kind}]})
    with pytest.raises(NoProgramError):
        compile_program(schema, {WRITER_ID: schema})
