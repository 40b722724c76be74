"""Both ways of decoding a load: by its own tasks, and by Spark's `from_avro`. Attempts that do not count."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from fix_warehouse import BASE_TIME_MS, NUMBER, ROOT, WORD, TestTopic, World, click, event_schema
from headrace.audit.batches.tally import RunningTally
from headrace.warehouse import stage
from headrace.warehouse.api import verify_topics
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.decode import decoded_event, decoding_of
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.manifest import LoadedRange
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.planning import plan_topic
from headrace.warehouse.schemas import Registries, TopicSchemas, WriterSchema, topic_schemas
from headrace.warehouse.source.columns import END_MARK
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches
from headrace.warehouse.staging_task import StagedTask, StagingTask
from headrace.wire.content import hex_of, total

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

MANY = event_schema(
    NUMBER,
    WORD,
    {"name": "kind", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]},
    {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 4}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "ratio", "type": ["double", "null"]},
    {"name": "small", "type": "float"},
    {"name": "is_new", "type": "boolean"},
    {"name": "data", "type": "bytes"},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
)


def many(number: int) -> dict[str, Any]:
    return click(
        number,
        BASE_TIME_MS + number * 1000,
        kind=(None, "A", "B")[number % 3],
        key=number.to_bytes(4, "big"),
        day=number,
        ratio=None if number % 2 else number / 7,
        small=number / 2,
        is_new=number % 5 == 0,
        data=b"\xff" * (number % 4),
        local=number * 1000,
    )


def rows_of(topic: TestTopic, root: str) -> list[Any]:
    files = [path for path, _ in topic.world.hdfs.walk(f"{root}/{topic.name}/hourly")]
    table = topic.world.spark.read.parquet(*[f"{topic.world.process.hdfs_url}{path}" for path in files])
    return [table.schema.json(), *sorted(table.collect(), key=lambda row: (row._partition, row._offset))]


def without_contents(ranges: Iterable[LoadedRange]) -> list[LoadedRange]:
    return [replace(each, hours=tuple(replace(hour, content=None) for hour in each.hours)) for each in ranges]


def contents_counted(topic: TestTopic, loaded: LoadedRange) -> dict[int, str | None]:
    """What an auditor counts of the same addresses, by hour."""
    range_ = Range(topic.name, loaded.partition, loaded.from_address, loaded.to_address)
    tally = RunningTally(HOUR_MS)
    for batch in read_batches(range_, SourceOptions(bootstrap=(topic.world.bootstrap,))):
        tally.feed(batch.data)
    hours = {span.bucket_start_ms for span in tally.spans}
    return {
        hour_ms: hex_of(total(span.content for span in tally.spans if span.bucket_start_ms == hour_ms))
        for hour_ms in hours
    }


def test_both_ways_write_the_same_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = world.topic("both")
    topic.publish([many(number) for number in range(5_000)], MANY)
    newer = event_schema(
        {"name": "number", "type": "double"},
        {"name": "term", "type": ["null", "string"], "aliases": ["word"], "default": None},
        {"name": "added", "type": "int", "default": 7},
        *MANY["fields"][3:],
    )
    topic.publish([{**many(number), "term": "t", "added": number} for number in range(5_000, 5_010)], newer)
    topic.send([(b"no framing", BASE_TIME_MS), (None, BASE_TIME_MS)])
    first = topic.load()
    monkeypatch.setattr(stage, "decoding_of", lambda _: None)
    monkeypatch.setattr("headrace.warehouse.dead.decoding_of", lambda _: None)
    second = topic.load(root="/by-from-avro")
    assert (first.rows, first.dead_lettered) == (5_010, 2)
    assert (second.rows, second.dead_lettered, second.hours) == (first.rows, 2, first.hours)
    assert without_contents(second.ranges) == without_contents(first.ranges)
    assert {hour.content for loaded in second.ranges for hour in loaded.hours} == {None}
    for loaded in first.ranges:
        assert {h.hour_ms: h.content for h in loaded.hours} == contents_counted(topic, loaded)
    assert rows_of(topic, ROOT) == rows_of(topic, "/by-from-avro")


def test_a_schema_with_an_array_is_decoded_by_from_avro(world: World) -> None:
    topic = world.topic("lists")
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
    topic.publish(
        [click(number, BASE_TIME_MS, tags=["x"] * (number % 3)) for number in range(100)],
        event_schema(NUMBER, WORD, tags),
    )
    with Registries(world.registry_url) as registries:
        assert decoding_of(topic_schemas(f"{topic.name}-value", registries)) is None
    assert topic.load().rows == 100
    assert {row.number: row.tags for row in topic.table().collect()} == {
        number: ["x"] * (number % 3) for number in range(100)
    }


@pytest.mark.parametrize("is_nested", [False, True])
def test_from_avro_reads_a_field_by_its_own_name_beside_one_that_is_its_alias(
    spark: SparkSession, is_nested: bool
) -> None:
    """Java's Avro renames the alias, too, and has two fields of one name: such events were dead letters."""

    def event(*fields: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
        record = {"type": "record", "name": name, "fields": list(fields), **more}
        if not is_nested:
            return record
        return {"type": "record", "name": "Event", "fields": [{"name": "of", "type": record}]}

    old, new = {"name": "old", "type": "string"}, {"name": "new", "type": "string"}
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}}
    writer = event(old, new, tags, name="a.Item")
    reader = event({**new, "aliases": ["old"]}, tags, name="b.Thing", aliases=["a.Item"])
    value: dict[str, Any] = {"old": "o", "new": "n", "tags": ["t"]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, writer, {"of": value} if is_nested else value)
    readers = WriterSchema(2, 2, json.dumps(reader))
    schemas = TopicSchemas("s", readers, (WriterSchema(1, 1, json.dumps(writer)), readers))
    rows = spark.createDataFrame([(1, out.getvalue() + END_MARK)], "schemaId int, payload binary")
    [row] = rows.select(decoded_event(schemas).alias("decoded")).select("decoded.event.*").collect()
    shown = {"new": "n", "tags": ["t"]}
    assert row.asDict(recursive=True) == ({"of": shown} if is_nested else shown)


