"""Loads end to end: brokers, registry, Spark, HDFS."""

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from fix_broker import StartCluster
from fix_warehouse import (
    BASE_TIME_MS,
    CLICK,
    HOUR_MS,
    NUMBER,
    WORD,
    TestTopic,
    World,
    click,
    event_schema,
)
from headrace.client import Admin
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse import crash, loading, read, stage
from headrace.warehouse.api import (
    compact_topics,
    list_hours,
    load_topics,
    plan_loads,
    replay_topics,
    retain_topics,
    verify_topics,
)
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadGapError
from headrace.warehouse.schemas import IncompatibleSchemaError, SchemasError
from headrace.warehouse.seal import NotSealedError, due_hours, seal_hour
from headrace.warehouse.source.metadata import MetadataClient

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


def clicks(first: int, count: int, *, step_ms: int = 1000) -> list[dict[str, Any]]:
    return [click(number, BASE_TIME_MS + number * step_ms) for number in range(first, first + count)]


def warehouse_of(world: World, **changes: Any) -> WarehouseOptions:
    return WarehouseOptions(**{**world.addresses, "audit": False, **changes})


def numbers(topic: TestTopic) -> list[int]:
    return sorted(row.number for row in topic.table().select("number").collect())


def test_every_event_lands_once_in_the_hour_of_its_time(world: World) -> None:
    topic = world.topic("clicks", partitions=3)
    events = clicks(0, 9_000)
    topic.publish(events[:5_000])
    first = topic.load()
    assert (first.sequence, first.rows, first.dead_lettered) == (0, 5_000, 0)
    assert first.hours == {BASE_TIME_MS: 3600, BASE_TIME_MS + HOUR_MS: 1400}
    topic.publish(events[5_000:])
    second = topic.load()
    assert (second.sequence, second.rows) == (1, 4_000)
    assert topic.load().sequence is None

    rows = topic.table().selectExpr("number", "word", "header.*", "_partition", "_offset").collect()
    assert sorted(row.number for row in rows) == list(range(9_000))
    assert len({(row._partition, row._offset) for row in rows}) == 9_000
    assert {row.number: row.word for row in rows} == {event["number"]: event["word"] for event in events}
    for path in topic.files():
        assert path.startswith(f"{topic.paths.hourly}/dt=2023-11-1")
    assert not world.hdfs.entries(topic.paths.staging)
    assert verify_topics(warehouse_of(world), [topic.name])[0].problems == ()


