"""One session with ZooKeeper: typed calls, ephemeral nodes that survive an expiry, watches that never miss
the last update.

Owns the ZooKeeper library's client and one thread (the *callback thread*). Knows nothing about brokers,
topics or groups.

What a caller may assume in each state (`session.state`):

- CONNECTING  Not connected yet. Calls wait, at most `call_timeout_s`, then raise `ZooKeeperUnavailableError`.
- CONNECTED   The server knows the session. Held ephemeral nodes exist, or the callback thread creates them.
- SUSPENDED   The connection is lost, the session perhaps not. A caller that needs to be the only owner of an
              ephemeral node (an elected leader, the owner of a partition) must assume that it is lost. Calls
              wait as in CONNECTING.
- LOST        The session expired and all its ephemeral nodes are deleted. The library opens a new session;
              then, in this order: held ephemeral nodes are created again, `on_restored` callbacks run, every
              watch is read again.
- CLOSED      `close()` was called. Every call raises `SessionClosedError`.

Threads: any thread may make calls. All callbacks (watches, `on_restored`) run in the callback thread, one at
a time. They may make calls, and should be short, since they delay all other callbacks. A callback that raises
a *retriable* `CoordinationError` runs again; any other exception is logged and the watch stays armed. Only
`on_state` listeners run in the library's thread: they may set an event or write to a pipe, nothing more.

A watch calls back with the present value: once soon after it is set, then after every change. Several quick
changes may be reported as one, the last one is always reported, and a value may be reported twice.
"""

import enum
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, Final, Self, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooState
from kazoo.retry import KazooRetry

from headrace.coordination import events
from headrace.coordination.attempts import make_client
from headrace.coordination.callbacks import CallbackThread, Task
from headrace.coordination.errors import NoNodeError, SessionClosedError, ZooKeeperUnavailableError
from headrace.coordination.events import Fired
from headrace.coordination.many_reads import ManyReads, first_of
from headrace.coordination.nodes import Node, NodeStat, to_stat, translate
from headrace.coordination.quotas import CountedNodes
from headrace.coordination.session_files import LeftSession
from headrace.coordination.standing import HeldNode, RestoredCallback, Watch
from headrace.coordination.transaction import Transaction
from headrace.process.background import in_background
from headrace.process.disk import kernel

logger = logging.getLogger(__name__)

DEFAULT_SESSION_TIMEOUT_S: Final = 10.0
DEFAULT_CALL_TIMEOUT_S: Final = 30.0
RECONNECT_PAUSE_MAX_S: Final = 1.0
GIVEN_UP_POLL_S: Final = 0.1

T = TypeVar("T")


