"""Avro types with values of them, events made of them, and what the decoder and fastavro read of these."""

import io
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.source.events import Events, Payloads, decode
from headrace.warehouse.source.program import compile_program

WRITER_ID = 7


@dataclass(frozen=True)
class Typed:
    """An Avro type, and values of it."""

    schema: Any
    values: st.SearchStrategy[Any]


def plain(schema: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
    return st.just(Typed(schema, values))


INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32)
TEXT = st.text(max_size=20)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
PRIMITIVES = [
    plain("boolean", st.booleans()),
    plain("int", INT),
    plain("long", LONG),
    plain("float", FLOAT),
    plain("double", st.floats()),
    plain("string", TEXT),
    plain("bytes", st.binary(max_size=20)),
]
LOGICAL = [
    plain({"type": "int", "logicalType": "date"}, st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    *(
        plain({"type": "long", "logicalType": f"timestamp-{unit}"}, TIMES.map(utc))
        for unit, utc in {
            "millis": lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=UTC),
            "micros": lambda time: time.replace(tzinfo=UTC),
        }.items()
    ),
    plain({"type": "long", "logicalType": "local-timestamp-micros"}, TIMES),
    plain({"type": "string", "logicalType": "uuid"}, st.uuids()),
]


@st.composite
def named(draw: st.DrawFn) -> Typed:
    if draw(st.booleans()):
        symbols = draw(st.lists(st.sampled_from("ABCDEF"), min_size=1, unique=True))
        return Typed({"type": "enum", "name": "", "symbols": symbols}, st.sampled_from(symbols))
    size = draw(st.integers(1, 12))
    return Typed({"type": "fixed", "name": "", "size": size}, st.binary(min_size=size, max_size=size))


@st.composite
def nullable(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    typed = draw(inner)
    branches = draw(st.permutations(["null", typed.schema]))
    return Typed(branches, st.none() | typed.values)


@st.composite
def record(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    fields = draw(st.lists(inner, min_size=1, max_size=5))
    schema = {
        "type": "record",
        "name": "",
        "fields": [{"name": f"f{index}", "type": typed.schema} for index, typed in enumerate(fields)],
    }
    return Typed(
        schema, st.fixed_dictionaries({f"f{index}": typed.values for index, typed in enumerate(fields)})
    )


def nested(leaves: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    flat = leaves | nullable(leaves)
    return st.recursive(flat, lambda inner: record(inner) | nullable(record(inner)), max_leaves=6)


def with_names(schema: Any, numbers: Iterator[int]) -> Any:
    """The schema with a name of its own for every named type."""
    if isinstance(schema, list):
        return [with_names(branch, numbers) for branch in schema]
    if not isinstance(schema, dict) or "name" not in schema:
        return schema
    made = {**schema, "name": f"N{next(numbers)}"}
    if "fields" in schema:
        made["fields"] = [{**field, "type": with_names(field["type"], numbers)} for field in schema["fields"]]
    return made


def event_of(leaves: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return record(nested(leaves)).map(
        lambda event: Typed(with_names(event.schema, itertools.count()), event.values)
    )


events = event_of(st.one_of(*PRIMITIVES, *LOGICAL, named()))
plain_events = event_of(st.one_of(*PRIMITIVES, named()))


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def payloads(records: list[bytes], schema_ids: list[int] | None = None) -> Payloads:
    ends = np.cumsum([len(each) for each in records]).astype(np.int64)
    ids = np.array(schema_ids or [WRITER_ID] * len(records), np.int32)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Payloads(np.frombuffer(b"".join(records), np.uint8), starts, ends, ids)


def decoded(reader: Any, writer: Any, records: list[bytes]) -> tuple[Events, list[Any]]:
    """The decoded records; None for those that are refused."""
    program = compile_program(json.dumps(reader), {WRITER_ID: json.dumps(writer)})
    found = decode(payloads(records), program, np.zeros(len(records), np.int64))
    batch = pa.RecordBatch.from_arrays(found.columns, schema=pa.schema(program.fields))
    batch.validate(full=True)
    rows = zip(batch.to_pylist(), found.hours.tolist(), strict=True)
    return found, [row if hour != DEAD_HOUR else None for row, hour in rows]


def comparable(value: Any) -> Any:
    """A value such that equal ones compare as equal: no NaN, a UUID as its text."""
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return str(value) if isinstance(value, UUID) else value


def read(data: bytes, writer: Any, reader: Any = None) -> Any:
    parsed = None if reader is None else fastavro.parse_schema(reader)
    source = io.BytesIO(data)
    value = fastavro.schemaless_reader(source, fastavro.parse_schema(writer), parsed)
    assert source.tell() == len(data), "bytes are left"
    return comparable(value)
