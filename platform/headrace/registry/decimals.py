"""Which types are decimals: Avro ignores a logical type whose attributes are missing or invalid. Pure."""

import math
from typing import Any, Final

DIGITS_MAX: Final = 2**31 - 1
"""Of a decimal, in Java."""


def is_decimal(schema: dict[str, Any]) -> bool:
    """Whether a type of a schema is a decimal, as Java's Avro sees it."""
    precision: Any = schema.get("precision")
    scale: Any = schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or not _is_int(precision) or not _is_int(scale):
        return False
    if schema["type"] == "fixed":
        digits = math.floor((8 * schema["size"] - 1) * math.log10(2))
    else:
        digits = DIGITS_MAX if schema["type"] == "bytes" else 0
    return bool(0 < precision <= digits and 0 <= scale <= precision)


def without_invalid_decimals(schema: Any) -> Any:
    """Returns a schema in which what claims to be a decimal, and is none, is plain bytes: fastavro would fail
    at its values.
    """
    if isinstance(schema, list):
        return [without_invalid_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = schema.keys() & {"type", "items", "values", "fields"}
    kept = schema | {key: without_invalid_decimals(schema[key]) for key in inner}
    if kept.get("logicalType") == "decimal" and isinstance(kept.get("type"), str) and not is_decimal(kept):
        del kept["logicalType"]
    return kept


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
