"""Which schemas a load can use: with some, neither Java's Avro nor a compiled program comes to an end. Pure.

Anybody may register a schema and put its id before a value. Java's Avro and our programs write every type
out where it is referred to, and Java's reader descends by recursion: a small schema can take all memory, and
a small value ends the JVM.
"""

import json
from collections import Counter
from functools import lru_cache
from typing import Any, Final

import fastavro.schema

from headrace.registry.decimals import is_decimal
from headrace.registry.value_reading import ValueReader, endless, refers_to_itself
from headrace.warehouse.types import DECIMAL_DIGITS_MAX
from headrace.warehouse.written_out import TOO_MANY, WRITTEN_OUT_MAX, type_count, written_out

DEPTH_MAX: Final = 64
"""Of a value whose schema refers to itself. Java's stack has room for hundreds."""
SCHEMAS_KEPT_MAX: Final = 64
OUR_COLUMNS: Final = ("_hour", "_partition", "_offset", "_timestamp", "_schema_id")
"""What a load adds to the event's columns. Spark does not tell names by case."""


def unusable(text: str) -> str:
    """Returns why no value of a writer's schema can be read in a load; "" if they can."""
    try:
        schema = _parsed(text)
    except Exception as error:
        # A registry's schema can raise anything in json and fastavro.
        return f"it can't be parsed ({type(error).__name__}: {error})"[:200]
    if problem := endless(schema):
        return f"it has {problem}"
    if type_count(schema) > WRITTEN_OUT_MAX:
        return TOO_MANY
    return ""


def no_table(text: str) -> str:
    """Returns why a reader's schema, which is usable, makes no table; "" if it does."""
    if refers_to_itself(_parsed(text)):
        return "it has a type that refers to itself, and no column of a table can"
    event = written_out(text)
    if _kind(event) == "record":
        names = [*(field["name"] for field in event["fields"]), *OUR_COLUMNS]
        if twice := _alike(names):
            return f"its field {twice} has the name of a column of every table, or of another field"
        return next((problem for field in event["fields"] if (problem := _no_column(field, ""))), "")
    return ""


def can_nest(text: str) -> bool:
    """Whether values of this schema can nest without a bound: they must be `is_shallow` to be decoded."""
    return refers_to_itself(_parsed(text))


def is_shallow(payload: bytes, text: str) -> bool:
    """Whether a value of this schema is one, and nests at most `DEPTH_MAX` deep. For executors, too."""
    try:
        value, _ = _reader(text).read(payload, unicode_errors="surrogateescape")
    except Exception:
        # Python's reader may raise anything for arbitrary bytes: for too deep ones, RecursionError.
        return False
    return _depth_is_at_most(value, DEPTH_MAX)


def without_logical_types(schema: Any) -> Any:
    """Returns a schema by which times and decimals are read as they are written."""
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType"}
    inner = kept.keys() & {"type", "items", "values", "fields"}
    return kept | {key: without_logical_types(kept[key]) for key in inner}


def _no_column(field: Any, path: str) -> str:
    """Returns why a field makes no column; "" if it does."""
    path = f"{path}.{field['name']}" if path else field["name"]
    left = [field["type"]]
    while left:
        part = left.pop()
        kind = _kind(part)
        if isinstance(part, list):
            if not any(each != "null" for each in part):
                return f"{path} is a union without a type besides null"
            left += part
        elif kind == "record":
            names = [each["name"] for each in part["fields"]]
            if not names:
                return f"{path} is a record without fields"
            if twice := _alike(names):
                return f"{path} has two fields whose names differ in case only, such as {twice}"
            if problem := next((found for each in part["fields"] if (found := _no_column(each, path))), ""):
                return problem
        elif isinstance(part, dict):
            if is_decimal(part) and part["precision"] > DECIMAL_DIGITS_MAX:
                return f"{path} is a decimal of more than {DECIMAL_DIGITS_MAX} digits"
            left += [part[key] for key in ("items", "values") if key in part]
            left += [part["type"]] if isinstance(part["type"], dict | list) else []
    return ""


def _alike(names: list[str]) -> str:
    """Returns a name that another one is like, but for case; "" if there is none."""
    counts = Counter(map(str.lower, names))
    return next((name for name in names if counts[name.lower()] > 1), "")


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


@lru_cache(SCHEMAS_KEPT_MAX)
def _parsed(text: str) -> Any:
    return fastavro.schema.parse_schema(json.loads(text))


@lru_cache(SCHEMAS_KEPT_MAX)
def _reader(text: str) -> ValueReader:
    return ValueReader(without_logical_types(json.loads(text)))


def _depth_is_at_most(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False
