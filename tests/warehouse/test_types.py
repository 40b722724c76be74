"""Arrow's and Spark's types of Avro's, and the comments that fields get."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from fix_every_type import SCHEMA, TYPES
from headrace.warehouse.arrow_values import as_type
from headrace.warehouse.source.avro import (
    UnsupportedSchemaError,
    _without_other_logical_types,
    spark_type,
)
from headrace.warehouse.source.program import NoProgramError, compile_program
from headrace.warehouse.types import PLAIN, arrow_fields, comment_of, commented
from headrace.warehouse.written_out import TypeUnknownError, written_out


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "E", "fields": list(fields)})


@pytest.mark.parametrize("row", TYPES, ids=lambda row: row.name)
def test_the_types_are_those_of_the_loads_and_of_the_avro_mode(row: Any) -> None:
    """Three places give a type to an Avro type, where they know it: they must agree."""
    schema = record({"name": "f", "type": row.avro})
    [field] = arrow_fields(schema)
    try:
        assert compile_program(schema, {}).fields == [field]
    except NoProgramError:
        assert isinstance(row.avro, dict | list)
    try:
        expected = spark_type(schema)
    except UnsupportedSchemaError:
        assert row.name == "mixed"
    else:
        assert from_arrow_schema(pa.schema([field])) == expected


def test_a_type_that_is_named_twice() -> None:
    inner = {"type": "record", "name": "n.I", "fields": [{"name": "x", "type": "int"}]}
    a, b = arrow_fields(record({"name": "a", "type": inner}, {"name": "b", "type": ["null", "n.I"]}))
    assert a.type == b.type == pa.struct([("x", pa.int32())])


@pytest.mark.parametrize(
    "attributes",
    [
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "string", "logicalType": "decimal", "precision": 4},
        {"type": "long", "logicalType": "date"},
        {"type": "int", "logicalType": "timestamp-millis"},
    ],
)
def test_an_invalid_logical_type_is_none(attributes: dict[str, Any]) -> None:
    """Loads ended with KeyError: 'precision'; the Avro mode took numbers for dates."""
    schema = record({"name": "f", "type": attributes})
    [field] = arrow_fields(schema)
    assert field.type == PLAIN[attributes["type"]]
    assert spark_type(schema) == from_arrow_schema(pa.schema([field]))
    plain = _without_other_logical_types(json.loads(schema))
    assert plain["fields"][0]["type"].keys() <= {"type", "precision"}


def test_types_of_two_namespaces_with_one_short_name() -> None:
    """The last one of a short name was taken for all: columns had another type than their files."""
    one = {"type": "record", "name": "a.Address", "fields": [{"name": "x", "type": "int"}]}
    two = {"type": "record", "name": "b.Address", "fields": [{"name": "y", "type": "string"}]}
    named = [one, two, "a.Address", ["null", "b.Address"]]
    fields = arrow_fields(record(*({"name": f"f{at}", "type": each} for at, each in enumerate(named))))
    x, y = pa.struct([("x", pa.int32())]), pa.struct([("y", pa.string())])
    assert [field.type for field in fields] == [x, y, x, y]


@pytest.mark.parametrize("schema", ['"long"', record({"name": "f", "type": "Nowhere"})])
def test_what_is_no_event(schema: str) -> None:
    with pytest.raises(TypeUnknownError):
        arrow_fields(schema)


def test_a_small_schema_that_written_out_takes_all_memory_is_refused() -> None:
    """Each of its types uses the one before twice: 41 kinds of records are 2**40 types."""
    inner: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for at in range(1, 41):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{at - 1}"}]
        inner = {"type": "record", "name": f"R{at}", "fields": fields}
    for read in (arrow_fields, written_out):
        with pytest.raises(TypeUnknownError, match="the schema is too large: with each type written out"):
            read(json.dumps(inner))


def test_docs_become_comments_at_every_depth() -> None:
    fields = arrow_fields(json.dumps(SCHEMA))
    by_name = {field.name: field for field in fields}
    assert comment_of(by_name["price"]) == "The price; it's a test."
    assert comment_of(by_name["number"]) == ""
    spark = commented(from_arrow_schema(pa.schema(fields)).jsonValue(), fields)
    found = {field["name"]: field for field in spark["fields"]}
    assert found["price"]["metadata"] == {"comment": "The price; it's a test."}
    assert found["number"]["metadata"] == {}
    assert found["inner"]["type"]["fields"][0]["metadata"] == {"comment": "Across."}


def test_rows_of_an_older_schema_get_the_newer_types() -> None:
    old = pa.array(
        [{"a": 1, "gone": "x"}, None, {"a": None, "gone": "y"}],
        pa.struct([("a", pa.int32()), ("gone", pa.string())]),
    )
    kind = pa.struct([("a", pa.int64()), ("new", pa.list_(pa.string()))])
    assert as_type(old, kind).to_pylist() == [{"a": 1, "new": None}, None, {"a": None, "new": None}]
    lists = pa.array([[{"a": 1, "gone": ""}], None, []], pa.list_(old.type))
    for array in (lists, lists[1:], lists[:1]):
        assert as_type(array, pa.list_(kind)).to_pylist() == [
            None if each is None else [{"a": item["a"], "new": None} for item in each]
            for each in array.to_pylist()
        ]
    maps = pa.array([[("k", 1)], None, [("l", None), ("m", 2)]], pa.map_(pa.string(), pa.int32()))
    for array in (maps, maps[1:]):
        assert as_type(array, pa.map_(pa.string(), pa.int64())).to_pylist() == array.to_pylist()
