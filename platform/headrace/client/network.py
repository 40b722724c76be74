"""All connections of one client and its metadata of the cluster: one selector, no thread of its own.

Owns connecting and reconnecting (with backoff), refreshing metadata, and the blocking `send_and_wait` for
callers without a loop. For one thread; only `wake` may be called from others.
"""

from __future__ import annotations

import logging
import random
import selectors
import time
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Any, Final

from headrace.client.backoff import Backoff
from headrace.client.calls import ITEMS_AT_ONCE_MAX, Call, metadata_call
from headrace.client.cluster import BrokerAddress, Cluster, check_topic, from_metadata, parse_bootstrap
from headrace.client.connection import BrokerConnection, ConnectionState, OnResponse, problem_of
from headrace.client.errors import (
    BrokerGoneError,
    ClientError,
    ClosedError,
    NetworkError,
    RequestTimedOutError,
)
from headrace.client.informants import PATIENCE_S, Informants, most_idle
from headrace.client.metadata_updates import METADATA_MAX_AGE_MS, NEVER, MetadataUpdates
from headrace.client.resolving import Resolver
from headrace.client.waker import Waker
from headrace.wire.frames import FRAME_LIMIT_BYTES

logger = logging.getLogger(__name__)

RECONNECT: Final = Backoff(first_ms=50, max_ms=1000)
_CHECK_INTERVAL_S: Final = 0.05


