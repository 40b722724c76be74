"""What administrators' requests cost others: no thread while they wait, no look at all names for one."""

from __future__ import annotations

import datetime
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta

from headrace.broker import topics as topics_module
from headrace.broker.cluster import ClusterView
from headrace.broker.errors import Refused
from headrace.broker.groups.fencing import Coordinator
from headrace.broker.groups.store import GroupStore
from headrace.broker.handlers import topics as handler
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.state import WHEN_MAX_S, BrokerState
from headrace.broker.topics import LEADER_PAUSE_S, NewTopic, TopicAdmin
from headrace.client.errors import ClientError
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import NoNodeError
from headrace.coordination.topics import PartitionState, TopicState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

ID = UUID(int=1)
BROKER = BrokerRegistration(1, "127.0.0.1", 9092, "test")
OTHER = BrokerRegistration(2, "127.0.0.2", 9092, "test")


def topic(name: str, count: int = 1, leader: int = 1) -> TopicState:
    part = PartitionState(leader, 0, (leader,), (leader,))
    return TopicState(name, ID, dict.fromkeys(range(count), part))


SLEEP, TESTED = time.sleep, threading.main_thread()


def no_wait(wait_s: float) -> None:
    """Other threads, such as one that Spark left in this process, may wait."""
    if threading.current_thread() is TESTED:
        pytest.fail("a control thread waits")
    SLEEP(wait_s)


class Registry:
    """ZooKeeper's topics: one, "t"."""

    def __init__(self) -> None:
        self.topic = topic("t")

    def get(self, name: str) -> TopicState:
        assert name == "t"
        return self.topic

    def add_partitions(self, name: str, replicas: Mapping[int, tuple[int, ...]], **_: Any) -> TopicState:
        self.topic = topic(name, len(self.topic.partitions) + len(replicas))
        return self.topic


class Site:
    """A broker with a clock that the test sets, and threads that run when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", no_wait)
        self.view = ClusterView().with_brokers([BROKER, OTHER]).with_topics({"t": topic("t")})
        self.served = 1
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []
        self.timers: list[Callable[[], None]] = []
        self.client = ""
        self.admin = TopicAdmin(
            cast(Any, Registry()), BrokerConfig(), lambda: self.view, lambda _, index: index < self.served
        )
        nothing = cast(Any, None)
        self.state = BrokerState(
            broker_id=1,
            datacenter="test",
            cluster_id="test",
            config=BrokerConfig(),
            loop=cast(
                Any, SimpleNamespace(post=None, at_wakeup_end=lambda _: None, call_later=self._call_later)
            ),
            partitions=nothing,
            control=cast(Any, self),
            codec=nothing,
            topics=self.admin,
            on_demand=nothing,
            lookups=nothing,
            cold_reads=nothing,
        )

    def _call_later(self, _delay_ms: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        """Runs what is submitted, and lets one pause of every wait pass."""
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        while self.jobs:
            job, done = self.jobs.pop(0)
            done(job(), None)

    def raise_partitions(self, count: int, timeout_s: int) -> list[Any]:
        body = CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name=TopicName("t"), count=i32(count), assignments=None),),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=timeout_s)),
            validate_only=False,
        )
        answers: list[Any] = []
        handler.create_partitions(self.state, cast(Request, SimpleNamespace(body=body))).then(answers.append)
        return answers


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_new_partitions_are_waited_for_without_a_thread(site: Site) -> None:
    answers = site.raise_partitions(3, timeout_s=20)
    for _ in range(5):
        site.run()
        assert not site.jobs and not answers, "the threads are free for others"
    site.view = site.view.with_topics({"t": topic("t", 3)})
    site.run()
    assert not answers, "they are known, but not served"
    site.served = 3
    site.run()
    (answer,) = answers
    assert answer["results"] == [{"name": "t", "error_code": ErrorCode.NONE, "error_message": None}]


def test_more_partitions_are_made_although_one_of_those_before_has_no_leader(site: Site) -> None:
    """The answer came at the timeout, as an error, and when the client tried again, there were as many."""
    site.admin = TopicAdmin(
        cast(Any, Registry()), BrokerConfig(), lambda: site.view, lambda _, index: 1 <= index < site.served
    )
    site.state.topics = site.admin
    answers = site.raise_partitions(3, timeout_s=20)
    site.view = site.view.with_topics({"t": topic("t", 3)})
    site.served = 3
    site.run()
    (answer,) = answers
    assert answer["results"] == [{"name": "t", "error_code": ErrorCode.NONE, "error_message": None}]


def test_a_request_for_which_no_thread_has_time_is_freed_at_once(site: Site) -> None:
    """Its refusal referred to itself, so the request waited for the garbage collector."""
    answers = site.raise_partitions(3, timeout_s=20)
    _, done = site.jobs.pop()
    refusal = Refused(ErrorCode.REQUEST_TIMED_OUT, "20000 jobs wait already; retry")
    kept = weakref.ref(refusal)
    gc.disable()
    try:
        done(None, refusal)
        del done, refusal
        site.run()
        assert answers[0]["results"][0]["error_code"] == ErrorCode.REQUEST_TIMED_OUT
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("timeout_s", "waits_s"), [(20, 20), (1_000_000, WHEN_MAX_S)])
def test_a_wait_for_partitions_ends(site: Site, timeout_s: int, waits_s: float) -> None:
    """At the request's timeout, and soon whatever that is: the client may be gone."""
    answers = site.raise_partitions(3, timeout_s)
    site.run()
    site.now_s += waits_s - 1
    site.run()
    assert not answers
    site.now_s += 2
    site.run()
    (answer,) = answers
    assert answer["results"][0]["error_code"] is ErrorCode.REQUEST_TIMED_OUT
    assert "partitions [1, 2] are not served yet" in answer["results"][0]["error_message"]
    assert not site.timers and not site.jobs


