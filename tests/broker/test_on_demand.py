"""Topics that clients have created by asking for them: bounded for each host, at once, and in total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.fair_workers import FairWorkers
from headrace.broker.on_demand import (
    AT_ONCE_MAX,
    PER_HOST_AT_ONCE_MAX,
    PER_HOST_MAX,
    TOPICS_MAX,
    WINDOW_S,
    TopicsOnDemand,
)
from headrace.broker.promise import Promise
from headrace.broker.topics import NewTopic, TopicAdmin
from headrace.broker.workers import Outcome
from headrace.coordination.topics import PartitionState, TopicState


class DemandBench:
    """An administrator of topics and threads that do nothing until `finish`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.count = 0
        self.created: list[str] = []
        self.waits: list[tuple[Callable[[], bool], Promise[None]]] = []
        self._jobs: list[tuple[Callable[[], Any], Outcome]] = []
        self.on_demand = TopicsOnDemand(
            cast(TopicAdmin, self),
            cast(FairWorkers, self),
            lambda: self.count,
            self._when,
            clock_s=lambda: self.now_s,
        )

    def create(self, new: NewTopic, *, validate_only: bool) -> TopicState:
        assert not validate_only
        self.created.append(new.name)
        self.count += 1
        return TopicState(new.name, UUID(int=1), {0: PartitionState(1, 0, (1,), (1,))})

    def is_usable(self, topic: TopicState, left: dict[int, PartitionState]) -> bool:
        assert topic.name in self.created and left
        return True

    def _when(self, reached: Callable[[], bool], deadline_s: float) -> Promise[None]:
        assert deadline_s > self.now_s
        self.waits.append((reached, Promise()))
        return self.waits[-1][1]

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self._jobs.append((job, done))

    def finish(self) -> None:
        while self._jobs:
            job, done = self._jobs.pop(0)
            done(job(), None)
        while self.waits:
            reached, promise = self.waits.pop(0)
            assert reached()
            promise.resolve(None)

    def ask(self, number: int, host: str = "10.0.0.1") -> bool:
        return self.on_demand.create(f"t-{number}", host) is not None


def test_a_topic_is_created_once_for_all_who_ask() -> None:
    bench = DemandBench()
    one, other = bench.on_demand.create("t", "10.0.0.1"), bench.on_demand.create("t", "10.0.0.2")
    assert one is other and one is not None and not one.done
    bench.finish()
    assert one.done
    assert bench.created == ["t"]


def test_a_host_gets_so_many_topics_a_minute_and_others_are_not_affected() -> None:
    bench = DemandBench()
    answers = []
    for number in range(PER_HOST_MAX + 50):
        answers.append(bench.ask(number))
        bench.finish()
    assert answers == [True] * PER_HOST_MAX + [False] * 50
    assert bench.ask(10_000, "10.0.0.2")
    bench.finish()
    bench.now_s += WINDOW_S
    assert bench.ask(10_001)


def test_so_many_are_created_at_once() -> None:
    bench = DemandBench()
    answers = [bench.ask(number, f"10.0.0.{number}") for number in range(AT_ONCE_MAX + 1)]
    assert answers == [True] * AT_ONCE_MAX + [False]
    bench.finish()
    assert bench.ask(5_000, "10.0.1.1")


def test_one_host_never_has_all_that_are_created_at_once() -> None:
    bench = DemandBench()
    answers = [bench.ask(number) for number in range(PER_HOST_AT_ONCE_MAX + 5)]
    assert answers == [True] * PER_HOST_AT_ONCE_MAX + [False] * 5
    assert bench.ask(1_000, "10.0.0.2")
    bench.finish()
    assert bench.ask(1_001)
    assert len(bench.on_demand._creating_for) == 1


def test_none_is_created_when_there_are_many(caplog: pytest.LogCaptureFixture) -> None:
    bench = DemandBench()
    bench.count = TOPICS_MAX - 1
    assert bench.ask(1)
    assert not any(bench.ask(number, f"10.0.{number}.1") for number in range(2, 250))
    assert len([each for each in caplog.records if "create more by CreateTopics" in each.message]) == 1
    bench.finish()
    assert not bench.ask(2_000)


def test_as_many_hosts_are_remembered_as_may_be() -> None:
    bench = DemandBench()
    for number in range(3_000):
        bench.count = 0
        assert bench.ask(number, f"10.{number % 250}.{number // 250}.1")
        bench.finish()
    assert len(bench.on_demand._created_s) == 1_000