class Network:
    """Identifies brokers by their ids in the cluster, and bootstrap addresses by -1, -2 and so on."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str,
        request_timeout_ms: float,
        create_topics: bool = False,
        metadata_max_age_ms: float = METADATA_MAX_AGE_MS,
        frame_limit_bytes: int = FRAME_LIMIT_BYTES,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.cluster = Cluster()
        self.cluster_version = 0
        """Counts the metadata responses that `cluster` was built from."""
        self.last_error: ClientError | None = None
        """The latest error of a connection or metadata request; None after a metadata request succeeded."""
        self.request_timeout_s = request_timeout_ms / 1000
        self._bootstrap = {-1 - i: address for i, address in enumerate(parse_bootstrap(bootstrap))}
        self._client_id = client_id
        self._create_topics = create_topics
        self._frame_limit_bytes = frame_limit_bytes
        self._clock = clock
        self._draw = draw
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._connections: dict[int, BrokerConnection] = {}
        self._unflushed: dict[int, None] = {}
        self._failures: dict[int, int] = {}
        self._errors: dict[int, ClientError] = {}
        self._not_before_s: dict[int, float] = {}
        self._topics: set[str] = set()
        self._informants = Informants()
        self._updates = MetadataUpdates(metadata_max_age_ms, draw)
        self.closed = False
        self.is_ending = False
        self._resolver = Resolver(self.wake)

    # --- metadata ---

    def add_topics(self, topics: Iterable[str]) -> None:
        """Includes these topics in metadata requests from now on. Raises `TypeError`, `ValueError`."""
        added = set(topics) - self._topics
        for topic in added:
            check_topic(topic)
        if added:
            self._topics |= added
            self._updates.restart()

    def keep_topics(self, topics: Set[str]) -> None:
        """Includes these topics, and no others, in metadata requests from now on. Raises as `add_topics`."""
        self._topics &= topics
        self.add_topics(topics)

    def forget_topic(self, topic: str) -> None:
        """Leaves the topic out of metadata requests from now on."""
        self._topics.discard(topic)

    def request_update(self) -> None:
        """Requests fresh metadata at the next `poll`, or as soon as the backoff allows: what is known is
        wrong, or not enough.
        """
        self._updates.doubt()

    def _maybe_update(self, now_s: float) -> None:
        if now_s < self._updates.due_s() or self.any_ready() is None:
            return
        addresses = {**self.cluster.brokers, **self._bootstrap}
        connect = self.ready if self._updates.doubts else None
        node_id = self._informants.next(self._connections, addresses, now_s, connect=connect)
        assert node_id is not None
        if self._updates.is_awaited and self.is_silent(node_id):
            self._updates.put_off(now_s)
            return
        topics = sorted(self._topics) if len(self._topics) <= ITEMS_AT_ONCE_MAX else None
        call = metadata_call(topics, create=self._create_topics)
        self.send(node_id, call, partial(self._on_metadata, self._updates.ask(now_s)))

    def _on_metadata(self, number: int, body: Any, error: ClientError | None) -> None:
        now_s = self._clock()
        if error is None and not body.brokers:
            # It has just begun, and knows none. With its answer every connection would be given up.
            error = NetworkError("a broker answered that the cluster has no brokers")
        if error is not None:
            self.last_error = error
            self._updates.failed(number, now_s)
        elif self._updates.is_news(number):
            newer = from_metadata(body)
            self.cluster = self.cluster.updated(newer)
            self.cluster_version += 1
            self.last_error = None
            self._updates.answered(number, now_s, is_incomplete=newer.is_incomplete)
            self._drop_moved_brokers()

    def _drop_moved_brokers(self) -> None:
        for node_id, connection in list(self._connections.items()):
            if node_id >= 0 and self._address(node_id) != connection.address:
                self._drop(node_id, NetworkError(f"broker {node_id} moved from {connection.address}"))

    # --- connections ---

    def _address(self, node_id: int) -> BrokerAddress | None:
        return self._bootstrap.get(node_id) if node_id < 0 else self.cluster.brokers.get(node_id)

    def ready(self, node_id: int) -> bool:
        """Returns whether requests can be sent to the broker; if not, connects when the backoff allows."""
        connection = self._connections.get(node_id)
        if connection is not None:
            return connection.state is ConnectionState.READY
        address = self._address(node_id)
        if address is None or self._clock() < self._not_before_s.get(node_id, 0.0):
            return False
        try:
            targets = self._resolver.targets(address)
        except OSError as error:
            self._note_failure(node_id, NetworkError(f"cannot connect to {address}: {problem_of(error)}"))
            return False
        if targets is None:
            return False
        connection = BrokerConnection(
            address,
            client_id=self._client_id,
            clock=self._clock,
            request_timeout_s=self.request_timeout_s,
            frame_limit_bytes=self._frame_limit_bytes,
        )
        try:
            connection.start(attempt=self._failures.get(node_id, 0), targets=targets)
        except NetworkError as error:
            self._note_failure(node_id, error)
            return False
        assert connection.socket is not None
        self._errors.pop(node_id, None)
        self._connections[node_id] = connection
        self._selector.register(connection.socket, connection.events, node_id)
        return False

    def ready_since_s(self, node_id: int) -> float:
        """Returns since when a broker that is `ready` has been so, over one connection."""
        return self._connections[node_id].ready_s

    def any_ready(self) -> int | None:
        """Returns the ready broker with the fewest requests in flight; a silent one comes last.

        If none is ready and answers, connects to one, and to a further one each `PATIENCE_S`.
        """
        now_s = self._clock()
        best = most_idle(self._connections, now_s)
        if best is not None and not self.is_silent(best):
            return best
        if all(connection.started_s <= now_s - PATIENCE_S for connection in self._connections.values()):
            nodes = [*self.cluster.brokers, *self._bootstrap]
            known = {connection.address for connection in self._connections.values()}
            candidates = [node_id for node_id in nodes if self._address(node_id) not in known]
            start = int(self._draw() * len(candidates))
            for i in range(len(candidates)):
                node_id = candidates[(start + i) % len(candidates)]
                self.ready(node_id)
                if node_id in self._connections:
                    break
        return best

    def is_silent(self, node_id: int) -> bool:
        """Whether a ready broker has not answered a request for `PATIENCE_S`."""
        return self._connections[node_id].is_silent(self._clock() - PATIENCE_S)

    def error_of(self, node_id: int) -> ClientError | None:
        """Returns why the latest connection to this broker ended; None while there is one, or none yet."""
        return self._errors.get(node_id)

    def is_looking_up(self, node_id: int) -> bool:
        """Whether nothing is known yet of what this broker's name means."""
        address = self._address(node_id)
        return address is not None and self._resolver.is_looking_up(address)

    @property
    def bootstrap(self) -> dict[int, BrokerAddress]:
        """The bootstrap addresses by the negative ids that stand for them here."""
        return dict(self._bootstrap)

    def in_flight_count(self, node_id: int) -> int:
        connection = self._connections.get(node_id)
        return 0 if connection is None else connection.in_flight_count

    def send(
        self, node_id: int, call: Call, on_response: OnResponse, *, timeout_s: float | None = None
    ) -> None:
        """Sends to a broker that is `ready`; `on_response` is called later, from `poll` or `close`."""
        self._connections[node_id].send(call, on_response, timeout_s=timeout_s)
        self._unflushed[node_id] = None

    def _watch(self, node_id: int, connection: BrokerConnection) -> None:
        assert connection.socket is not None
        if self._selector.get_key(connection.socket).events != connection.events:
            self._selector.modify(connection.socket, connection.events, node_id)

    def _drop(self, node_id: int, error: ClientError) -> None:
        connection = self._connections.pop(node_id)
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
        self._note_failure(node_id, error)
        connection.close(error)

    def _note_failure(self, node_id: int, error: ClientError) -> None:
        self.last_error = self._errors[node_id] = error
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        self._not_before_s[node_id] = self._clock() + RECONNECT.delay_s(failures, self._draw)
        self._updates.want()
        logger.debug("broker %s: %s", node_id, error)

    # --- the loop ---

    def wake(self) -> None:
        """Makes a waiting `poll`, or else the next one, return at once. Any thread may call it."""
        self._waker.wake()

    def poll(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for events and handles them. Runs the callbacks of `send`."""
        now_s = self._clock()
        self._maybe_update(now_s)
        self._flush()
        wait_s = max(0.0, min(timeout_s, self._next_deadline_s(now_s) - now_s))
        for key, mask in self._selector.select(wait_s):
            if key.data is None:
                self._waker.drain()
            else:
                self._on_event(key.data, mask)
        now_s = self._clock()
        for node_id, connection in list(self._connections.items()):
            deadline_s = connection.deadline_s
            if deadline_s is not None and now_s >= deadline_s:
                try:
                    connection.check_deadline(now_s)
                except NetworkError as error:
                    self._drop(node_id, error)
        if any(connection.is_silent(now_s - PATIENCE_S) for connection in self._connections.values()):
            self._updates.hurry()

    def _flush(self) -> None:
        """Hands the requests sent since the last `poll` to the kernel together."""
        unflushed, self._unflushed = self._unflushed, {}
        for node_id in unflushed:
            self._on_event(node_id, 0)

    def _on_event(self, node_id: int, mask: int) -> None:
        connection = self._connections.get(node_id)
        if connection is None:
            return
        try:
            connection.on_event(mask)
        except NetworkError as error:
            if self._connections.get(node_id) is connection:
                self._drop(node_id, error)
            return
        if self._connections.get(node_id) is connection:
            self._watch(node_id, connection)
            if connection.state is ConnectionState.READY:
                self._failures.pop(node_id, None)

    def _next_deadline_s(self, now_s: float) -> float:
        """Returns when `poll` must act even if nothing arrives."""
        deadlines = [at_s for at_s in self._not_before_s.values() if at_s > now_s]
        for connection in self._connections.values():
            deadline_s = connection.deadline_s
            if deadline_s is not None:
                deadlines.append(deadline_s)
            is_ready = connection.state is ConnectionState.READY
            since_s = connection.waits_since_s if is_ready else connection.started_s
            if since_s is not None and since_s + PATIENCE_S > now_s:
                deadlines.append(since_s + PATIENCE_S)  # another broker is tried
        due_s = self._updates.due_s()
        if due_s > now_s:
            deadlines.append(due_s)
        return min(deadlines, default=NEVER)

    # --- blocking ---

    def send_and_wait(self, call: Call, *, node_id: int | None = None, deadline_s: float) -> Any:
        """Sends to `node_id` (None: the first broker that is ready) and returns the response's body.

        `deadline_s` is on the given clock. Raises `NetworkError` (`BrokerGoneError` as soon as the cluster no
        longer has `node_id`), `RequestTimedOutError`, `UnsupportedApiError`, `ClosedError` (see `end_waits`).
        """
        self._check_open()
        self.poll(0.0)  # notices connections that broke since the last poll
        responses: list[tuple[Any, ClientError | None]] = []
        sent = False
        while not responses:
            self._check_open()
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                raise self._no_response(node_id, sent)
            if not sent:
                if node_id is not None and self._address(node_id) is None:
                    raise BrokerGoneError(f"broker {node_id} could not be reached: it is not in the cluster")
                target = self.any_ready() if node_id is None else node_id
                if target is not None and self.ready(target):
                    self.send(
                        target, call, lambda body, error: responses.append((body, error)), timeout_s=left_s
                    )
                    sent = True
                    continue
            self.poll(left_s if sent else min(left_s, _CHECK_INTERVAL_S))
        body, error = responses[0]
        if error is not None:
            raise error
        return body

    def end_waits(self) -> None:
        """Makes `send_and_wait` raise `ClosedError`, also one that waits now. Any thread may call it."""
        self.is_ending = True
        self.wake()

    def _check_open(self) -> None:
        if self.is_ending or self.closed:
            raise ClosedError("the client was closed")

    def _no_response(self, node_id: int | None, sent: bool) -> ClientError:
        where = ", ".join(map(str, self._bootstrap.values()))
        if node_id is not None:
            where = f"broker {node_id} at {self._address(node_id) or 'an unknown address'}"
        if sent:
            return RequestTimedOutError(f"{where}: no response within the time allowed")
        return NetworkError(
            f"{where} could not be reached" + (f": {self.last_error}" if self.last_error else "")
        )

    def close(self) -> None:
        """Closes all connections; requests in flight fail with a `NetworkError`. May be called again."""
        if self.closed:
            return
        self.closed = True
        self._end_connections()
        self._waker.close()

    def restart(self) -> None:
        """Ends all connections, in whatever state an exception in `poll` has left them."""
        self._end_connections()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker, selectors.EVENT_READ)

    def _end_connections(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._unflushed.clear()
        self._selector.close()
