"""Requests of the admin clients: sent until the response holds no transient error, or the time is up.

Owns one network, used by one caller at a time, and the decision to retry: after "not the controller", "not
the coordinator" or "no leader yet", and after no response if the request may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from headrace.client.backoff import Backoff
from headrace.client.calls import Call, Schema, control_call, metadata_call
from headrace.client.cluster import Cluster, TopicInfo, from_metadata
from headrace.client.errors import BrokerError, BrokerGoneError, ClientError, NetworkError, UnknownTopicError
from headrace.client.lifecycle import Client
from headrace.client.network import Network
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

RETRY: Final = Backoff(first_ms=50, max_ms=1000)
LATE_CALL_S: Final = 0.5
"""How long a call may take that begins when the time of all calls is over."""
LATE_MAX_S: Final = 1.0
"""How long all calls together may take that begin when that time is over."""
CLOSE_WAIT_MAX_S: Final = 5.0
"""How long `close` lets a call of another thread end; a survey takes up to 3.5 s."""

_TRANSIENT_ERRORS: Final = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class ResultCode(NamedTuple):
    """One error code of a response (it may be `NONE`), what it is about, and the broker's message."""

    code: int
    subject: str
    message: str | None


class AdminRequests(Client):
    """Safe to share: callers wait for each other, each at most `timeout_ms`, all together `total_ms`, and
    `LATE_MAX_S` more for those that begin late.

    Use `network` only inside an attempt (see `retry`).
    """

    def __init__(
        self,
        network: Network,
        *,
        timeout_ms: float,
        total_ms: float | None,
        clock: Callable[[], float],
        draw: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__("admin")
        self.network = network
        self._timeout_s = timeout_ms / 1000
        self.clock = clock
        self._ends_s = None if total_ms is None else clock() + total_ms / 1000
        self._draw = draw
        self._sleep = sleep
        self._lock = threading.Lock()

    def change(
        self,
        api_key: ApiKey,
        build: Callable[[Schema], Any],
        results_of: Callable[[Any], list[ResultCode]],
    ) -> Any:
        """Like `call`, sent to the controller, and not sent again once it may have taken effect."""
        call = control_call(api_key, build)
        return self.call(call, results_of, target=self._controller, repeatable=False)

    def call(
        self,
        call: Call,
        results_of: Callable[[Any], list[ResultCode]],
        *,
        target: Callable[[float], int | None] = lambda _deadline_s: None,
        repeatable: bool = True,
    ) -> Any:
        """Returns the body of the first response without a transient error; raises other errors.

        `target` returns the broker to send to (None: any); it is called for each attempt, with the deadline,
        and may ask the brokers: what it raises is an error of a request that was not sent. A request that is
        not `repeatable` is not sent again once it may have taken effect: a topic created twice would be
        reported as existing.
        """
        bodies = []

        def attempt(deadline_s: float) -> ClientError | None:
            may_repeat = True
            try:
                node_id = target(deadline_s)
                may_repeat = repeatable
                body = self.network.send_and_wait(call, node_id=node_id, deadline_s=deadline_s)
                raise_first_error(results_of(body))
            except ClientError as error:
                if not _is_transient(error, may_repeat):
                    raise
                return error
            bodies.append(body)
            return None

        self.retry(attempt, refresh=True)
        return bodies[0]

    def retry(self, attempt: Callable[[float], ClientError | None], *, refresh: bool = False) -> None:
        """Runs `attempt(deadline_s)` until it returns None instead of a transient error.

        Raises the last error once the time is up. `refresh`: with fresh metadata of the brokers each time.
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
                    try:
                        self.refresh([], deadline_s)
                    except NetworkError:
                        raise error from None  # the time is up

    def metadata(self, topics: list[str] | None) -> Cluster:
        """Returns fresh metadata of the topics (None: all)."""
        with self._lock:
            return self.refresh(topics, self._deadline_s())

    def refresh(self, topics: list[str] | None, deadline_s: float) -> Cluster:
        """Like `metadata`, inside an attempt; updates the network's cluster, too."""
        failures = 0
        while True:
            try:
                body = self.network.send_and_wait(metadata_call(topics, create=False), deadline_s=deadline_s)
            except NetworkError as error:
                failures += 1
                self._pause(error, failures, deadline_s)
            else:
                newer = from_metadata(body)
                self.network.cluster = self.network.cluster.updated(newer)
                return newer

    @contextmanager
    def alone(self) -> Iterator[float]:
        """Reserves the network for the caller. Yields the present time of the clock."""
        self._check_usable()
        with self._lock:
            yield self.clock()

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Returns once the topic has at least `partitions` partitions, and all have leaders."""

        def attempt(deadline_s: float) -> ClientError | None:
            info = self.refresh([topic], deadline_s).topics.get(topic)
            known = 0 if info is None else len(info.partitions)
            led = len(self.network.cluster.led_partitions(topic))
            if known >= partitions and led == known:
                return None
            return NetworkError(f"{topic}: {known - led} partitions have no leader")

        self.retry(attempt)

    def close(self) -> None:
        """Calls of other threads end with `ClosedError`. May be called again."""
        if self._forked:
            return
        self.network.end_waits()
        has_lock = self._lock.acquire(timeout=CLOSE_WAIT_MAX_S)
        try:
            self.network.close()
        finally:
            if has_lock:
                self._lock.release()

    @property
    def _is_closed(self) -> bool:
        return self.network.is_ending

    def _controller(self, _deadline_s: float) -> int | None:
        cluster = self.network.cluster
        return cluster.controller_id if cluster.controller_id in cluster.brokers else None

    def _pause(self, error: ClientError, failures: int, deadline_s: float) -> None:
        wait_s = RETRY.delay_s(failures, self._draw)
        if self.clock() + wait_s >= deadline_s:
            raise error
        self._sleep(wait_s)

    def left_s(self) -> float:
        """Returns how long a call that begins now may take; 0 once the time of late calls is over, too."""
        if self._ends_s is None:
            return self._timeout_s
        left_s = self._ends_s - self.clock()
        late_s = max(0.0, min(LATE_CALL_S, left_s + LATE_MAX_S))
        return min(self._timeout_s, max(late_s, left_s))

    def _deadline_s(self) -> float:
        self._check_usable()
        return self.clock() + self.left_s()


def existing_topic(topic: str, cluster: Cluster) -> TopicInfo:
    """Returns the topic's metadata. Raises `UnknownTopicError`."""
    info = cluster.topics.get(topic)
    if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(f"there is no topic {topic!r}")
    return info


def _is_transient(error: ClientError, may_repeat: bool) -> bool:
    if isinstance(error, BrokerError):
        # With the second one a change may have been made: ZooKeeper did not answer in time.
        return error.code in _TRANSIENT_ERRORS or (
            may_repeat and error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
    return isinstance(error, BrokerGoneError) or (may_repeat and isinstance(error, NetworkError))


def raise_first_error(results: list[ResultCode]) -> None:
    for result in results:
        if result.code != ErrorCode.NONE:
            raise BrokerError(result.code, result.subject, result.message)