class Died(BaseException):
    """Stands for SIGKILL: nothing may catch it, nothing after it runs."""


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The steps at which the process dies once."""
    steps: list[str] = []

    def reached(step: str) -> None:
        if step in steps:
            steps.remove(step)
            raise Died(step)

    monkeypatch.setattr(crash, "reached", reached)
    yield steps
    assert not steps, "the load never reached this step"


def test_a_load_killed_at_any_step_is_completed_by_the_next(world: World, die_at: list[str]) -> None:
    topic = world.topic("dying")
    produced = 0
    for step in crash.STEPS:
        topic.publish(clicks(produced, 500))
        produced += 500
        die_at.append(step)
        with pytest.raises(Died):
            topic.load()
        after_death = world.hdfs.walk(topic.paths.hourly)
        topic.load()
        assert numbers(topic) == list(range(produced)), step
        manifests = topic.log.manifests()
        assert sum(each.rows for each in manifests) == produced
        # Visible files stay visible: completing a change adds files, and moves none twice.
        assert {path for path, _ in after_death} <= set(topic.files())
    orphans = [change.manifest for change in topic.log.staged_changes()]
    # Only a run that died before its commit leaves a staging directory, which nobody reads.
    assert orphans == [None] * 2
    assert len(retain_topics(warehouse_of(world), [topic.name])[0].orphans) == 0


def test_of_two_loads_at_the_same_time_one_commits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = world.topic("twice")
    topic.publish(clicks(0, 300))
    stage_load = stage.stage_load
    inner: list[loading.LoadResult] = []

    def overtaken(*arguments: Any) -> Any:
        staged = stage_load(*arguments)
        monkeypatch.setattr(loading, "stage_load", stage_load)
        inner.append(topic.load())
        return staged

    monkeypatch.setattr(loading, "stage_load", overtaken)
    with pytest.raises(CommitConflictError, match="nothing is duplicated"):
        topic.load()
    assert inner[0].rows == 300
    assert numbers(topic) == list(range(300))
    assert not topic.log.staged_changes()


def test_a_new_nullable_column_and_a_renamed_one(world: World) -> None:
    topic = world.topic("evolving")
    topic.publish(clicks(0, 100))
    topic.load()
    renamed = {"name": "term", "type": "string", "aliases": ["word"], "default": ""}
    extra = {"name": "extra", "type": ["null", "string"], "default": None}
    newer = event_schema(NUMBER, renamed, extra)
    with SchemaRegistryClient(world.registry_url) as registry:
        registry.set_config("NONE", f"{topic.name}-value")
    # Writers of both versions in one load.
    topic.publish(clicks(100, 50), CLICK)
    for event in (events := clicks(150, 50)):
        event["term"], event["extra"] = event.pop("word"), "new"
    topic.publish(events, newer)
    assert topic.load().rows == 100

    table = read(world.spark, topic.name, warehouse=warehouse_of(world))
    rows = {row.number: (row.term, row.extra) for row in table.collect()}
    assert len(rows) == 200
    assert rows[5] == ("w5", None)  # an old file
    assert rows[105] == ("w5", None)  # an old writer in a new file
    assert rows[155] == ("w5", "new")
    assert table.columns[:4] == ["header", "number", "term", "extra"]
    in_one_hour = read(world.spark, topic.name, [BASE_TIME_MS], warehouse=warehouse_of(world))
    assert in_one_hour.count() == 200


def test_an_incompatible_schema_stops_the_load_before_anything_is_written(world: World) -> None:
    topic = world.topic("breaking")
    topic.publish(clicks(0, 50))
    breaking = event_schema({"name": "number", "type": "string"}, WORD)
    topic.register(breaking, level="NONE")
    with pytest.raises(
        IncompatibleSchemaError, match=rf"{topic.name}-value: version 2 can't read what version 1.*number"
    ):
        topic.load()
    assert not world.hdfs.entries(topic.paths.base)
    # Without the broken version everything loads.
    with SchemaRegistryClient(world.registry_url) as registry:
        registry.delete_version(f"{topic.name}-value", 2)
    assert topic.load().rows == 50


def test_a_topic_without_schema_is_refused(world: World) -> None:
    topic = world.topic("bare")
    topic.send([(b"x", BASE_TIME_MS)])
    with pytest.raises(SchemasError, match=f"no registry has the subject {topic.name}-value"):
        topic.load()


def test_dead_letters_are_replayed_once_their_cause_is_fixed(world: World) -> None:
    topic = world.topic("letters", partitions=1)
    topic.publish(clicks(0, 100))
    foreign = event_schema(NUMBER, WORD, {"name": "unknown", "type": "int", "default": 0})
    good, events = [], clicks(100, 10)
    topic.publish(events)
    with SchemaRegistryClient(world.registry_url) as registry:
        # A schema that was registered, used, and deleted.
        lost_id = registry.register(f"{topic.name}-lost-value", foreign)
    parsed = fastavro.parse_schema(foreign)
    for event in clicks(200, 3):
        out = io.BytesIO()
        out.write(b"\0" + lost_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(out, parsed, {**event, "unknown": 7})
        good.append((out.getvalue(), BASE_TIME_MS))
    with SchemaRegistryClient(world.registry_url) as registry:
        registry.delete_subject(f"{topic.name}-lost-value")
        registry.delete_subject(f"{topic.name}-lost-value", permanent=True)
    known_id = topic.ids[json.dumps(CLICK)].to_bytes(4, "big")
    bad: list[tuple[bytes | None, int]] = [
        (None, BASE_TIME_MS),
        (b"no framing", BASE_TIME_MS),
        (b"\0\0", BASE_TIME_MS),
        (b"\0" + known_id + b"\x02", BASE_TIME_MS),
        (_encoded(topic, click(7, BASE_TIME_MS)) + b"left over", BASE_TIME_MS),
        (_encoded(topic, click(8, -HOUR_MS)), BASE_TIME_MS),
    ]
    topic.send([*bad, *good])
    result = topic.load()
    assert (result.rows, result.dead_lettered) == (110, 9)
    assert sum(hour.dead_lettered for each in result.ranges for hour in each.hours) == 9

    [letters] = [path for path, _ in world.hdfs.walk(topic.paths.dead)]
    dead = world.spark.read.parquet(f"{world.process.hdfs_url}{letters}").orderBy("_offset").collect()
    reasons = [row.reason for row in dead]
    assert reasons[0] == "the value is null"
    assert "begins with 6e 6f 20 66 72" in reasons[1]
    assert "begins with 00 00," in reasons[2]
    assert "aren't what schema" in reasons[3]
    assert reasons[4] == f"9 bytes are left after the record of schema {int.from_bytes(known_id, 'big')}"
    assert "before 1970" in reasons[5]
    assert reasons[6:] == [f"no registry knows schema id {lost_id}"] * 3
    assert [bytes(row.value) if row.value is not None else None for row in dead] == [
        value for value, _ in [*bad, *good]
    ]

    warehouse = warehouse_of(world)
    assert replay_topics(world.spark, warehouse, [topic.name])[0].sequence is None
    with SchemaRegistryClient(world.registry_url) as registry:
        registry.register(f"{topic.name}-lost-value", foreign)
    replayed = replay_topics(world.spark, warehouse, [topic.name])[0]
    assert (replayed.rows, replayed.still_dead) == (3, 6)
    assert numbers(topic) == [*range(110), 200, 201, 202]
    last = topic.log.manifests()[-1]
    assert sum(hour.dead_lettered for each in last.ranges for hour in each.hours) == -3
    assert sum(each.rows for each in topic.log.state().dead_files.values()) == 6
    assert verify_topics(warehouse, [topic.name])[0].problems == ()
    # The table continues where it was.
    topic.publish(clicks(300, 5))
    assert topic.load().rows == 5


def _encoded(topic: TestTopic, event: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(b"\0" + topic.ids[json.dumps(CLICK)].to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(CLICK), event)
    return out.getvalue()


def test_late_events_make_a_new_sealed_version_of_their_hour(world: World) -> None:
    topic = world.topic("late")
    topic.publish(clicks(0, 20))
    topic.load()
    url = world.process.webhdfs_url
    now_ms = BASE_TIME_MS + 5 * HOUR_MS
    assert due_hours(url, topic.name, now_ms=BASE_TIME_MS + HOUR_MS - 1) == []
    assert due_hours(url, topic.name, now_ms=now_ms) == [BASE_TIME_MS]
    first = seal_hour(url, topic.name, BASE_TIME_MS, {"complete": True})
    assert (first.version, first.rows, first.previous_rows) == (1, 20, None)
    assert seal_hour(url, topic.name, BASE_TIME_MS, {"complete": True}) == first
    assert due_hours(url, topic.name, now_ms=now_ms) == []

    topic.publish(clicks(20, 5))
    topic.load()
    [hour] = list_hours(warehouse_of(world), topic.name)
    assert (hour.rows, hour.sealed_version, hour.sealed_rows, hour.is_stale) == (25, 1, 20, True)
    assert due_hours(url, topic.name, now_ms=now_ms) == [BASE_TIME_MS]
    second = seal_hour(url, topic.name, BASE_TIME_MS, {"complete": True})
    assert (second.version, second.rows, second.previous_rows) == (2, 25, 20)
    assert [hour.is_stale for hour in list_hours(warehouse_of(world), topic.name)] == [False]
    assert len(world.hdfs.entries(topic.paths.sealed)) == 2


def test_an_hour_is_not_sealed_while_a_change_is_incomplete(world: World, die_at: list[str]) -> None:
    topic = world.topic("unsealed")
    topic.publish(clicks(0, 20))
    die_at.append("committed")
    with pytest.raises(Died):
        topic.load()
    # A committed change is readable, although its files have not moved yet.
    assert read(world.spark, topic.name, warehouse=warehouse_of(world), by_schema=False).count() == 20
    with pytest.raises(NotSealedError, match="run a load"):
        seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {})
    assert topic.load().finished == (0,)
    assert seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {}).rows == 20


def test_compaction_keeps_the_rows_and_retention_deletes_them(world: World, die_at: list[str]) -> None:
    topic = world.topic("small")
    for number in range(3):
        topic.publish(clicks(number * 4000, 4000))
        topic.load()
    before = topic.files()
    warehouse = warehouse_of(world)
    seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {})

    die_at.append("moved-one")
    with pytest.raises(Died):
        compact_topics(world.spark, warehouse, [topic.name])
    # A reader through the log never sees a part of the change.
    assert read(world.spark, topic.name, warehouse=warehouse, by_schema=False).count() == 12_000
    assert compact_topics(world.spark, warehouse, [topic.name])[0].sequence is None
    after = topic.files()
    assert len(before) > len(after) == 4
    assert numbers(topic) == list(range(12_000))
    assert verify_topics(warehouse, [topic.name])[0].problems == ()
    assert not any(hour.is_stale for hour in list_hours(warehouse, topic.name))
    topic.publish(clicks(12_000, 100))
    assert topic.load().rows == 100

    kept = retain_topics(warehouse, [topic.name], keep_ms=1)[0]
    assert kept.rows == 12_100
    assert topic.files() == []
    assert not world.hdfs.entries(topic.paths.hourly)
    assert topic.load().sequence is None


def test_until_loads_whole_batches_before_a_time(world: World) -> None:
    topic = world.topic("until", partitions=1)
    topic.publish(clicks(0, 3000))
    warehouse = warehouse_of(world)
    until_ms = BASE_TIME_MS + 1500 * 1000
    [plan] = plan_loads(warehouse, [topic.name], until_ms=until_ms)
    assert len(plan.ranges) == 1
    [first] = load_topics(world.spark, warehouse, [topic.name], until_ms=until_ms)
    assert first.ranges[0].to_address == plan.ranges[0].to_address
    assert 0 < first.rows <= 1500
    assert topic.load().rows == 3000 - first.rows
    assert numbers(topic) == list(range(3000))


def test_a_gap_is_refused_unless_accepted_and_then_recorded(
    world: World, broker_cluster: StartCluster
) -> None:
    config = {"log.retention.check.interval.ms": "100", "log.segment.bytes": "1024", "log.retention.ms": "-1"}
    forgetful = replace(world, bootstrap=broker_cluster(1, config).bootstrap)
    topic = forgetful.topic("gap", partitions=1)
    topic.publish(clicks(0, 100))
    topic.load()
    end = topic.log.state().ends[0]
    topic.publish(clicks(100, 100))
    with Admin(forgetful.bootstrap) as admin:
        admin.alter_configs(topic.name, {"retention.ms": "1"})
        cut = _wait_for_earliest(forgetful.bootstrap, topic.name, end)
        admin.alter_configs(topic.name, {"retention.ms": "-1"})
    topic.publish(clicks(200, 50))
    with pytest.raises(LoadGapError, match=rf"addresses {end} to {cut}.*--accept-gap"):
        topic.load()
    result = topic.load(accept_gap=True)
    [gap] = topic.log.manifests()[-1].gaps
    assert (gap.from_address, gap.to_address) == (end, cut)
    assert (result.rows, result.ranges[0].from_address) == (50, cut)
    assert numbers(topic) == [*range(100), *range(200, 250)]


def _wait_for_earliest(bootstrap: str, topic: str, beyond: int) -> int:
    deadline = time.monotonic() + 60
    with MetadataClient([bootstrap], 10) as cluster:
        seen = -1
        while time.monotonic() < deadline:
            last, seen = seen, cluster.offsets({(topic, 0): -2})[topic, 0]
            if last == seen > beyond:
                return seen
            time.sleep(0.5)
    raise AssertionError(f"the broker still keeps address {seen}")


def test_many_topics_in_one_application(world: World) -> None:
    topics = [world.topic(f"many-{index}") for index in range(3)]
    for topic in topics:
        topic.publish(clicks(0, 100))
    results = load_topics(world.spark, warehouse_of(world), [topic.name for topic in topics])
    assert [result.rows for result in results] == [100, 100, 100]
    assert [result.topic for result in results] == [topic.name for topic in topics]
