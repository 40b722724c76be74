"""The error codes of groups and of their offsets, chosen by what real clients do after them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fix_group_brokers import joining
from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.offset_nodes import Offsets
from headrace.broker.handlers.groups import GroupService
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import CoordinationError, ZooKeeperUnavailableError
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request


def test_offsets_that_zookeeper_does_not_tell_now_are_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Apache Kafka's consumer retries after this code. After COORDINATOR_NOT_AVAILABLE, in answer to an
    OffsetFetch, its poll raises a KafkaException.
    """
    promise: Promise[Offsets | Exception] = Promise()
    promise.resolve(ZooKeeperUnavailableError("no server answers"))
    store = SimpleNamespace(read=lambda *_: promise)
    coordinator = SimpleNamespace(misplaced=lambda _: ErrorCode.NONE)
    service = OffsetService(cast(Any, coordinator), cast(Any, store), lambda _, then: then(ErrorCode.NONE))
    for version in (7, 9):
        group = SimpleNamespace(group_id="g", topics=None)
        body = SimpleNamespace(group_id="g", topics=None, groups=[group])
        answers: list[Tree] = []
        request = Request(ApiKey.OFFSET_FETCH, version, 1, None, body)
        service.fetch(cast(Any, None), request).then(answers.append)
        found = answers[0]["groups"][0] if version == 9 else answers[0]
        assert found["error_code"] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    [said] = caplog.messages
    assert said == "group 'g': its offsets are not read: no server answers"


class AwayOffsets:
    """A store whose every call ends with `error`. No member is stored."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def groups(self, _: object = None) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        promise.resolve(self._error)
        return promise

    def load(self, _: str) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        promise.resolve(None)
        return promise

    def with_members(self, _: object) -> Promise[Any]:
        return self.groups()

    def delete(self, _: str) -> Promise[Any]:
        return self.groups()


def serving(error: Exception) -> GroupService:
    """Returns the only broker's groups: one with a member, `joined`."""
    me = BrokerRegistration(1, "127.0.0.1", 9092, "east", epoch=5)
    state = SimpleNamespace(config=BrokerConfig({}), broker_id=1, view=ClusterView().with_brokers([me]))
    service = GroupService(cast(Any, state), cast(Any, AwayOffsets(error)))
    service.coordinator.join(joining("joined"), 0, lambda _: None)
    return service


def answer(handler: Callable[[Any, Request], Promise[Any]], api: ApiKey, **body: object) -> Tree:
    answers: list[Tree] = []
    handler(None, Request(api, 2, 1, None, SimpleNamespace(**body))).then(answers.append)
    return answers[0]


def test_a_group_of_which_zookeeper_does_not_tell_now_is_not_called_dead() -> None:
    """Tools would say that it does not exist. They ask again after this code."""
    service = serving(ZooKeeperUnavailableError("no server answers"))
    described = answer(service.administration.describe, ApiKey.DESCRIBE_GROUPS, groups=["joined", "stored"])[
        "groups"
    ]
    assert [(each["group_id"], each["error_code"]) for each in described] == [
        ("joined", ErrorCode.NONE),
        ("stored", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]


def test_a_list_of_groups_that_zookeeper_does_not_tell_now_is_not_called_complete() -> None:
    service = serving(ZooKeeperUnavailableError("no server answers"))
    listed = answer(service.administration.list, ApiKey.LIST_GROUPS)
    assert listed["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [each["group_id"] for each in listed["groups"]] == ["joined"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZooKeeperUnavailableError("no server answers"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (NotCoordinatorError("another broker"), ErrorCode.NOT_COORDINATOR),
        (CoordinationError("it has members"), ErrorCode.NON_EMPTY_GROUP),
    ],
)
def test_why_a_group_is_not_deleted(error: Exception, code: ErrorCode) -> None:
    answered = answer(
        serving(error).administration.delete, ApiKey.DELETE_GROUPS, groups_names=["stored", "joined"]
    )
    assert [each["error_code"] for each in answered["results"]] == [code, ErrorCode.NON_EMPTY_GROUP]
