"""Which topics a mirror finds, and what it says of those that it does not copy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.mirror import service
from headrace.mirror.discovery import NotAMirrorError, TargetTopics, wanted
from headrace.mirror.service import MirrorService, MirrorSettings
from headrace.wire.errors import ErrorCode

NOBODY = "127.0.0.1:1"


class Targets:
    """Refuses every topic: the target has one of that name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def prepare(self, topic: str, _count: int, _topic_id: UUID) -> list[int]:
        self.asked.append(topic)
        raise NotAMirrorError(f"the target has a topic {topic} of its own")


@pytest.fixture
def mirror() -> Iterator[MirrorService]:
    made = MirrorService(MirrorSettings("east", NOBODY, NOBODY, NOBODY, re.compile(".*")))
    yield made
    made.close()


def discover(mirror: MirrorService, names: Iterable[str]) -> list[str]:
    """Lets it find these topics in its source; returns those that it tried to make at the target."""
    targets = Targets()
    topics = {name: TopicInfo(name, {0: PartitionInfo(0, 1)}) for name in names}
    source: Any = SimpleNamespace(admin=SimpleNamespace(topics=lambda: topics))
    target: Any = SimpleNamespace(admin=SimpleNamespace(topics=dict))
    assert mirror._discover(source, target, cast(TargetTopics, targets))
    return targets.asked


def test_topics_beyond_the_bound_are_named(mirror: MirrorService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TOPICS_MAX", 2)
    assert discover(mirror, "dcba") == ["a", "b"]
    assert mirror.status()["trouble"] == "2 topics, from c on, are not mirrored: at most 2 are"
    discover(mirror, "ba")
    assert mirror.status()["trouble"] == ""


def test_the_problem_of_a_topic_ends_with_the_topic(mirror: MirrorService) -> None:
    discover(mirror, "ab")
    assert mirror.status()["topic_troubles"].keys() == {"a", "b"}
    discover(mirror, "b")
    assert mirror.status()["topic_troubles"].keys() == {"b"}


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (".*", None, ["_audit", "orders", "page-view"]),
        ("page-.*|orders", None, ["orders", "page-view"]),
        (".*", "_.*", ["orders", "page-view"]),
        ("page", None, []),
    ],
)
def test_which_topics_are_mirrored(include: str, exclude: str | None, expected: list[str]) -> None:
    names = ["page-view", "orders", "_audit", "__consumer_offsets"]
    assert wanted(names, re.compile(include), re.compile(exclude) if exclude else None) == expected


class Slow(Targets):
    """Refuses every topic, each after ten seconds, as a target without a controller does."""

    now_s = 1_000.0

    def prepare(self, topic: str, count: int, topic_id: UUID) -> list[int]:
        self.now_s += 10
        return super().prepare(topic, count, topic_id)


def test_topics_that_the_target_does_not_make_keep_no_copy_from_being_located(
    mirror: MirrorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them would hold up all copies for a quarter of an hour, again and again, and a SIGTERM."""
    targets = Slow()
    monkeypatch.setattr(time, "monotonic", lambda: targets.now_s)
    topics = {name: TopicInfo(name, {0: PartitionInfo(0, 1)}) for name in "abc"}
    source: Any = SimpleNamespace(admin=SimpleNamespace(topics=lambda: topics))
    target: Any = SimpleNamespace(admin=SimpleNamespace(topics=dict))
    tried = [mirror._discover(source, target, cast(TargetTopics, targets)) for _ in range(4)]
    assert targets.asked == ["a", "b", "c", "a"], "some in each round, and all in turn"
    assert tried == [False] * 4, "the others are tried as soon as copies are located"
    mirror.stop()
    mirror._discover(source, target, cast(TargetTopics, targets))
    assert len(targets.asked) == 4


class Takers:
    """Makes every topic at the target."""

    def prepare(self, _topic: str, count: int, _topic_id: UUID) -> list[int]:
        return list(range(count))


def test_a_topic_that_is_gone_from_the_source_is_forgotten_after_a_while(
    mirror: MirrorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic for each day's job would be located, and asked for, until the mirror is restarted."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def found(*names: str) -> None:
        topics = {name: TopicInfo(name, {0: PartitionInfo(0, 1)}) for name in names}
        side = cast(Any, SimpleNamespace(admin=SimpleNamespace(topics=lambda: topics)))
        mirror._discover(side, side, cast(TargetTopics, Takers()))

    for day in range(20):
        found("orders", f"job-{day}")
    for _ in range(3):  # nor does a broker that has just begun, and knows no topics
        found()
        now_s += service.ABSENT_MAX_S / 4
    found("orders")
    assert len(mirror.status()["partitions"]) == 21
    now_s += service.ABSENT_MAX_S / 4
    found("orders")
    assert [each["topic"] for each in mirror.status()["partitions"]] == ["orders"]
    lanes = mirror._pipeline._lanes
    assert [copy.topic for lane in lanes for copy in lane.copies] == ["orders"]
    for lane in lanes:
        lane.step()
        assert lane.network._topics <= {"orders"}
    found("orders", "job-3")
    assert len(mirror.status()["partitions"]) == 2


def test_partitions_that_a_topic_has_no_more_are_forgotten_after_a_while(
    mirror: MirrorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was made again with fewer partitions: the others had "no leader" for ever."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def found(count: int, error: ErrorCode = ErrorCode.NONE) -> list[int]:
        info = TopicInfo("t", {number: PartitionInfo(number, 1) for number in range(count)}, error)
        side = cast(Any, SimpleNamespace(admin=SimpleNamespace(topics=lambda: {"t": info})))
        mirror._discover(side, side, cast(TargetTopics, Takers()))
        return [each["partition"] for each in mirror.status()["partitions"]]

    assert found(3) == [0, 1, 2]
    assert found(1) == [0, 1, 2]
    now_s += service.ABSENT_MAX_S
    assert found(0, ErrorCode.LEADER_NOT_AVAILABLE) == [0, 1, 2], "it does not say which it has"
    found(1)
    now_s += service.ABSENT_MAX_S
    assert found(1) == [0]
    assert [copy.partition for lane in mirror._pipeline._lanes for copy in lane.copies] == [0]
    assert found(2) == [0, 1]
