"""Tables of which files have older schemas: every tool shows the same values, in the newest shape."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from fix_warehouse import BASE_TIME_MS, NUMBER, World, click, event_schema
from headrace.tables.table import Table
from headrace.warehouse.arrow_values import evolved
from headrace.warehouse.evolution import columns
from headrace.warehouse.evolved_columns import evolved_frame
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.types import arrow_fields
from headrace.warehouse.versions import Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

FIRST: Final = BASE_TIME_MS
MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}


def schema(item: list[dict[str, Any]], blob: Any, either: Any, choice: Any, at: Any) -> dict[str, Any]:
    """An event with a record of these fields, in it and in each kind of container, and these types."""
    return event_schema(
        NUMBER,
        {"name": "one", "type": ["null", {"type": "record", "name": "Item", "fields": item}]},
        {"name": "many", "type": {"type": "array", "items": "Item"}},
        {"name": "named", "type": {"type": "map", "values": {"type": "array", "items": "Item"}}},
        {"name": "blob", "type": blob},
        {"name": "either", "type": either},
        {"name": "choice", "type": choice},
        {"name": "at", "type": at},
    )


OLD: Final = schema(
    [{"name": "sku", "type": "int"}, {"name": "label", "type": "string"}],
    "bytes",
    ["null", "string", "double"],
    "string",
    "long",
)
NEW: Final = schema(
    [
        {"name": "sku", "type": "long"},
        {"name": "title", "type": "string", "aliases": ["label"]},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
    "string",
    ["null", "boolean", "double", "string"],
    ["null", "double", "string"],
    MILLIS,
)
NAMES: Final = ("number", "one", "many", "named", "blob", "either", "choice", "at")


def union(*members: Any) -> dict[str, Any]:
    return {f"member{index}": member for index, member in enumerate(members)}


def test_old_and_new_files_show_the_same(world: World) -> None:
    """Of an inner record, a field that an alias renames was null in old files. Spark read nothing once
    a record within a map had got a field, or a type had become a union; values of a union went to the
    member at their old place.
    """
    topic = world.topic("evolved", partitions=1)
    old, at = {"sku": 1, "label": "a"}, FIRST + 5
    events = [
        click(1, FIRST, one=old, many=[old], named={"k": [old]}, blob=b"x", either="e", choice="c", at=at),
        click(2, FIRST, one=None, many=[], named={}, blob=b"", either=2.5, choice="", at=at),
        click(3, FIRST, one=None, many=[], named={}, blob=b"", either=None, choice="", at=10**18),
    ]
    topic.publish(events, OLD)
    topic.load()
    new, time = {"sku": 2, "title": "b", "price": 1.5}, datetime.fromtimestamp(at / 1000, UTC)
    event = click(
        4, FIRST, one=new, many=[new], named={"k": [new]}, blob="y", either=True, choice=0.5, at=time
    )
    topic.publish([event], NEW)
    topic.load()
    table = Table(WarehouseOptions(**world.addresses), topic.name, Wanted(is_sealed=False))
    shown = {"sku": 1, "title": "a", "price": None}
    expected = [
        (1, shown, [shown], {"k": [shown]}, "x", union(None, None, "e"), union(None, "c"), time),
        (2, None, [], {}, "", union(None, 2.5, None), union(None, ""), time),
        (3, None, [], {}, "", None, union(None, ""), None),
        (4, new, [new], {"k": [new]}, "y", union(True, None, None), union(0.5, None), time),
    ]
    rows = sorted(table.arrow(NAMES).to_pylist(maps_as_pydicts="strict"), key=lambda row: row["number"])
    assert [tuple(row.values()) for row in rows] == expected
    frame = table.spark(world.spark).select(*NAMES)
    found = [row.asDict(recursive=True) for row in frame.orderBy("number").collect()]
    for row in found:
        row["at"] = row["at"] and row["at"].astimezone(UTC)
    assert [tuple(row.values()) for row in found] == expected
    newest = {each.name: each.type for each in arrow_fields(json.dumps(NEW))}
    assert [kind for name, kind in frame.dtypes if name in ("blob", "at")] == ["string", "timestamp"]
    assert table.arrow(NAMES).schema.types == [newest[name] for name in NAMES]


def test_a_union_of_which_one_type_is_left() -> None:
    def event(kind: Any) -> str:
        return json.dumps({"type": "record", "name": "E", "fields": [{"name": "v", "type": kind}]})

    older, newest = event(["int", "float", "long"]), event("double")
    [(name, step)] = columns(newest, older).values()
    values = [union(1, None, None), None, union(None, None, 7), union(None, 0.5, None)]
    array = pa.array(values, arrow_fields(older)[0].type)
    assert (name, evolved(array, pa.float64(), step).to_pylist()) == ("v", [1.0, None, 7.0, 0.5])
    [(_, step)] = columns(event("long"), event(MILLIS)).values()
    times = pa.array([5_000, None], pa.timestamp("us", "UTC"))
    assert evolved(times, pa.int64(), step).to_pylist() == [5, None]
    assert columns('"string"', older) == {}


def test_members_of_a_union_that_have_one_short_name() -> None:
    def event(*namespaces: str) -> str:
        items = [
            {"type": "record", "name": f"{each}.Item", "fields": [{"name": each, "type": "int"}]}
            for each in namespaces
        ]
        return json.dumps({"type": "record", "name": "E", "fields": [{"name": "v", "type": items}]})

    older, newest = event("a", "b"), event("b", "a")
    [(_, step)] = columns(newest, older).values()
    array = pa.array([union({"a": 1}, None), union(None, {"b": 2})], arrow_fields(older)[0].type)
    shown = evolved(array, arrow_fields(newest)[0].type, step).to_pylist()
    assert shown == [union(None, {"a": 1}), union({"b": 2}, None)]


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


DAY: Final = logical("int", "date")
LOCAL: Final = logical("long", "local-timestamp-millis")
AT: Final = datetime(1970, 1, 1, 0, 0, 1)
ONE_MS: Final = datetime(1970, 1, 1, 0, 0, 0, 1_000)
CHANGED: Final = [
    ("int", [1, None], MILLIS, [ONE_MS.replace(tzinfo=UTC), None]),
    ("int", [1, None], LOCAL, [ONE_MS, None]),
    ("long", [1_000, 2**62], LOCAL, [AT, None]),
    (LOCAL, [AT, None], "long", [1_000, None]),
    (LOCAL, [AT, None], MILLIS, [AT.replace(tzinfo=UTC), None]),
    (MILLIS, [AT.replace(tzinfo=UTC), None], LOCAL, [AT, None]),
    (MILLIS, [AT.replace(tzinfo=UTC), None], "double", [1_000.0, None]),
    ("int", [3, 2**31 - 1, None], DAY, [date(1970, 1, 4), None, None]),
    (DAY, [date(1970, 1, 4), None], "int", [3, None]),
    (DAY, [date(1970, 1, 4), None], "long", [3, None]),
    ("bytes", [b"a", b"\xff", None], "string", ["a", None, None]),
    ("long", [2**53 + 1, None], "double", [2.0**53, None]),
    ("int", [2**24 + 1, None], "float", [2.0**24, None]),
]


def moved(older: Any, values: list[Any], newest: Any) -> tuple[pa.Array, pa.DataType, Any]:
    """The values as a file of the older schema has them, the newest type, and the steps of the column."""
    old, new = event_schema({"name": "v", "type": older}), event_schema({"name": "v", "type": newest})
    before, after = (arrow_fields(json.dumps(each))[1].type for each in (old, new))
    return pa.array(values, before), after, columns(json.dumps(new), json.dumps(old))


@pytest.mark.parametrize(("older", "values", "newest", "shown"), CHANGED)
def test_every_tool_shows_the_older_values(
    spark: SparkSession, older: Any, values: list[Any], newest: Any, shown: list[Any]
) -> None:
    """No level refuses such a schema. Reads of the table failed then, or old numbers were other times."""
    array, kind, steps = moved(older, values, newest)
    assert evolved(array, kind, steps["v"][1]).to_pylist() == shown
    in_lists = moved({"type": "array", "items": older}, [values], {"type": "array", "items": newest})
    assert evolved(in_lists[0], in_lists[1], in_lists[2]["v"][1]).to_pylist() == [shown]
    rows = spark.createDataFrame(pa.table({"v": in_lists[0]}))
    [row] = evolved_frame(rows, [pa.field("v", in_lists[1])], in_lists[2]).collect()
    assert [_utc(each, kind) for each in row.v] == shown


def _utc(value: Any, kind: pa.DataType) -> Any:
    """Spark's times are in the local zone of Python, which is UTC here."""
    is_moment = pa.types.is_timestamp(kind) and kind.tz is not None
    return value.astimezone(UTC) if is_moment and value is not None else value
