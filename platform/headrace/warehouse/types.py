"""From Avro to the table's types: Arrow's, which pyarrow, pandas and DuckDB have, and Spark's. Pure.

Owns the Arrow type of every Avro type, as the files have it, and where a field's `doc` goes: into the
metadata `comment` of Arrow's and Spark's fields, which Spark and Hive show as the column's comment.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from headrace.registry.decimals import is_decimal
from headrace.warehouse.written_out import TypeUnknownError, written_out

COMMENT: Final = "comment"
PLAIN: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""Other logical types stay what they are made of: times of day and nanoseconds numbers, a uuid a string."""
DECIMAL_DIGITS_MAX: Final = 38
"""Of a decimal in Spark, in Arrow's smaller one, and in Hive."""
WIDER: Final = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


def arrow_fields(schema: str) -> list[pa.Field]:
    """Returns the columns of an event's Avro schema. Raises `TypeUnknownError`."""
    found = _type(written_out(schema))
    if not pa.types.is_struct(found):
        raise TypeUnknownError("the event is no record")
    return list(found)


def commented(spark: dict[str, Any], fields: Iterable[pa.Field]) -> dict[str, Any]:
    """Returns a struct of Spark's JSON with the comments of the Arrow fields that have the same names."""
    by_name = {each.name: each for each in fields}
    return {
        **spark,
        "fields": [_commented_field(each, by_name.get(each["name"])) for each in spark["fields"]],
    }


def comment_of(field: pa.Field) -> str:
    """Returns the comment of a field; "" if it has none."""
    return str((field.metadata or {}).get(COMMENT.encode(), b"").decode())


def _commented_field(spark: dict[str, Any], found: pa.Field | None) -> dict[str, Any]:
    if found is None:
        return spark
    comment = comment_of(found)
    metadata = {COMMENT: comment} if comment else {}
    return {
        **spark,
        "type": _commented_type(spark["type"], found.type),
        "metadata": {**spark.get("metadata", {}), **metadata},
    }


def _commented_type(spark: Any, kind: pa.DataType) -> Any:
    if not isinstance(spark, dict):
        return spark
    if spark["type"] == "struct" and pa.types.is_struct(kind):
        return commented(spark, kind)
    if spark["type"] == "array" and pa.types.is_list(kind):
        return {**spark, "elementType": _commented_type(spark["elementType"], kind.value_type)}
    if spark["type"] == "map" and pa.types.is_map(kind):
        return {**spark, "valueType": _commented_type(spark["valueType"], kind.item_type)}
    return spark


def _type(schema: Any) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema)
    if isinstance(schema, str):
        if schema not in PLAIN:
            raise TypeUnknownError(f"the schema has a type {schema!r} that refers to itself")
        return PLAIN[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, list | dict):
        return _type(kind)
    if is_decimal(schema):
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if (kind, logical) in LOGICAL:
        return LOGICAL[kind, logical]
    if kind == "record":
        return pa.struct([_field(field) for field in schema["fields"]])
    if kind == "array":
        return pa.list_(pa.field("element", _type(schema["items"])))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"]))
    return _type(kind)


def _field(field: dict[str, Any]) -> pa.Field:
    doc = field.get("doc") or (field["type"].get("doc") if isinstance(field["type"], dict) else None)
    metadata = {COMMENT: str(doc)} if doc else None
    return pa.field(field["name"], _type(field["type"]), metadata=metadata)


def _union(branches: list[Any]) -> pa.DataType:
    others = [branch for branch in branches if branch != "null"]
    if len(others) == 1:
        return _type(others[0])
    if all(isinstance(each, str) for each in others) and frozenset(others) in WIDER:
        return PLAIN[WIDER[frozenset(others)]]
    # As Spark's Avro reader: a struct in which one member has a value.
    return pa.struct([pa.field(f"member{index}", _type(each)) for index, each in enumerate(others)])
