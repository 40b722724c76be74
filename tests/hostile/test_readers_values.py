"""Strings that are not UTF-8, and times of no calendar: dead letters that say so; the table can be read."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fix_bad_values import as_written, framed_unchecked
from fix_warehouse import BASE_TIME_MS, HEADER, HOUR_MS, NUMBER, WORD, World, event_schema
from headrace.warehouse.api import replay_topics, verify_topics
from headrace.warehouse.decode import decoding_of
from headrace.warehouse.hourly import HourlyFiles
from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import TopicSchemas, WriterSchema
from headrace.warehouse.source.columns import END_MARK
from headrace.warehouse.staging_task import PAYLOAD_SCHEMA
from headrace.warehouse.tables import read

BAD = b"caf\xe9"
DAYS = (-719_000, 2_932_000)
DAY_YEARS = [(date(1970, 1, 1) + timedelta(day)).year for day in DAYS]
FIRST_MS, LAST_MS = (
    round(datetime(*day, tzinfo=UTC).timestamp() * 1000) for day in ((1, 1, 3), (9999, 12, 29))
)


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


NESTED = {
    "type": "record",
    "name": "Nested",
    "fields": [{"name": "note", "type": ["null", "string"]}, {"name": "n", "type": "int"}],
}
PLAIN_FIELDS: list[dict[str, Any]] = [
    NUMBER,
    WORD,
    {"name": "nested", "type": NESTED},
    {"name": "maybe", "type": ["null", "test.Nested"]},
    {"name": "seen", "type": ["null", logical("long", "timestamp-millis")]},
    {"name": "exact", "type": logical("long", "timestamp-micros")},
    {"name": "local", "type": logical("long", "local-timestamp-millis")},
    {"name": "day", "type": logical("int", "date")},
    {"name": "clock", "type": logical("long", "time-micros")},
    {"name": "spare", "type": logical("int", "time-millis")},
]
PROGRAM = event_schema(*PLAIN_FIELDS)
FROM_AVRO = event_schema(
    *PLAIN_FIELDS,
    {"name": "list", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "map", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    {"name": "either", "type": ["string", "long", {"type": "enum", "name": "Kind", "symbols": ["A"]}]},
    {"name": "days", "type": {"type": "array", "items": logical("int", "date")}},
    {"name": "nanos", "type": ["null", logical("long", "timestamp-nanos")]},
)
BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"word": BAD}, "field word: the string"),
    ({"nested": {"note": BAD, "n": 1}}, "field nested.note: the string"),
    ({"maybe": {"note": BAD, "n": 1}}, "field maybe.note: the string"),
    ({"seen": 2**63 - 1}, "field seen: "),
    ({"seen": LAST_MS * 1000}, "field seen: "),  # microseconds
    ({"exact": 2**63 - 1}, "field exact: "),
    ({"exact": -(2**62)}, "field exact: "),
    ({"local": -LAST_MS}, "field local: "),
    ({"day": 2**31 - 1}, "field day: "),
    ({"day": -(2**31)}, "field day: "),
]
BAD_CONTAINED: list[tuple[dict[str, Any], str]] = [
    ({"list": [b"good", None, BAD]}, "field list[]: the string"),
    ({"map": {"key": [b"good", BAD]}}, "field map[][]: the string"),
    ({"map": {"KEY": []}}, "field map: the map key"),
    ({"either": BAD}, "field either: the string"),
    ({"days": [0, 2**31 - 1]}, "field days[]: "),
]


def event(number: int, **changes: Any) -> dict[str, Any]:
    header = {
        "time": BASE_TIME_MS + number,
        **dict.fromkeys(("datacenter", "server", "service", "guid"), b"x"),
    }
    good: dict[str, Any] = {
        "header": header,
        "number": number,
        "word": "w\u00e9".encode(),
        "nested": {"note": b"n", "n": number},
        "maybe": None,
        "seen": (None, FIRST_MS, LAST_MS)[number % 3],
        "exact": (FIRST_MS, LAST_MS)[number % 2] * 1000,
        "local": (LAST_MS, FIRST_MS)[number % 2],
        "day": DAYS[number % 2],
        "list": [b"a", None],
        "map": {"key": [b"v"]},
        "either": b"text" if number % 2 else number,
        "days": [0, -719_000],
        # No times of a day or of a calendar, but numbers, which is what they stay.
        "clock": -(2**63),
        "spare": 2**31 - 1,
        "nanos": 2**63 - 1,
    }
    return good | changes


@pytest.mark.spark
@pytest.mark.hdfs
@pytest.mark.parametrize("schema", [PROGRAM, FROM_AVRO], ids=["program", "from_avro"])
def test_values_that_no_reader_could_show_are_dead_letters(world: World, schema: dict[str, Any]) -> None:
    topic = world.topic("unshowable", partitions=1)
    schema_id = topic.register(schema)
    bad = BAD_VALUES + (BAD_CONTAINED if schema is FROM_AVRO else [])
    values: list[tuple[bytes | None, int]] = []
    for number, (changes, _) in enumerate(bad):
        spoiled = framed_unchecked(schema_id, schema, event(1000 + number, **changes)).replace(
            b"KEY", BAD[1:]
        )
        values += [
            (framed_unchecked(schema_id, schema, event(number)), BASE_TIME_MS),
            (spoiled, BASE_TIME_MS),
        ]
    topic.send(values)
    result = topic.load()
    assert (result.rows, result.dead_lettered) == (len(bad), len(bad))

    rows = topic.table().orderBy("number").collect()
    assert [row.number for row in rows] == list(range(len(bad)))
    assert [row.seen and row.seen.year for row in rows] == [(None, 1, 9999)[n % 3] for n in range(len(bad))]
    assert {(row.word, row.clock, row.spare) for row in rows} == {("w\u00e9", -(2**63), 2**31 - 1)}
    assert {row.day.year for row in rows} == set(DAY_YEARS)
    warehouse = WarehouseOptions(**{**world.addresses, "audit": False})
    assert (
        read(world.spark, topic.name, warehouse=warehouse).groupBy("exact", "local", "day").count().collect()
    )

    [letters] = [path for path, _ in world.hdfs.walk(topic.paths.dead)]
    dead = world.spark.read.parquet(f"{world.process.hdfs_url}{letters}").orderBy("_offset").collect()
    assert len(dead) == len(bad)
    for letter, (_, reason) in zip(dead, bad, strict=True):
        assert letter.reason.startswith(reason), letter.reason
        assert ("UTF-8" in letter.reason) == ("string" in reason or "key" in reason)
    assert verify_topics(warehouse, [topic.name])[0].problems == ()
    [replayed] = replay_topics(world.spark, warehouse, [topic.name])
    assert (replayed.rows, replayed.still_dead) == (0, len(bad))


# --- the task of a load, without Spark ---


def payload_batch(values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array([value[5:] + END_MARK for value in values], pa.binary()),
        pa.array([7] * count, pa.int32()),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([BASE_TIME_MS * 1000] * count, pa.int64()).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PAYLOAD_SCHEMA)


def test_a_task_keeps_good_events_and_writes_nothing_of_the_others() -> None:
    writer = WriterSchema(7, 1, json.dumps(PROGRAM))
    decoding = decoding_of(TopicSchemas("s", writer, (writer,)))
    assert decoding is not None
    values = []
    for number, (changes, _) in enumerate(BAD_VALUES):
        values.append(framed_unchecked(7, PROGRAM, event(number)))
        values.append(framed_unchecked(7, PROGRAM, event(1000 + number, **changes)))
    rows, hours = decoding.rows(payload_batch(values))
    rows.validate(full=True)
    assert hours.tolist() == [BASE_TIME_MS // HOUR_MS, DEAD_HOUR] * len(BAD_VALUES)
    stored: dict[int, Any] = {}
    files = HourlyFiles(
        decoding.schema, decoding.spark_schema, lambda hour, _, data: stored.update({hour: data})
    )
    files.append(rows, hours)
    assert files.close() == 2
    good = pq.read_table(io.BytesIO(stored[BASE_TIME_MS // HOUR_MS].to_pybytes())).to_pylist()
    assert [row["number"] for row in good] == list(range(len(BAD_VALUES)))
    assert {row["day"].year for row in good} == set(DAY_YEARS)
    dead = pq.read_table(io.BytesIO(stored[DEAD_HOUR].to_pybytes()))
    assert dead["_offset"].to_pylist() == list(range(1, 2 * len(BAD_VALUES), 2))
    assert {dead[name].null_count for name in ("number", "word", "seen", "exact", "day")} == {len(BAD_VALUES)}


def test_the_tests_own_writer_writes_what_the_schema_means() -> None:
    assert as_written(HEADER)["fields"][0] == {"name": "time", "type": {"type": "long"}}
    value = framed_unchecked(7, PROGRAM, event(1, clock=0, spare=0))
    found: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), fastavro.parse_schema(PROGRAM), None)
    assert (found["word"], found["seen"].year, found["number"]) == ("w\u00e9", 1, 1)
