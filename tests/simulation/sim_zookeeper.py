"""A simulated ZooKeeper: versioned nodes, transactions, one-shot watches, sessions that expire.

`Library` stands in the place of kazoo's client below the real `ZooKeeperSession`, so registries, elections,
watches and held nodes are the product's own. A client that is cut off gets no answers and no events; when it
is back, its session may have expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from kazoo import exceptions as kz

from headrace.coordination.callbacks import Task
from headrace.coordination.errors import CoordinationError, ZooKeeperUnavailableError
from headrace.coordination.nodes import translate
from headrace.coordination.session import SessionState, ZooKeeperSession
from simulation.sim_clock import Clock, Life

SESSION_MS: Final = 4_000.0
EVENT_MIN_MS: Final = 0.2
EVENT_MAX_MS: Final = 40.0
RETRY_MS: Final = 200.0
ANSWER_LOST: Final = 0.02
"""How often a write is done, and its answer lost: then the session sends it again."""
Fired = Callable[[object], None]


@dataclass
class _Znode:
    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int

    @property
    def stat(self) -> Any:
        return SimpleNamespace(
            version=self.version, czxid=self.czxid, mzxid=self.mzxid, ephemeralOwner=self.owner
        )


class ZooKeeper:
    """The server. `is_up`: False while it is silent; then no session expires. `history`: every write."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_up = True
        self.slow_events = 1.0
        self.zxid = 0
        self.nodes: dict[str, _Znode] = {"": _Znode(b"", 0, 0, 0, 0)}
        self.sessions: dict[int, SimSession] = {}
        self.history: list[tuple[float, str, bytes]] = []
        self._watches: dict[tuple[str, str], list[tuple[SimSession, Fired]]] = {}
        self._numbers = 0

    def open_session(self, session: SimSession) -> int:
        self._numbers += 1
        self.sessions[self._numbers] = session
        return self._numbers

    def expire(self, number: int) -> None:
        """Ends a session, and deletes its ephemeral nodes."""
        if self.sessions.pop(number, None) is None:
            return
        for path in [path for path, node in self.nodes.items() if node.owner == number]:
            self.write([("delete", path, b"", -1, 0)])

    def watch(self, kind: str, path: str, session: SimSession, fired: Fired | None) -> None:
        if fired is not None:
            self._watches.setdefault((kind, path), []).append((session, fired))

    def _fire(self, kind: str, path: str) -> None:
        for session, fired in self._watches.pop((kind, path), ()):
            session.event(fired)

    def write(self, steps: list[tuple[str, str, bytes, int, int]]) -> list[Any]:
        """Does all steps (verb, path, data, version, owner), or none; returns kazoo's results."""
        before = dict(self.nodes)
        results: list[Any] = []
        for verb, path, data, version, owner in steps:
            error = self._problem(verb, path, version)
            if error is not None:
                self.nodes = before
                return (
                    [kz.RolledBackError() for _ in results]
                    + [error]
                    + [kz.RuntimeInconsistency() for _ in steps[len(results) + 1 :]]
                )
            self._do(verb, path, data, owner)
            results.append(True)
        self.zxid += 1
        for verb, path, data, _, _ in steps:
            self._told(verb, path, data)
        return results

    def _problem(self, verb: str, path: str, version: int) -> Any:
        node = self.nodes.get(path)
        if verb == "create":
            if node is not None:
                return kz.NodeExistsError()
            return None if path.rpartition("/")[0] in self.nodes else kz.NoNodeError()
        if node is None:
            return kz.NoNodeError()
        if version not in (-1, node.version):
            return kz.BadVersionError()
        if verb == "delete" and self.children(path):
            return kz.NotEmptyError()
        return None

    def _do(self, verb: str, path: str, data: bytes, owner: int) -> None:
        zxid = self.zxid + 1
        if verb == "create":
            self.nodes[path] = _Znode(data, 0, zxid, zxid, owner)
        elif verb == "set":
            node = self.nodes[path]
            self.nodes[path] = _Znode(data, node.version + 1, node.czxid, zxid, node.owner)
        elif verb == "delete":
            del self.nodes[path]

    def _told(self, verb: str, path: str, data: bytes) -> None:
        if verb == "check":
            return
        self.history.append((self.clock.now_ms, path, data))
        self._fire("data", path)
        if verb != "set":
            self._fire("children", path.rpartition("/")[0])

    def children(self, path: str) -> list[str]:
        return children_of(self.nodes, path)


