"""Very many groups, or members, take no long turn of the event loop: not all at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Final, cast

from fix_group_brokers import joining
from headrace.broker.cluster import ClusterView
from headrace.broker.groups.types import JoinReply
from headrace.broker.handlers.groups import GroupService
from headrace.broker.loop import EventLoop
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination.brokers import BrokerRegistration
from headrace.process.clock import monotonic_ms
from headrace.wire.errors import ErrorCode

GROUPS: Final = 3_000
DELAY_MS: Final = 50
STORED: Final = 100_000
TURN_MAX_S: Final = 0.1


def broker(number: int) -> BrokerRegistration:
    return BrokerRegistration(number, "127.0.0.1", 9092, "east", epoch=5)


def service_of(state: SimpleNamespace, store: object, brokers: int = 1) -> GroupService:
    state.config = BrokerConfig({"group.initial.rebalance.delay.ms": str(DELAY_MS)})
    state.broker_id, state.monotonic_ms = 1, monotonic_ms
    state.view = ClusterView().with_brokers([broker(number) for number in range(1, brokers + 1)])
    return GroupService(cast(Any, state), cast(Any, store))


class NoStore:
    """Nothing is stored of any group."""

    def load(self, _: str) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        promise.resolve(None)
        return promise


def test_groups_that_wait_for_one_moment_go_on_in_several_turns(loop: EventLoop) -> None:
    """Members choose their timeouts: 10,000 groups that they had wait for one moment took a second."""
    service = service_of(SimpleNamespace(loop=loop), NoStore())
    replies: list[JoinReply] = []
    now_ms = monotonic_ms()
    for number in range(GROUPS):
        service.coordinator.join(joining(f"g-{number}"), now_ms, replies.append)
    service._set_timer()
    time.sleep(DELAY_MS / 1000)
    most = 0
    while len(replies) < GROUPS:
        before = len(replies)
        loop.turn(1.0)
        most = max(most, len(replies) - before)
    assert {reply.error for reply in replies} == {ErrorCode.NONE}
    assert most <= 200
