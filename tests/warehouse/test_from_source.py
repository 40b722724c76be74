"""What the copy cannot hold is taken from the datacenter's own log, once, under its own addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fix_warehouse import BASE_TIME_MS, HOUR_MS, TestTopic, World, click
from headrace.warehouse import crash
from headrace.warehouse.api import take_topic_ranges, verify_topics
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.from_source import SourceLog, TakenResult, WantedRange, still_there
from headrace.warehouse.manifest import LoadedRange, LoadGap
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.report import load_report
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import LATEST

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

COUNT = 200
COPY = 7
"""The copy's partition of the source partition 1. The test's one broker is source and copy."""


def options(world: World) -> WarehouseOptions:
    return WarehouseOptions(**{**world.addresses, "audit": False})


def source(world: World) -> SourceLog:
    return SourceLog("east", world.bootstrap, world.registry_url)


def end_of(world: World, topic: TestTopic, partition: int) -> int:
    with MetadataClient([world.bootstrap], 30) as metadata:
        return metadata.offsets({(topic.name, partition): LATEST})[topic.name, partition]


def publish(topic: TestTopic, first: int) -> None:
    """Half of the events in one hour, half in the next; the odd ones in partition 1."""
    step_ms = 2 * HOUR_MS // COUNT
    topic.publish([click(n, BASE_TIME_MS + n % COUNT * step_ms) for n in range(first, first + COUNT)])


def skip(world: World, topic: TestTopic, partition: int, start: int, end: int) -> None:
    """As `load --accept-gap` does behind a gap of the copy."""
    change = Change(TopicTable(topic.name, options(world), world.hdfs), "load")
    gap = LoadGap(partition, start, end, "the copy has a gap")
    change.commit(lambda now: replace(change.manifest(now), gaps=(gap,)))


def numbers(topic: TestTopic) -> list[int]:
    return sorted(row.number for row in topic.table().select("number").collect())


def take(world: World, topic: TestTopic, *wanted: WantedRange) -> list[TakenResult]:
    return take_topic_ranges(world.spark, options(world), topic.name, source(world), wanted)


def with_gap(world: World, name: str) -> tuple[TestTopic, WantedRange]:
    """A table that lacks the first half of partition 1."""
    topic = world.topic(name, partitions=2)
    publish(topic, 0)
    end = end_of(world, topic, 1)
    skip(world, topic, 1, 0, end)
    publish(topic, COUNT)
    topic.load()
    assert numbers(topic) == [n for n in range(2 * COUNT) if n >= COUNT or n % 2 == 0]
    return topic, WantedRange(1, 1, 0, end, COUNT // 2)


def test_a_range_is_taken_once_and_is_reported_to_the_audit(world: World) -> None:
    topic, wanted = with_gap(world, "taken")
    assert still_there(topic.name, source(world), [wanted]) == [(wanted, wanted)]
    beyond = replace(wanted, to_address=wanted.to_address * 100)
    assert still_there(topic.name, source(world), [beyond]) == [(beyond, None)]
    (done,) = take(world, topic, wanted)
    assert (done.rows, done.dead_lettered, done.problem) == (COUNT // 2, 0, "")
    assert numbers(topic) == list(range(2 * COUNT))
    assert verify_topics(options(world), [topic.name])[0].problems == ()
    report = load_report(topic.log.manifest(done.sequence or 0))
    assert report is not None
    (partition,) = report.partitions
    assert partition[:3] == (1, 0, wanted.to_address)
    assert sum(hour.rows for hour in partition.hours) == COUNT // 2
    assert take(world, topic, wanted) == [TakenResult(topic.name, wanted)]
    # The next load goes on where the last one ended.
    publish(topic, 2 * COUNT)
    topic.load()
    assert numbers(topic) == list(range(3 * COUNT))


def test_a_gap_that_a_load_passed_is_taken_too_and_what_is_there_is_not(world: World) -> None:
    """A load of a copy that went on behind its gap consumes one range from before the gap to behind it."""
    topic = world.topic("passed", partitions=2)
    publish(topic, 0)
    end = end_of(world, topic, 1)
    change = Change(TopicTable(topic.name, options(world), world.hdfs), "load")
    change.commit(lambda now: replace(change.manifest(now), ranges=(LoadedRange(1, 0, end),)))
    topic.load()
    assert numbers(topic) == list(range(0, COUNT, 2))
    (done,) = take(world, topic, WantedRange(1, 1, 0, end, COUNT // 2))
    assert (done.rows, done.problem) == (COUNT // 2, "")
    assert numbers(topic) == list(range(COUNT))
    report = load_report(topic.log.manifest(done.sequence or 0))
    assert report is not None and [each.from_source for each in report.partitions] == [True]
    assert verify_topics(options(world), [topic.name])[0].problems == ()
    (again,) = take(world, topic, WantedRange(1, 1, 0, end, COUNT // 2))
    assert (again.sequence, again.problem) == (None, "")
    # Whatever the audit was made to believe: rows that a load read come no second time.
    (refused,) = take(world, topic, WantedRange(0, 0, 0, end_of(world, topic, 0)))
    assert refused.sequence is None and "already, which the copy should lack" in refused.problem
    assert numbers(topic) == list(range(COUNT))


def test_rows_get_the_copys_partition_and_the_sources_offsets(world: World) -> None:
    topic, wanted = with_gap(world, "elsewhere")
    (done,) = take(world, topic, replace(wanted, log_partition=COPY))
    assert done.problem == ""
    rows = topic.table().where(f"_partition = {COPY}").select("number", "_offset").collect()
    assert sorted(row.number for row in rows) == list(range(1, COUNT, 2))
    assert all(0 <= row._offset < wanted.to_address for row in rows)
    assert verify_topics(options(world), [topic.name])[0].problems == ()


def test_a_source_that_has_another_number_of_events_changes_nothing(world: World) -> None:
    topic, wanted = with_gap(world, "fewer")
    before = topic.log.state()
    (done,) = take(world, topic, replace(wanted, record_count=COUNT))
    assert "nothing was changed" in done.problem and f"the audit counted {COUNT} at least" in done.problem
    assert topic.log.state() == before and topic.log.staged_changes() == []


class Died(BaseException):
    """Stands for SIGKILL."""


def test_a_run_that_is_killed_is_completed_and_one_that_comes_second_is_discarded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_at(step: str) -> Callable[[str], None]:
        def reached(now: str) -> None:
            if now == step:
                raise Died(now)

        return reached

    # One topic a step would take longer: each step has a partition of the copy of its own.
    topic, wanted = with_gap(world, "killed")
    rows = COUNT + COUNT // 2
    for number, step in enumerate(("prepared", "committed", "moved-one", "moved", "published")):
        of_step = replace(wanted, log_partition=COPY + number)
        with monkeypatch.context() as patched:
            patched.setattr(crash, "reached", dies_at(step))
            with pytest.raises(Died):
                take(world, topic, of_step)
        take(world, topic, of_step)
        rows += COUNT // 2
        assert len(numbers(topic)) == rows, step
        assert topic.log.to_complete() == [], step
    commit = type(topic.log).commit
    calls: list[int] = []

    def overtaken(self: Any, *arguments: Any) -> Any:
        if not calls:
            calls.append(1)
            take(world, topic, wanted)
        return commit(self, *arguments)

    monkeypatch.setattr(type(topic.log), "commit", overtaken)
    with pytest.raises(CommitConflictError, match="nothing is duplicated"):
        take(world, topic, wanted)
    assert len(numbers(topic)) == rows + COUNT // 2
