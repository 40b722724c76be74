"""A topic that was deleted and made again: its log is loaded on only where it is the one that is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from fix_warehouse import BASE_TIME_MS, TestTopic, World, click, create_topic
from headrace.warehouse.api import load_topics, plan_loads, refill_topic_hours, verify_topics
from headrace.warehouse.made_again import (
    Likeness,
    TopicMadeAgainError,
    begun_partitions,
    noted_batches,
    present_ranges,
    shared_hours,
)
from headrace.warehouse.manifest import HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LogWentBackError, MadeAgain
from headrace.warehouse.planning import last_crcs
from headrace.warehouse.report import load_report

IDS = ("first", "second")


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


def load(topic: TestTopic, made_again: MadeAgain | None = None) -> Any:
    (done,) = load_topics(topic.world.spark, options_of(topic.world), [topic.name], made_again=made_again)
    return done


def make_again(topic: TestTopic, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": topic.world.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(timeout=60)
    create_topic(topic.world.bootstrap, topic.name, partitions)
    topic.partitions = partitions


def numbers(topic: TestTopic) -> list[int]:
    return sorted(row.number for row in topic.table().select("number").collect())


def problems(topic: TestTopic) -> tuple[str, ...]:
    return verify_topics(options_of(topic.world), [topic.name])[0].problems


@end_to_end
def test_another_log_is_loaded_from_its_beginning_once_an_operator_says_so(world: World) -> None:
    topic = world.topic("anew", partitions=1)
    topic.publish(clicks(0, 500))
    load(topic)
    end = topic.log.state().ends[0]
    make_again(topic)
    topic.publish(clicks(500, 10))
    with pytest.raises(
        TopicMadeAgainError, match=r"its id was .*Nothing shows.*partition 0.*--made-again new"
    ):
        load(topic)
    with pytest.raises(LogWentBackError, match=f"is loaded up to {end}"):
        load(topic, "copy")
    topic.publish(clicks(510, 1_900))
    for said in (None, "copy"):
        with pytest.raises(TopicMadeAgainError, match=r"partition 0 is not the one.*--made-again new"):
            load(topic, said)
    assert numbers(topic) == list(range(500)), "nothing was loaded meanwhile"

    [plan] = plan_loads(options_of(world), [topic.name], made_again="new")
    assert (plan.begun, [each.from_address for each in plan.ranges]) == ((0,), [0])
    done = load(topic, "new")
    assert (done.rows, done.begun) == (1_910, (0,))
    assert numbers(topic) == list(range(2_410))
    assert problems(topic) == (), "rows of both logs have the same offsets"
    reports = [report for each in topic.log.manifests() if (report := load_report(each)) is not None]
    assert len({report.topic_id for report in reports}) == 2

    topic.publish(clicks(2_410, 10))
    assert load(topic).rows == 10, "from then on it is loaded as any topic"
    assert load(topic, "new").sequence is None, (
        "what is said of a topic that was not made again changes nothing"
    )


@end_to_end
def test_the_same_log_copied_again_is_loaded_on(world: World) -> None:
    topic = world.topic("copied", partitions=1)
    for first in (0, 50, 100):
        topic.publish(clicks(first, 50), **PLAIN)
        load(topic)
    make_again(topic)
    with pytest.raises(TopicMadeAgainError, match="Nothing shows"):
        load(topic)
    for first in (0, 50):
        topic.publish(clicks(first, 50), **PLAIN)
        for said in (None, "new", "copy"):
            with pytest.raises(TopicMadeAgainError, match="copied again, and has not reached"):
                load(topic, said)
    for first in (100, 150):
        topic.publish(clicks(first, 50), **PLAIN)
    done = load(topic)
    assert (done.rows, done.begun) == (50, ())
    assert numbers(topic) == list(range(200))
    assert problems(topic) == ()


@end_to_end
def test_partitions_are_looked_at_one_by_one(world: World) -> None:
    """East's partition is copied again, west's topic is a new one, and the third partition is gone."""
    topic = world.topic("halves", partitions=3)
    topic.publish(clicks(0, 90), **PLAIN)
    load(topic)
    make_again(topic, partitions=2)
    # Of three in turn, the first partition has the numbers 0, 3, 6 and so on.
    halves = [event for third in range(0, 90, 3) for event in (*clicks(third, 1), *clicks(1_000 + third, 1))]
    topic.publish(halves, **PLAIN)
    with pytest.raises(TopicMadeAgainError, match=r"partition (1, )?2 is not the one"):
        load(topic)
    done = load(topic, "new")
    assert (done.rows, done.begun) == (30, (1, 2))
    assert numbers(topic) == sorted([*range(90), *(1_000 + each for each in range(0, 90, 3))])
    assert problems(topic) == ()


@end_to_end
def test_an_empty_log_is_begun_at_once(world: World) -> None:
    topic = world.topic("empty", partitions=1)
    topic.publish(clicks(0, 20))
    load(topic)
    make_again(topic)
    done = load(topic, "new")
    assert (done.rows, done.begun, topic.log.state().ends) == (0, (0,), {})
    topic.publish(clicks(20, 5))
    assert load(topic).rows == 5


@end_to_end
def test_a_topic_that_is_made_again_while_it_is_loaded_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic("meanwhile", partitions=1)
    topic.publish(clicks(0, 20))

    def made_again_before(*arguments: Any) -> Any:
        make_again(topic)
        topic.publish(clicks(20, 20))
        return last_crcs(*arguments)

    monkeypatch.setattr("headrace.warehouse.loading.last_crcs", made_again_before)
    with pytest.raises(TopicMadeAgainError, match="while it was loaded; nothing was committed"):
        load(topic)
    assert topic.log.state().sequence == -1
    assert not world.hdfs.entries(topic.paths.staging)
    monkeypatch.undo()
    load(topic)
    assert numbers(topic) == list(range(20, 40))


@end_to_end
def test_a_file_with_rows_of_a_deleted_log_is_not_refilled(world: World) -> None:
    topic = world.topic("refilled", partitions=1)
    topic.publish(clicks(0, 20))
    load(topic)
    make_again(topic)
    topic.publish(clicks(20, 20))
    load(topic, "new")
    first = topic.log.manifest(0).files[0]
    world.hdfs.delete(first.path)
    [done] = refill_topic_hours(world.spark, options_of(world), topic.name, [BASE_TIME_MS])
    assert "has rows of an earlier log of partition 0" in done.problem
    assert done.sequence is None


def manifest(sequence: int, ranges: dict[int, tuple[int, int, int]], **more: Any) -> Manifest:
    """A load of these partitions: from, to, and the hour of the rows."""
    loaded = tuple(
        LoadedRange(number, start, end, (HourCount(hour, 1, 1),), last_crc=end)
        for number, (start, end, hour) in ranges.items()
    )
    return Manifest(sequence, "load", "t", f"c{sequence}", 1, "hdfs://h/data", loaded, **more)


MANIFESTS = [
    manifest(0, {0: (0, 100, 7), 1: (0, 50, 7)}, topic_id="first"),
    manifest(1, {0: (100, 200, 7)}, topic_id="first"),
    manifest(2, {0: (0, 80, 7), 1: (50, 60, 8)}, topic_id="second", begun=(0,)),
]


def test_a_log_that_is_begun_has_addresses_of_its_own() -> None:
    state = TableState()
    for each in MANIFESTS:
        state = state.after(each)
    assert (state.ends, state.topic_id) == ({0: 80, 1: 60}, "second")
    assert TableState.from_json(state.to_json(), "it") == state
    assert noted_batches(MANIFESTS) == {0: {80: 80}, 1: {50: 50, 60: 60}}
    present = [(each.sequence, loaded.partition) for each, loaded in present_ranges(MANIFESTS)]
    assert present == [(0, 1), (2, 0), (2, 1)]
    assert shared_hours(MANIFESTS) == {(0, 7)}


def test_an_older_headrace_stops_at_a_log_that_is_begun() -> None:
    stored = MANIFESTS[2].to_json()
    assert Manifest.from_json(stored, "it") == MANIFESTS[2]
    assert b'"format": 4' in stored
    assert b"begun" not in MANIFESTS[1].to_json()


SEEN: dict[int, Likeness] = {0: "same", 1: "other", 2: "unknown"}


def test_only_what_is_not_known_to_be_the_same_log_is_begun() -> None:
    assert begun_partitions("t", IDS, SEEN, "new") == (1, 2)
    assert begun_partitions("t", IDS, {0: "same"}, None) == ()
    assert begun_partitions("t", IDS, {0: "same", 2: "unknown"}, "copy") == ()


@pytest.mark.parametrize(
    ("seen", "said", "problem"),
    [
        (SEEN, None, "first when it was loaded last, and is second now. The log of partition 1 is not"),
        (SEEN, "copy", "partition 1 is not the one"),
        ({0: "unknown"}, None, "Nothing shows whether the log of partition 0"),
        ({0: "copying", 1: "other"}, "new", "partition 0 is the one that is loaded, copied again"),
        (dict.fromkeys(range(30), "unknown"), None, "18, 19 and 10 more"),
    ],
)
def test_an_operator_is_asked(seen: dict[int, Likeness], said: MadeAgain | None, problem: str) -> None:
    with pytest.raises(TopicMadeAgainError, match=problem):
        begun_partitions("t", IDS, seen, said)