def test_from_avro_takes_a_time_for_what_its_writer_means(spark: SparkSession) -> None:
    """Milliseconds became microseconds, so such events were in the hours of January 1970."""

    def event(unit: str) -> dict[str, Any]:
        kind: Any = {"type": "long", "logicalType": f"timestamp-{unit}"}
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": kind}]}
        kinds = [kind, ["null", kind], {"type": "array", "items": ["null", kind]}, inner]
        fields = [{"name": f"f{at}", "type": each} for at, each in enumerate(kinds)]
        return {"type": "record", "name": "Event", "fields": fields}

    time = datetime(2026, 11, 20, 18, 0, 0, 5000, UTC)
    value = {"f0": time, "f1": time, "f2": [time, None], "f3": {"at": time}}
    for old, new in (("millis", "micros"), ("micros", "millis")):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, event(old), value)
        reader = WriterSchema(2, 2, json.dumps(event(new)))
        schemas = TopicSchemas("s", reader, (WriterSchema(1, 1, json.dumps(event(old))), reader))
        rows = spark.createDataFrame([(1, out.getvalue() + END_MARK)], "schemaId int, payload binary")
        moments = rows.select(decoded_event(schemas).alias("d")).selectExpr(
            "unix_micros(d.event.f0)",
            "unix_micros(d.event.f1)",
            "unix_micros(d.event.f2[0])",
            "unix_micros(d.event.f3.at)",
        )
        assert set(moments.collect()[0]) == {round(time.timestamp() * 1_000_000)}


class _Tasks:
    """Stands for Spark's scheduler when it runs every task twice and takes one result."""

    defaultParallelism = 2

    def __init__(self, *_: Any) -> None:
        self.sparkContext = self
        self._tasks: list[StagingTask] = []
        self._run: Callable[[StagingTask], StagedTask] | None = None

    def parallelize(self, tasks: list[StagingTask], _count: int) -> _Tasks:
        self._tasks = tasks
        return self

    def map(self, run: Callable[[StagingTask], StagedTask]) -> _Tasks:
        self._run = run
        return self

    def collect(self) -> list[StagedTask]:
        assert self._run is not None
        run = self._run
        return [[run(task), run(task)][index % 2] for index, task in enumerate(self._tasks)]


def test_an_attempt_that_spark_does_not_count_leaves_no_row(world: World) -> None:
    topic = world.topic("attempts", partitions=3)
    topic.publish([click(number, BASE_TIME_MS + number * 9_000) for number in range(3_000)])
    warehouse = WarehouseOptions(**{**world.addresses, "audit": False})
    table = TopicTable(topic.name, warehouse, world.hdfs)
    change = Change(table, "load")
    ranges = stage_ranges(table)
    with Registries(world.registry_url) as registries:
        schemas = topic_schemas(f"{topic.name}-value", registries)
    for _ in range(2):
        # The second run replaces what the first one staged.
        stage.stage_load(_Tasks(), table, ranges, schemas, f"{change.staging}/hours")
        staged = stage.staged_files(world.hdfs, f"{change.staging}/hours")
        assert sum(file.count.rows for file in staged) == 3_000
    table.log.discard(change.change_id)
    assert topic.load().rows == 3_000
    assert verify_topics(warehouse, [topic.name])[0].problems == ()


def stage_ranges(table: TopicTable) -> Any:
    return plan_topic(table, table.log.state()).ranges