def test_a_leader_that_does_not_answer_is_asked_once_for_all_who_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fails(host: str, *_: object) -> list[int]:
        asked.append(host)
        raise ClientError("it does not answer")

    monkeypatch.setattr(topics_module, "_served_by", fails)
    site.served = 0
    elsewhere = topic("t", leader=2)
    for _ in range(10):
        assert not site.admin.is_usable(elsewhere, dict(elsewhere.partitions))
    assert asked == [OTHER.host]
    site.now_s += LEADER_PAUSE_S
    monkeypatch.setattr(topics_module, "_served_by", lambda *_: [0])
    assert site.admin.is_usable(elsewhere, dict(elsewhere.partitions))


class Unlisted(dict[str, TopicState]):
    """Topics of which one may be looked up, but not all."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all topics are looked at for one")


@pytest.mark.parametrize(("name", "known"), [("a.b_c", "a_b.c"), ("a_b_c", "a_b.c"), ("a_b.d", None)])
def test_a_collision_of_names_is_found_without_a_look_at_all_topics(
    site: Site, name: str, known: str | None
) -> None:
    topics = {each: topic(each) for each in ("t", "a_b.c", "other")}
    site.view = replace(site.view.with_topics(topics), topics=Unlisted(topics))
    if known is None:
        assert site.admin.create(NewTopic(name), validate_only=True).name == name
    else:
        with pytest.raises(Refused, match=f"{name!r} collides with topic {known!r}"):
            site.admin.create(NewTopic(name), validate_only=True)


def test_a_name_no_longer_collides_once_the_other_topic_is_gone(site: Site) -> None:
    site.view = site.view.with_topics({"a.b": topic("a.b")}).with_brokers([BROKER]).changed()
    with pytest.raises(Refused, match="collides"):
        site.admin.create(NewTopic("a_b"), validate_only=True)
    site.view = site.view.with_topics({"c": topic("c")})
    assert site.admin.create(NewTopic("a_b"), validate_only=True)


class Groups:
    """ZooKeeper's groups, which may not be listed."""

    def __init__(self, *names: str) -> None:
        self.paths = {znodes.group(name) for name in names}

    def exists(self, path: str) -> object | None:
        return object() if path in self.paths else None

    def children_or_empty(self, path: str) -> list[str]:
        assert path != znodes.CONSUMERS, "all groups are read to delete one"
        return []

    def get_many(self, paths: list[str]) -> list[Any]:
        return [None for _ in paths]

    children_many = stat_many = get_many

    def delete(self, path: str) -> None:
        if path not in self.paths:
            raise NoNodeError(path)
        self.paths.remove(path)


def test_groups_are_deleted_without_reading_the_list_of_groups(site: Site) -> None:
    session = Groups("g", "with/slash")
    store = GroupStore(cast(Any, session), cast(Any, site), lambda: Coordinator(1, 1))
    outcomes: list[Any] = []
    for name in ("g", "with/slash", "unknown", "g"):
        store.delete(name).then(outcomes.append)
        site.run()
    assert outcomes == [True, True, False, False]
    assert not session.paths
