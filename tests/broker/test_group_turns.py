"""Very many groups, or members, take no long turn of the event loop: not all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final, cast

from fix_group_brokers import joining
from headrace.broker.cluster import ClusterView
from headrace.broker.groups.fencing import Coordinator
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.types import JoinReply
from headrace.broker.handlers.groups import GroupService
from headrace.broker.loop import EventLoop
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination.brokers import BrokerRegistration
from headrace.process.clock import monotonic_ms
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

GROUPS: Final = 3_000
DELAY_MS: Final = 50
STORED: Final = 100_000
TURN_MAX_S: Final = 0.1


class SoonJobs:
    """Runs each job on a thread of its own, then what follows: `longest_s` is the CPU of the longest one."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ended: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(job()))
        thread.start()
        thread.join()
        self._ended.append(lambda: done(results[0], None))

    def settle(self, first: Callable[[], object]) -> None:
        self._ended.append(lambda: _call(first))
        while self._ended:
            began_s = time.thread_time()
            self._ended.pop(0)()
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)


def _call(first: Callable[[], object]) -> None:
    first()


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


def test_a_list_of_very_many_groups_takes_no_long_turn() -> None:
    """Which broker coordinates a group costs microseconds: of 100,000 groups it cost the loop half a second,
    with each ListGroups, and each time a broker came or went."""
    names = [f"console-consumer-{number}" for number in range(STORED)]

    def stats(paths: Iterable[str]) -> list[None]:
        return [None for _ in paths]

    session = SimpleNamespace(children_or_empty=lambda _: names, stat_many=stats)
    jobs = SoonJobs()
    store = GroupStore(cast(Any, session), jobs, lambda: Coordinator(1, 5))
    service = service_of(SimpleNamespace(loop=None), store, brokers=3)
    jobs.settle(service.brokers_changed)
    assert jobs.longest_s < TURN_MAX_S
    answers: list[Any] = []
    request = Request(ApiKey.LIST_GROUPS, 0, 1, None, SimpleNamespace())
    jobs.settle(lambda: service.administration.list(cast(Any, None), request).then(answers.append))
    assert jobs.longest_s < TURN_MAX_S
    listed = answers[0]()["groups"]
    assert {group["group_id"] for group in listed} == {each for each in names if service._coordinates(each)}
    wanted = SimpleNamespace(groups=names[:10])
    request = Request(ApiKey.DESCRIBE_GROUPS, 5, 1, None, wanted)
    jobs.settle(lambda: service.administration.describe(cast(Any, None), request).then(answers.append))
    assert jobs.longest_s < TURN_MAX_S
    states = {group["group_id"]: group["group_state"] for group in answers[1]["groups"]}
    assert states == dict.fromkeys(names[:10], "Empty")
