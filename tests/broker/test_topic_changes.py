"""Changes of topics that other changes interrupt: none is lost, and no other topic is hit."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.static.primitive import i32Timedelta

from fix_zookeeper import ZooKeeperRoom
from headrace.broker.cluster import ClusterView
from headrace.broker.handlers import topics as handler
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.topics import NewTopic, TopicAdmin
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import TopicRegistry
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request


class Site:
    """A broker that saw the topics once, and the registry that others change meanwhile."""

    def __init__(self, registry: TopicRegistry) -> None:
        self.registry = registry
        self.view = ClusterView()
        self.topics = TopicAdmin(registry, BrokerConfig(), lambda: self.view, lambda *_: True)

    def see(self) -> None:
        self.view = self.view.with_topics(self.registry.list())

    def in_steps(self, steps: Sequence[Callable[[None], Any]]) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        promise.resolve([step(None) for step in steps])
        return promise

    def when(self, _reached: Callable[[], bool], _deadline_s: float) -> Promise[None]:
        promise: Promise[None] = Promise()
        promise.resolve(None)
        return promise

    def delete(self, **named: Any) -> Any:
        body = DeleteTopicsRequest(
            topics=(DeleteTopicState(**named),),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=5)),
        )
        answers: list[Any] = []
        handler.delete(cast(Any, self), cast(Request, SimpleNamespace(body=body))).then(answers.append)
        return answers[0]["responses"][0]


@pytest.fixture
def site(zookeeper: ZooKeeperRoom) -> Iterator[Site]:
    with zookeeper.session() as session:
        yield Site(TopicRegistry(session))


def test_a_topic_that_was_made_again_is_not_deleted_by_the_id_of_its_predecessor(site: Site) -> None:
    """A client repeats a request that another broker has served; this one has not seen yet that it has."""
    old, new = uuid4(), uuid4()
    site.registry.create("t", old, {0: (1,)})
    site.see()
    site.registry.delete("t")
    site.registry.create("t", new, {0: (1,)})
    assert site.delete(name=None, topic_id=old)["error_code"] is ErrorCode.UNKNOWN_TOPIC_ID
    assert site.registry.get("t").topic_id == new
    site.see()
    assert site.delete(name=None, topic_id=new)["error_code"] is ErrorCode.NONE
    assert site.registry.list() == {}


def test_a_topic_that_is_made_again_while_it_is_deleted_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients delete a topic, one of them makes it again: the other one's request does not hit that."""
    new = uuid4()
    site.registry.create("t", uuid4(), {0: (1,)})
    read = site.registry._get_versioned

    def reads_late(name: str) -> Any:
        monkeypatch.setattr(site.registry, "_get_versioned", read)
        found = read(name)
        site.registry.delete("t")
        site.registry.create("t", new, {0: (1,), 1: (1,)})
        return found

    monkeypatch.setattr(site.registry, "_get_versioned", reads_late)
    assert site.delete(name="t", topic_id=None)["error_code"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert site.registry.get("t").topic_id == new


def test_two_clients_that_change_settings_at_once_lose_none(site: Site) -> None:
    site.registry.create("t", uuid4(), {0: (1,)})
    calls: list[float] = []

    def sets_flush(present: dict[str, str]) -> dict[str, str]:
        calls.append(time.monotonic())
        if len(calls) == 1:
            site.topics.set_config(
                "t", lambda config: config | {"retention.ms": "3600000"}, validate_only=False
            )
        return present | {"flush.ms": "5"}

    site.topics.set_config("t", sets_flush, validate_only=False)
    assert site.registry.get("t").config.items() >= {"flush.ms": "5", "retention.ms": "3600000"}.items()
    assert len(calls) == 2


def test_a_new_partition_is_not_led_by_a_broker_that_stops(site: Site) -> None:
    """KIP-841. It has replicas there all the same: they are for years, and the broker is back in a moment."""
    live = [BrokerRegistration(each, "127.0.0.1", 9092, "east", is_stopping=each == 1) for each in (1, 2, 3)]
    site.view = site.view.with_brokers(live)
    new = NewTopic("t", 1, -1, {}, {0: (1, 2, 3)})
    site.topics.create(new, validate_only=False)
    site.topics.add_partitions("t", 2, [(3, 1, 2)], validate_only=False)
    made = {index: (each.leader, each.isr) for index, each in site.registry.get("t").partitions.items()}
    assert made == {0: (2, (2, 3)), 1: (3, (3, 2))}
