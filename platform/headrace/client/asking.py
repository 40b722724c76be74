"""Asking brokers until an answer holds, or the time is up: what all of administration does.

Owns one network, used by one caller at a time, and when a question is asked again: after a broker has said
that it is no longer the controller, or that a leader is being found; after no answer if it may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.client import forks
from headrace.client.backoff import Backoff
from headrace.client.calls import Call, Schema, control_call, metadata_call
from headrace.client.cluster import Cluster, TopicInfo, from_metadata
from headrace.client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ForkedError,
    NetworkError,
    UnknownTopicError,
)
from headrace.client.network import Network
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

RETRY: Final = Backoff(first_ms=50, max_ms=1000)

_ASK_AGAIN: Final = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Result(NamedTuple):
    """One error code of an answer, `NONE` among them, and what it is about."""

    code: int
    what: str
    message: str | None


class Asker:
    """Safe to share: callers wait for each other, each at most `timeout_ms`.

    `network` may be used inside an attempt alone (see `until_done`).
    """

    def __init__(
        self,
        network: Network,
        *,
        timeout_ms: float,
        clock: Callable[[], float],
        draw: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.network = network
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._draw = draw
        self._sleep = sleep
        self._forked = False
        self._lock = threading.Lock()
        forks.watch(self)

    def change(
        self, api_key: ApiKey, build: Callable[[Schema], Any], result: Callable[[Any], list[Result]]
    ) -> Any:
        """As `call`, of the controller, and not sent again once it may have taken effect."""
        return self.call(control_call(api_key, build), result, self._controller, repeatable=False)

    def call(
        self,
        call: Call,
        result: Callable[[Any], list[Result]],
        target: Callable[[], int | None],
        *,
        repeatable: bool,
    ) -> Any:
        """Ask until the answer holds no error worth asking again after; raises the others.

        What is not `repeatable` is not sent again once it may have taken effect: a topic created twice
        would be reported as existing.
        """
        answers = []

        def attempt(deadline_s: float) -> ClientError | None:
            try:
                body = self.network.ask(call, node_id=target(), deadline_s=deadline_s)
                _raise_worst(result(body))
            except ClientError as error:
                again = isinstance(error, BrokerError) and error.code in _ASK_AGAIN
                if not again and not (repeatable and isinstance(error, NetworkError)):
                    raise
                return error
            answers.append(body)
            return None

        self.until_done(attempt, refresh=True)
        return answers[0]

    def until_done(self, attempt: Callable[[float], ClientError | None], *, refresh: bool = False) -> None:
        """`attempt(deadline_s)` until it returns no error that is worth another attempt; the last one is
        raised once the time is up. `refresh`: with a fresh picture of the brokers each time.
        """
        deadline_s = self._deadline_s()
        with self._lock:
            if refresh and not self.network.cluster.brokers:
                self.refresh([], deadline_s)
            failures = 0
            while (error := attempt(deadline_s)) is not None:
                failures += 1
                self._pause(error, failures, deadline_s)
                if refresh:
                    self.refresh([], deadline_s)

    def metadata(self, topics: list[str] | None) -> Cluster:
        """Fresh metadata of those topics (None: all)."""
        with self._lock:
            return self.refresh(topics, self._deadline_s())

    def refresh(self, topics: list[str] | None, deadline_s: float) -> Cluster:
        """The same inside an attempt; it is the network's picture from now on."""
        failures = 0
        while True:
            try:
                body = self.network.ask(metadata_call(topics, create=False), deadline_s=deadline_s)
            except NetworkError as error:
                failures += 1
                self._pause(error, failures, deadline_s)
            else:
                newer = from_metadata(body)
                self.network.cluster = self.network.cluster.updated(newer)
                return newer

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Until the topic has so many partitions, and all have leaders."""

        def attempt(deadline_s: float) -> ClientError | None:
            info = self.refresh([topic], deadline_s).topics.get(topic)
            known = 0 if info is None else len(info.partitions)
            led = len(self.network.cluster.led_partitions(topic))
            if known >= partitions and led == known:
                return None
            return NetworkError(f"{topic}: {known - led} partitions have no leader")

        self.until_done(attempt)

    def close(self) -> None:
        """May be called again."""
        if not self._forked:
            self.network.close()

    def after_fork_in_child(self) -> None:
        self._forked = True

    def _controller(self) -> int | None:
        cluster = self.network.cluster
        return cluster.controller_id if cluster.controller_id in cluster.brokers else None

    def _pause(self, error: ClientError, failures: int, deadline_s: float) -> None:
        wait_s = RETRY.delay_s(failures, self._draw)
        if self._clock() + wait_s >= deadline_s:
            raise error
        self._sleep(wait_s)

    def _deadline_s(self) -> float:
        if self._forked:
            raise ForkedError("this admin was made before os.fork; make a new one in the child")
        if self.network.closed:
            raise ClosedError("the admin is closed")
        return self._clock() + self._timeout_s


def existing(topic: str, cluster: Cluster) -> TopicInfo:
    """What the metadata says of a topic. Raises `UnknownTopicError`."""
    info = cluster.topics.get(topic)
    if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(f"there is no topic {topic!r}")
    return info


def _raise_worst(results: list[Result]) -> None:
    for result in results:
        if result.code != ErrorCode.NONE:
            raise BrokerError(result.code, result.what, result.message)