def children_of(nodes: Iterable[str], path: str) -> list[str]:
    prefix = path + "/"
    start = len(prefix)
    return [each[start:] for each in nodes if each.startswith(prefix) and "/" not in each[start:]]


class _Pending:
    """A result that is there already."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def get(self) -> Any:
        return self._find()


class _LibraryTransaction:
    def __init__(self, server: ZooKeeper, session: SimSession) -> None:
        self._server = server
        self._session = session
        self._owner = session.number
        self._steps: list[tuple[str, str, bytes, int, int]] = []

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> None:
        self._steps.append(("create", path, data, -1, self._owner if ephemeral else 0))

    def check(self, path: str, version: int) -> None:
        self._steps.append(("check", path, b"", version, 0))

    def set_data(self, path: str, data: bytes, *, version: int) -> None:
        self._steps.append(("set", path, data, version, 0))

    def delete(self, path: str, *, version: int) -> None:
        self._steps.append(("delete", path, b"", version, 0))

    def commit(self) -> list[Any]:
        self._session.before_write()
        return self._server.write(self._steps)


class Library:
    """What `ZooKeeperSession` calls of kazoo's client."""

    def __init__(self, server: ZooKeeper, session: SimSession) -> None:
        self._server = server
        self._session = session

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self._session.number, b""

    def _node(self, path: str) -> _Znode:
        node = self._session.nodes.get(path)
        if node is None:
            raise kz.NoNodeError()
        return node

    def get(self, path: str, watch: Fired | None = None) -> tuple[bytes, Any]:
        node = self._node(path)
        self._session.watch("data", path, watch)
        return node.data, node.stat

    def exists(self, path: str, watch: Fired | None = None) -> Any:
        self._session.watch("data", path, watch)
        node = self._session.nodes.get(path)
        return None if node is None else node.stat

    def get_children(self, path: str, watch: Fired | None = None) -> list[str]:
        self._node(path)
        self._session.watch("children", path, watch)
        return children_of(self._session.nodes, path)

    def get_async(self, path: str, watch: Fired | None = None) -> _Pending:
        return _Pending(lambda: self.get(path, watch))

    def exists_async(self, path: str) -> _Pending:
        return _Pending(lambda: self.exists(path))

    def get_children_async(self, path: str) -> _Pending:
        return _Pending(lambda: self.get_children(path))

    def _one(self, verb: str, path: str, data: bytes, version: int, owner: int) -> None:
        self._session.before_write()
        (result,) = self._server.write([(verb, path, data, version, owner)])
        if isinstance(result, Exception):
            raise result

    def create(self, path: str, data: bytes, *, ephemeral: bool = False, makepath: bool = False) -> None:
        if makepath:
            self.ensure_path(path.rpartition("/")[0])
        self._one("create", path, data, -1, self._session.number if ephemeral else 0)

    def set(self, path: str, data: bytes, *, version: int = -1) -> Any:
        self._one("set", path, data, version, 0)
        return self._node(path).stat

    def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        assert not recursive
        self._one("delete", path, b"", version, 0)

    def ensure_path(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            ancestor = "/" + "/".join(parts[:count])
            if ancestor not in self._server.nodes:
                self._one("create", ancestor, b"", -1, 0)

    def transaction(self) -> _LibraryTransaction:
        return _LibraryTransaction(self._server, self._session)


class _Callbacks:
    """Runs tasks one at a time, in order, while the session is connected; as `coordination.callbacks`."""

    def __init__(self, clock: Clock, life: Life, session: SimSession) -> None:
        self._clock = clock
        self._life = life
        self._session = session
        self._pending: dict[Task, None] = {}
        self._is_due = False

    def put(self, task: Task) -> None:
        self._pending[task] = None
        self.wake()

    def put_first(self, tasks: Iterable[Task]) -> None:
        self._pending = {**dict.fromkeys(tasks), **self._pending}
        self.wake()

    def wake(self, delay_ms: float | None = None) -> None:
        if not self._is_due and self._pending and self._session.is_connected:
            self._is_due = True
            wait_ms = self._clock.between(0.1, 2.0) if delay_ms is None else delay_ms
            self._clock.after(wait_ms, self._life, self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._pending or not self._session.is_connected:
            return
        task = next(iter(self._pending))
        del self._pending[task]
        try:
            task.run()
        except CoordinationError as error:
            if error.retriable:
                self._pending[task] = None
                self.wake(RETRY_MS)
                return
            raise
        self.wake()

    def start(self) -> None: ...

    def stop(self) -> None:
        self._pending.clear()


class SimSession(ZooKeeperSession):
    """The real session, except for its thread and the library below it."""

    def __init__(self, server: ZooKeeper, clock: Clock, life: Life, name: str) -> None:
        super().__init__("simulated:2181", timeout_s=SESSION_MS / 1000, name=name)
        self._server = server
        self._clock = clock
        self._life = life
        self.is_connected = True
        self.silent_since_ms = clock.now_ms
        self._missed: list[Fired] = []
        self._behind: dict[str, _Znode] | None = None
        self._may_write = True
        self._late: list[tuple[str, str, Fired]] = []
        self.number = server.open_session(self)
        self._client = Library(server, self)
        self._callbacks = _Callbacks(clock, life, self)  # type: ignore[assignment]
        self._state = SessionState.CONNECTED
        self._connected.set()

    # --- a server that is behind the others ---

    @property
    def nodes(self) -> dict[str, _Znode]:
        """What this session's server shows."""
        return self._server.nodes if self._behind is None else self._behind

    def fall_behind(self, *, may_write: bool) -> None:
        """From now on its server shows what there is now. Who may write sees all up to the own write."""
        if self._behind is None:
            self._behind = dict(self._server.nodes)
            self._may_write = may_write

    def catch_up(self) -> None:
        """Its server is like the others again, and tells what has changed."""
        if self._behind is None:
            return
        before, self._behind = self._behind, None
        late, self._late = self._late, []
        now = self._server.nodes
        for kind, path, fired in late:
            if kind == "children":
                is_same = children_of(before, path) == children_of(now, path)
            else:
                is_same = before.get(path) is now.get(path)
            if is_same:
                self._server.watch(kind, path, self, fired)
            else:
                self.event(fired)

    def watch(self, kind: str, path: str, fired: Fired | None) -> None:
        if self._behind is None:
            self._server.watch(kind, path, self, fired)
        elif fired is not None:
            self._late.append((kind, path, fired))

    def before_write(self) -> None:
        if self._behind is not None and not self._may_write:
            raise ZooKeeperUnavailableError(f"{self.name}: its server has no majority")
        self.catch_up()

    # --- events, loss and return ---

    def event(self, fired: Fired) -> None:
        """A watch fires at the server: the client hears of it late, or when it is connected again."""
        delay_ms = self._clock.between(EVENT_MIN_MS, EVENT_MAX_MS) * self._server.slow_events

        def arrive() -> None:
            if self._behind is not None:
                self._clock.after(EVENT_MAX_MS, self._life, arrive)  # it comes with what it tells of
            elif self.is_connected:
                fired(None)
            else:
                self._missed.append(fired)

        self._clock.after(delay_ms, self._life, arrive)

    def disconnect(self) -> None:
        self.is_connected = False
        self._state = SessionState.SUSPENDED
        self._connected.clear()

    def reconnect(self) -> None:
        """The client is back: in its session, or in a new one if that has expired."""
        if self.is_connected:
            return
        self.is_connected = True
        self._connected.set()
        self.catch_up()
        lost = self.number not in self._server.sessions
        self._state = SessionState.CONNECTED
        missed, self._missed = self._missed, []
        if lost:
            self.number = self._server.open_session(self)
            self._callbacks.put_first([*self._held, *self._restored, *self._watches])
        for fired in missed:
            fired(None)
        self._callbacks.wake()

    def close(self, *, wait_max_s: float | None = None) -> None:
        if self._state is not SessionState.CLOSED:
            self._state = SessionState.CLOSED
            self._callbacks.stop()
            self._server.expire(self.number)

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.is_connected or self.number not in self._server.sessions:
            raise ZooKeeperUnavailableError(f"{self.name}: ZooKeeper does not answer")
        try:
            if getattr(call, "__name__", "") in ("run", "create", "set", "delete") and self._clock.chance(
                ANSWER_LOST
            ):
                with suppress(kz.ZookeeperError):
                    call(*args, **kwargs)
            return call(*args, **kwargs)
        except kz.ZookeeperError as error:
            raise translate(error, args[0] if args else "") from None