class SessionState(enum.Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class ZooKeeperSession(ManyReads, CountedNodes):
    """A session with the ZooKeeper at `hosts` ("host:port,host:port/chroot").

    `timeout_s` is the session timeout to request (the server may bound it); `call_timeout_s` bounds every
    call, including the wait for a connection; `name` appears in log lines.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
        call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S,
        name: str = "headrace",
    ) -> None:
        self.hosts = hosts
        self.name = name
        self.call_timeout_s = call_timeout_s
        self.timeout_s = timeout_s
        self._state = SessionState.CONNECTING
        self._connected = threading.Event()
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self._held: list[Task] = []
        self._restored: list[Task] = []
        self._watches: list[Task] = []
        self._lock = threading.Lock()
        self._callbacks = CallbackThread(f"{name}-zookeeper-callbacks", self._connected)
        self._client = make_client(
            hosts,
            timeout=timeout_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=RECONNECT_PAUSE_MAX_S),
        )
        self._client.add_listener(self._on_library_state)

    # --- start and close ---

    def start(self, *, connect_timeout_s: float | None = None) -> Self:
        """Connects. Raises `ZooKeeperUnavailableError` if no server answers within `connect_timeout_s`
        (default: the call timeout)."""
        self.start_unless(lambda: False, connect_timeout_s=connect_timeout_s)
        return self

    def start_unless(
        self, is_given_up: Callable[[], bool], *, connect_timeout_s: float | None = None
    ) -> bool:
        """As `start`, but closes the session and returns False as soon as `is_given_up`."""
        wait_s = self.call_timeout_s if connect_timeout_s is None else connect_timeout_s
        self._callbacks.start()
        # The library's own `start` would wait for the attempt under way, which a hung server holds up.
        connected = self._client.start_async()
        deadline_s = time.monotonic() + wait_s
        while not connected.wait(min(GIVEN_UP_POLL_S, max(0.0, deadline_s - time.monotonic()))):
            if is_given_up():
                self.close(wait_max_s=0.0)
                return False
            if time.monotonic() >= deadline_s:
                break
        if not self._client.connected:
            self.close(wait_max_s=0.0)
            raise ZooKeeperUnavailableError(
                f"no ZooKeeper answered at {self.hosts} within {round(wait_s, 1):g} s; is it running there?"
            )
        return True

    def close(self, *, wait_max_s: float | None = None) -> None:
        """Ends the session: the server deletes its ephemeral nodes at once, no further callback starts.

        Does not raise if the server is down. `wait_max_s`: waits no longer than that; the end then goes on in
        the background. None: as long as the library waits.
        """
        with self._lock:
            if self._state is SessionState.CLOSED:
                return
            self._state = SessionState.CLOSED
        self._callbacks.stop()
        self._client.remove_listener(self._on_library_state)
        wait([in_background(self._end_client, f"{self.name}-zookeeper-end")], wait_max_s)
        for listener in list(self._state_listeners):
            listener(SessionState.CLOSED)

    def _end_client(self) -> None:
        self._client.stop()
        self._client.close()

    def __enter__(self) -> Self:
        return self.start() if self._state is SessionState.CONNECTING else self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        """The server's number of the present session; 0 if there is none."""
        identity = self._client.client_id
        return 0 if identity is None else int(identity[0])

    def left_session(self) -> LeftSession | None:
        """Returns what somebody else needs to end this session once this process is dead."""
        identity = self._client.client_id
        if identity is None or not identity[0]:
            return None
        return LeftSession(os.getpid(), self.hosts, int(identity[0]), bytes(identity[1]).hex(), kernel())

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Calls `listener` at every change of state, in the library's thread: it must not block.

        Returns a function that removes the listener.
        """
        self._state_listeners.append(listener)

        def remove() -> None:
            if listener in self._state_listeners:
                self._state_listeners.remove(listener)

        return remove

    def wait_connected(self, timeout_s: float) -> bool:
        """Waits until the session is connected; returns False after `timeout_s`."""
        return self._connected.wait(timeout_s)

    # --- calls ---

    def get(self, path: str) -> Node:
        data, stat = self._call(self._client.get, path)
        return Node(data or b"", to_stat(stat))

    def get_or_none(self, path: str) -> Node | None:
        try:
            return self.get(path)
        except NoNodeError:
            return None

    def exists(self, path: str) -> NodeStat | None:
        stat = self._call(self._client.exists, path)
        return None if stat is None else to_stat(stat)

    def children(self, path: str, *, fired: Fired | None = None) -> list[str]:
        """Returns the names of the children, sorted. Raises `NoNodeError`. `fired`: as in `get_many`."""
        return sorted(self._call(self._client.get_children, path, watch=fired))

    def children_or_empty(self, path: str) -> list[str]:
        try:
            return self.children(path)
        except NoNodeError:
            return []

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False
    ) -> None:
        """Creates one node. Raises `NodeExistsError`, or `NoNodeError` if the parent is missing.

        The call is repeated after a lost connection: then `NodeExistsError` may mean that the first try
        created the node.
        """
        self._call(self._client.create, path, data, ephemeral=ephemeral, makepath=make_parents)

    def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Replaces a node's data. Raises `BadVersionError` if `version` is given and no longer current."""
        return to_stat(self._call(self._client.set, path, data, version=version))

    def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        """Deletes one node (with `recursive`, all below it too). Raises `NoNodeError`, `NotEmptyError`,
        `BadVersionError`."""
        self._call(self._client.delete, path, version=version, recursive=recursive)

    def sync(self, path: str) -> None:
        """Waits until this session's server has what was written before: one that lags shows older data."""
        self._call(self._client.sync, path)

    def ensure_path(self, path: str) -> None:
        self._call(self._client.ensure_path, path)

    def transaction(self) -> "Transaction":
        """Returns a transaction of this session, empty."""
        return Transaction(self._client.transaction, self._call, len(self.hosts.partition("/")[2]) + 1)

    # --- across session losses ---

    def hold_ephemeral(
        self, path: str, data: bytes, *, wait_s: float | None = None, counter: str | None = None
    ) -> HeldNode:
        """Creates an ephemeral node, and creates it again after every session loss until `.release()`.

        `counter`: a node whose version grows by one with each creation. If another session still holds the
        node (its process may have died), waits for it, at most `wait_s` (default: three session timeouts);
        then raises `NodeHeldError`.
        """
        held = HeldNode(self, path, data, counter=counter)
        with self._lock:
            self._held.append(held)  # first: the session may expire as soon as the node is there
        try:
            held.acquire(3 * self.timeout_s if wait_s is None else wait_s)
        except BaseException:
            held.abandon()
            raise
        return held

    def on_restored(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Runs `callback` in the callback thread each time an expired session has been replaced by a new one,
        after the held ephemeral nodes were created again. Returns a function that removes the callback."""
        task = RestoredCallback(callback)
        with self._lock:
            self._restored.append(task)
        return lambda: self.forget(task)

    def watch_children(self, path: str, callback: Callable[[list[str]], None]) -> Watch:
        """Calls `callback` with the sorted names of the children, now and after every change; an absent node
        has none.

        A child that was deleted and created again between two reads has the same name: read its data again.
        """

        def read(fired: Callable[[object], None]) -> list[str]:
            while True:
                try:
                    return sorted(self._call(self._client.get_children, path, watch=fired))
                except NoNodeError:
                    if self._call(self._client.exists, path, watch=fired) is None:
                        return []

        return self._watch(f"children of {path}", read, callback)

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Calls `callback` with the node, now and after every change of its data; `None` while it is
        absent."""

        def read(fired: Callable[[object], None]) -> Node | None:
            while True:
                try:
                    data, stat = self._call(self._client.get, path, watch=fired)
                    return Node(data or b"", to_stat(stat))
                except NoNodeError:
                    if self._call(self._client.exists, path, watch=fired) is None:
                        return None

        return self._watch(f"data of {path}", read, callback)

    def events_handled(self, wait_max_s: float) -> bool:
        """Waits until `fired` was called for every event that arrived before this call."""
        return events.handled(self._client.handler, wait_max_s)

    # --- inside ---

    def _watch(
        self, name: str, read: Callable[[Callable[[object], None]], T], callback: Callable[[T], None]
    ) -> Watch:
        watch = Watch(self, name, lambda: callback(read(watch.fired)))
        with self._lock:
            self._watches.append(watch)
        self.schedule(watch)
        return watch

    def schedule(self, task: Task) -> None:
        """Runs `task` soon, in the callback thread."""
        self._callbacks.put(task)

    def forget(self, task: Task) -> None:
        """Stops running `task` after a session loss."""
        with self._lock:
            for tasks in (self._watches, self._held, self._restored):
                if task in tasks:
                    tasks.remove(task)

    def _on_library_state(self, library_state: str) -> None:
        before = self._state
        if before is SessionState.CLOSED:
            return
        if library_state == KazooState.CONNECTED:
            self._state = SessionState.CONNECTED
            if before is SessionState.LOST:
                logger.warning("%s: session with ZooKeeper %s replaced after its loss", self.name, self.hosts)
                with self._lock:
                    tasks: list[Task] = [*self._held, *self._restored, *self._watches]
                self._callbacks.put_first(tasks)
            self._connected.set()
            self._callbacks.wake()
        else:
            self._connected.clear()
            lost = library_state == KazooState.LOST
            self._state = SessionState.LOST if lost else SessionState.SUSPENDED
            logger.warning(
                "%s: %s ZooKeeper %s",
                self.name,
                "session expired at" if lost else "connection lost to",
                self.hosts,
            )
        for listener in list(self._state_listeners):
            listener(self._state)

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + self.call_timeout_s
        while True:
            if self._state is SessionState.CLOSED:
                raise SessionClosedError(f"{self.name}: this session with ZooKeeper {self.hosts} was closed")
            try:
                if not self._connected.wait(max(0.0, deadline - time.monotonic())):
                    raise ZooKeeperUnavailableError(
                        f"ZooKeeper {self.hosts} did not answer within {round(self.call_timeout_s, 1):g} s "
                        f"(state: {self._state.value})"
                    )
                return call(*args, **kwargs)
            except (
                kz.ConnectionLoss,
                kz.SessionExpiredError,
                kz.OperationTimeoutError,
                kz.SessionMovedError,
            ):
                # The library reports the lost connection just after it fails the call: yield, then wait for
                # the connection.
                time.sleep(0.01)
            except kz.ZookeeperError as error:
                raise translate(error, first_of(args)) from None
