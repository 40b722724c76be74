"""Plain reads of `hourly/`, as any tool does them, and tables that an older headrace began."""

import pytest

from fix_warehouse import BASE_TIME_MS, HOUR_MS, ROOT, World, click
from headrace.warehouse import read
from headrace.warehouse.api import compact_topics, list_hours, move_topics, retain_topics, verify_topics
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.seal import seal_hour

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


def warehouse_of(world: World) -> WarehouseOptions:
    return WarehouseOptions(**{**world.addresses, "audit": False})


def test_days_and_hours_are_columns(world: World) -> None:
    topic = world.topic("plain")
    topic.publish([click(number, BASE_TIME_MS + number * HOUR_MS // 10) for number in range(30)])
    topic.load()
    rows = world.spark.read.parquet(f"{world.process.hdfs_url}{topic.paths.hourly}")
    assert rows.dtypes[-2:] == [("dt", "date"), ("hour", "int")]
    counts = rows.groupBy("dt", "hour").count().orderBy("dt", "hour").collect()
    assert [(str(row.dt), row.hour, row["count"]) for row in counts] == [
        ("2023-11-14", 22, 10),
        ("2023-11-14", 23, 10),
        ("2023-11-15", 0, 10),
    ]
    # A filter on them leaves out whole files, unread.
    plan = rows.where("dt = '2023-11-15'")._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [isnotnull(dt#" in plan


def test_hours_of_an_older_headrace_are_read_and_moved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, warehouse = world.topic("older"), warehouse_of(world)
    with monkeypatch.context() as patch:
        patch.setattr(TopicPaths, "hour_dir", TopicPaths.older_hour_dir)
        for part in range(2):
            topic.publish([click(number, BASE_TIME_MS) for number in range(part * 10, part * 10 + 10)])
            topic.load()
    assert all(path.startswith(f"{topic.paths.hourly}/2023/11/14/22/") for path in topic.files())
    topic.publish([click(number, BASE_TIME_MS + HOUR_MS) for number in range(20, 30)])
    topic.load()
    seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {}, root=ROOT)

    def numbers() -> list[int]:
        return sorted(row.number for row in read(world.spark, topic.name, warehouse=warehouse).collect())

    assert numbers() == list(range(30))
    plain = f"{world.process.hdfs_url}{topic.paths.hourly}"
    with pytest.raises(Exception, match=r"(?i)conflicting directory structures"):
        world.spark.read.parquet(plain).collect()

    moved = move_topics(warehouse, [topic.name])[0]
    assert (moved.sequences, moved.hours) == ((3,), (BASE_TIME_MS,))
    assert world.spark.read.parquet(plain).groupBy("hour").count().orderBy("hour").collect() == [
        (22, 20),
        (23, 10),
    ]
    assert [entry.name for entry in world.hdfs.entries(topic.paths.hourly)] == ["dt=2023-11-14"]
    assert numbers() == list(range(30))
    assert verify_topics(warehouse, [topic.name])[0].problems == ()
    assert [(hour.sealed_version, hour.is_stale) for hour in list_hours(warehouse, topic.name)] == [
        (1, False),
        (None, False),
    ]
    # What comes later works on the moved files.
    assert compact_topics(world.spark, warehouse, [topic.name])[0].rows == 20
    assert numbers() == list(range(30))
    retain_topics(warehouse, [topic.name], keep_ms=0)
    assert world.hdfs.entries(topic.paths.hourly) == []
