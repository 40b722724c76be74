"""An event with a column of every Avro type, and what each tool shows: for the page, and for tests of it."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from fix_warehouse import NUMBER, click, event_schema


class TypeRow(NamedTuple):
    """A row of the table of types in docs/warehouse.md. `avro` is the type as JSON, `value` an event's."""

    name: str
    avro: Any
    value: Any
    shown: str
    """The Avro type as the page writes it."""


INNER: Final = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int", "doc": "Across."}]}
TYPES: Final = (
    TypeRow("flag", "boolean", True, "boolean"),
    TypeRow("small", "int", 7, "int"),
    TypeRow("large", "long", 2**40, "long"),
    TypeRow("ratio", "float", 0.5, "float"),
    TypeRow("exact", "double", 0.1, "double"),
    TypeRow("raw", "bytes", b"\0\xff", "bytes"),
    TypeRow("name", "string", "ünï", "string"),
    TypeRow("maybe", ["null", "string"], None, "union of null and T"),
    TypeRow("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B", "enum"),
    TypeRow("digest", {"type": "fixed", "name": "Digest", "size": 4}, b"abcd", "fixed"),
    TypeRow(
        "price",
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        Decimal("12.30"),
        "decimal(10, 2), bytes or fixed",
    ),
    TypeRow("day", {"type": "int", "logicalType": "date"}, date(2026, 11, 20), "date"),
    TypeRow("clock", {"type": "int", "logicalType": "time-millis"}, 3_600_000, "time-millis"),
    TypeRow("clock_us", {"type": "long", "logicalType": "time-micros"}, 3_600_000_000, "time-micros"),
    TypeRow(
        "at",
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime(2026, 11, 20, 18, 0, 0, 5000, UTC),
        "timestamp-millis",
    ),
    TypeRow(
        "at_us",
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(2026, 11, 20, 18, 0, 0, 5, UTC),
        "timestamp-micros",
    ),
    TypeRow(
        "local",
        {"type": "long", "logicalType": "local-timestamp-millis"},
        1_763_632_800_005,
        "local-timestamp-millis, -micros",
    ),
    TypeRow(
        "id",
        {"type": "string", "logicalType": "uuid"},
        "14916d9f-9347-45ff-9c0e-65babaa61665",
        "uuid",
    ),
    TypeRow("words", {"type": "array", "items": "string"}, ["a", "b"], "array of T"),
    TypeRow("counts", {"type": "map", "values": "long"}, {"a": 1}, "map of T"),
    TypeRow("inner", INNER, {"x": 3}, "record"),
    TypeRow("either", ["int", "long"], 5, "union of int and long (float and double)"),
    TypeRow("mixed", ["null", "string", "double"], "s", "any other union"),
)
SCHEMA: Final = event_schema(
    NUMBER,
    *({"name": row.name, "type": row.avro, "doc": f"The {row.name}; it's a test."} for row in TYPES),
)


def event(number: int, time_ms: int) -> dict[str, Any]:
    """An event of `SCHEMA`."""
    made = click(number, time_ms, **{row.name: row.value for row in TYPES})
    del made["word"]
    return made
