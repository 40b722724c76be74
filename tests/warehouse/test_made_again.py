"""A topic that was deleted and made again: its log is loaded on only where it is the one that is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fix_warehouse import BASE_TIME_MS, TestTopic, World, click, make_again
from headrace.warehouse.api import load_topics, plan_loads, refill_topic_hours, verify_topics
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.made_again import (
    Said,
    TopicMadeAgainError,
)
from headrace.warehouse.manifest import digest_of
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LogWentBackError, MadeAgain
from headrace.warehouse.planning import read_marks
from headrace.warehouse.report import load_report


def end_to_end(test: Any) -> Any:
    return pytest.mark.spark(pytest.mark.hdfs(test))


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [click(number, BASE_TIME_MS + number * 1000) for number in range(first, first + count)]


# Batches whose bytes depend on the events alone: each holds one, and no producer's id is in them.
PLAIN: dict[str, Any] = {
    "enable.idempotence": False,
    "batch.num.messages": 1,
    "max.in.flight.requests.per.connection": 1,
}


def options_of(world: World) -> WarehouseOptions:
    return WarehouseOptions(**world.addresses, audit=False)


def load(topic: TestTopic, what: MadeAgain | None = None, *partitions: int, accept_gap: bool = False) -> Any:
    said = Said(None, dict.fromkeys(partitions, what)) if partitions and what else Said(what)
    options = options_of(topic.world)
    (done,) = load_topics(topic.world.spark, options, [topic.name], said=said, accept_gap=accept_gap)
    return done


def numbers(topic: TestTopic) -> list[int]:
    return sorted(row.number for row in topic.table().select("number").collect())


def problems(topic: TestTopic) -> tuple[str, ...]:
    return verify_topics(options_of(topic.world), [topic.name])[0].problems


def load_three_times(topic: TestTopic) -> list[int]:
    """Loads 150 clicks in three loads; returns where each ended in partition 0."""
    for first in (0, 50, 100):
        topic.publish(clicks(first, 50), **PLAIN)
        load(topic)
    return [each.ranges[0].to_address for each in topic.log.manifests()]


@end_to_end
def test_another_log_is_loaded_into_the_same_table_once_an_operator_says_so(world: World) -> None:
    topic = world.topic("anew", partitions=1)
    topic.publish(clicks(0, 500))
    load(topic)
    make_again(topic)
    assert load(topic).sequence is None, "a log that holds nothing is compared later"
    for first, count in ((500, 10), (510, 1_900)):
        topic.publish(clicks(first, count))
        for said in (None, "copy"):
            with pytest.raises(TopicMadeAgainError, match=r"id .* is loaded, .*0 has other batches"):
                load(topic, said)
    assert numbers(topic) == list(range(500)), "nothing was loaded meanwhile"

    [plan] = plan_loads(options_of(world), [topic.name], said=Said("new"))
    assert (plan.begun, [each.from_address for each in plan.ranges]) == ({0: 0}, [0])
    done = load(topic, "new")
    assert (done.rows, done.begun) == (1_910, {0: 0})
    assert numbers(topic) == list(range(2_410))
    assert problems(topic) == (), "rows of both logs have the same offsets"
    reports = [report for each in topic.log.manifests() if (report := load_report(each)) is not None]
    assert len({report.topic_id for report in reports}) == 2
    assert [part.begins_at for report in reports for part in report.partitions] == [-1, 0]

    topic.publish(clicks(2_410, 10))
    assert load(topic).rows == 10, "from then on it is loaded as any topic"
    assert load(topic, "new").sequence is None, "this says nothing of a topic that was not made again"


@end_to_end
def test_the_same_log_copied_again_is_loaded_on(world: World) -> None:
    topic = world.topic("copied", partitions=1)
    for first in (0, 50, 100):
        topic.publish(clicks(first, 50), **PLAIN)
        load(topic)
    make_again(topic)
    assert load(topic).sequence is None
    for first, count in ((0, 10), (10, 40), (50, 50)):
        topic.publish(clicks(first, count), **PLAIN)
        for said in (None, "new", "copy"):
            with pytest.raises(TopicMadeAgainError, match="partition 0 is being copied again, and not yet"):
                load(topic, said)
    for first in (100, 150):
        topic.publish(clicks(first, 50), **PLAIN)
    done = load(topic)
    assert (done.rows, done.begun) == (50, {})
    assert numbers(topic) == list(range(200))
    assert problems(topic) == ()


@end_to_end
def test_a_copy_that_never_gets_there_is_loaded_on_from_where_both_logs_are_the_same(world: World) -> None:
    """The source lost its end. What was loaded of that stays; what comes in its place is loaded, too."""
    topic = world.topic("shorter", partitions=1)
    ends = load_three_times(topic)
    make_again(topic)
    topic.publish(clicks(0, 100), **PLAIN)
    done = load(topic, "new", 0)
    assert (done.rows, done.begun) == (0, {0: ends[1]})
    topic.publish(clicks(1_000, 50), **PLAIN)
    assert load(topic).rows == 50
    assert numbers(topic) == [*range(150), *range(1_000, 1_050)]
    assert problems(topic) == ()


@end_to_end
def test_a_log_that_went_back_is_loaded_on_from_where_both_are_the_same(world: World) -> None:
    """After an unclean election of the same topic, say; here an older headrace noted no id."""
    topic = world.topic("back", partitions=1)
    ends = load_three_times(topic)
    make_again(topic)
    topic.publish([*clicks(0, 50), *clicks(1_000, 60)], **PLAIN)
    forget_ids(topic)
    with pytest.raises(LogWentBackError, match="repeat with --made-again new"):
        load(topic)
    done = load(topic, "new")
    assert (done.rows, done.begun) == (60, {0: ends[0]})
    assert numbers(topic) == [*range(150), *range(1_000, 1_060)]


def forget_ids(topic: TestTopic) -> None:
    """Rewrites the table's manifests as those of brokers that give topics no ids."""
    previous = ""
    for each in topic.log.manifests():
        known = replace(each, topic_id="", previous=previous).to_json()
        topic.world.hdfs.write(topic.paths.manifest(each.sequence), known, overwrite=True)
        previous = digest_of(known)


@end_to_end
def test_partitions_are_looked_at_one_by_one(world: World) -> None:
    """East's partition is copied again, west's topic is a new one, and the third partition is gone."""
    topic = world.topic("halves", partitions=3)
    topic.publish(clicks(0, 90), **PLAIN)
    load(topic)
    make_again(topic, partitions=2)
    # Of three in turn, the first partition has the numbers 0, 3, 6 and so on.
    east = clicks(0, 90)[::3]
    west = clicks(1_000, 30)
    topic.publish([each for pair in zip(east[:20], west[:20], strict=True) for each in pair], **PLAIN)
    with pytest.raises(TopicMadeAgainError, match=r"partition 0 is being copied.*; partition 1, 2 has other"):
        load(topic)
    with pytest.raises(TopicMadeAgainError, match="loaded: partition 0 is being copied"):
        load(topic, "new")
    topic.publish([each for pair in zip(east[20:], west[20:], strict=True) for each in pair], **PLAIN)
    with pytest.raises(TopicMadeAgainError, match="loaded: partition 2 has other"):
        load(topic, "new", 1)
    done = load(topic, "new")
    assert (done.rows, done.begun) == (30, {1: 0, 2: 0})
    assert len(set(topic.log.state().topic_ids.values())) == 1, "the first one is known to be the same"
    assert numbers(topic) == [*range(90), *range(1_000, 1_030)]
    assert problems(topic) == ()


@end_to_end
def test_a_topic_that_is_made_again_while_it_is_loaded_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic("meanwhile", partitions=1)
    topic.publish(clicks(0, 20))

    def made_again_before(*arguments: Any) -> Any:
        make_again(topic)
        topic.publish(clicks(20, 20))
        return read_marks(*arguments)

    monkeypatch.setattr("headrace.warehouse.loading.read_marks", made_again_before)
    with pytest.raises(TopicMadeAgainError, match="while it was loaded; nothing was committed"):
        load(topic)
    assert topic.log.state().sequence == -1
    assert not world.hdfs.entries(topic.paths.staging)
    monkeypatch.undo()
    load(topic)
    assert numbers(topic) == list(range(20, 40))


@end_to_end
def test_of_two_runs_that_begin_a_log_one_commits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new log ends where the old one did: the ends alone would tell nothing."""
    topic = world.topic("twice", partitions=1)
    topic.publish(clicks(100, 20), **PLAIN)
    load(topic)
    make_again(topic)
    topic.publish(clicks(200, 20), **PLAIN)

    def another_before(*arguments: Any) -> Any:
        monkeypatch.undo()
        load(topic, "new")
        return read_marks(*arguments)

    monkeypatch.setattr("headrace.warehouse.loading.read_marks", another_before)
    with pytest.raises(CommitConflictError, match="nothing is duplicated"):
        load(topic, "new")
    assert numbers(topic) == [*range(100, 120), *range(200, 220)]


@end_to_end
def test_a_refill_reads_no_other_log(world: World) -> None:
    topic = world.topic("refilled", partitions=1)
    topic.publish(clicks(0, 20))
    load(topic)
    first = topic.log.manifest(0).files[0]
    world.hdfs.delete(first.path)
    make_again(topic)
    topic.publish(clicks(20, 200))
    [refused] = refill_topic_hours(world.spark, options_of(world), topic.name, [BASE_TIME_MS])
    assert "load the topic first" in refused.problem
    load(topic, "new")
    [done] = refill_topic_hours(world.spark, options_of(world), topic.name, [BASE_TIME_MS])
    assert "may have had rows of an earlier log of partition 0" in done.problem
    assert (refused.sequence, done.sequence) == (None, None)


@end_to_end
def test_a_refill_brings_a_row_whose_offset_a_deleted_log_had_too(world: World) -> None:
    topic = world.topic("brought", partitions=1)
    topic.publish(clicks(100, 20), **PLAIN)
    load(topic)
    make_again(topic)
    topic.publish(clicks(200, 20), **PLAIN)
    load(topic, "new")
    second = topic.log.manifest(1).files[0]
    world.hdfs.delete(second.path)
    [done] = refill_topic_hours(world.spark, options_of(world), topic.name, [BASE_TIME_MS])
    assert (done.problem, done.rows) == ("", 20)
    assert numbers(topic) == [*range(100, 120), *range(200, 220)]
