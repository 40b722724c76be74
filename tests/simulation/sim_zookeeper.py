"""A simulated ZooKeeper: versioned nodes, transactions, one-shot watches, sessions that expire.

`Library` stands in the place of kazoo's client below the real `ZooKeeperSession` (`sim_session`), so
registries, elections, watches and held nodes are the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kazoo import exceptions as kz

from headrace.coordination.many_reads import MultiRead
from headrace.coordination.nodes import Node, to_stat
from simulation.sim_clock import WALL_MS, Clock

if TYPE_CHECKING:
    from simulation.sim_session import SimSession

Fired = Callable[[object], None]


@dataclass
class Znode:
    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int
    at_ms: int = 0
    created_ms: int = 0

    @property
    def stat(self) -> Any:
        return SimpleNamespace(
            version=self.version,
            czxid=self.czxid,
            mzxid=self.mzxid,
            ephemeralOwner=self.owner,
            mtime=self.at_ms,
            dataLength=len(self.data),
            ctime=self.created_ms,
        )


class ZooKeeper:
    """The server. `is_up`: False while it is silent; then no session expires. `history`: every write.
    Each of `on_write` is called with each one's path and data.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_up = True
        self.slow_events = 1.0
        self.zxid = 0
        self.nodes: dict[str, Znode] = {"": Znode(b"", 0, 0, 0, 0)}
        self.sessions: dict[int, SimSession] = {}
        self.history: list[tuple[float, str, bytes]] = []
        self.on_write: list[Callable[[str, bytes], None]] = []
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
        zxid, at_ms = self.zxid + 1, WALL_MS + int(self.clock.now_ms)
        if verb == "create":
            self.nodes[path] = Znode(data, 0, zxid, zxid, owner, at_ms, at_ms)
        elif verb == "set":
            node = self.nodes[path]
            version, created_ms = node.version + 1, node.created_ms
            self.nodes[path] = Znode(data, version, node.czxid, zxid, node.owner, at_ms, created_ms)
        elif verb == "delete":
            del self.nodes[path]

    def _told(self, verb: str, path: str, data: bytes) -> None:
        if verb == "check":
            return
        self.history.append((self.clock.now_ms, path, data))
        for call in self.on_write:
            call(path, data)
        self._fire("data", path)
        if verb != "set":
            self._fire("children", path.rpartition("/")[0])

    def children(self, path: str) -> list[str]:
        return children_of(self.nodes, path)


def children_of(nodes: Iterable[str], path: str) -> list[str]:
    prefix = path + "/"
    start = len(prefix)
    below = [each for each in nodes if each.startswith(prefix)]
    return [each[start:] for each in below if "/" not in each[start:]]


class _Pending:
    """A result that is there already."""

    def __init__(self, find: Callable[[], Any] = lambda: None) -> None:
        self.find = find

    def get(self) -> Any:
        return self.find()


class _Handler:
    """Makes the results that requests are given to."""

    async_result = _Pending


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

    chroot = ""
    handler = _Handler()

    def __init__(self, server: ZooKeeper, session: SimSession) -> None:
        self._server = server
        self._session = session

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self._session.number, b""

    def _node(self, path: str) -> Znode:
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

    def _call(self, request: MultiRead, pending: _Pending) -> None:
        def node(path: str) -> Node | None:
            found = self._session.nodes.get(path)
            return None if found is None else Node(found.data, to_stat(found.stat))

        pending.find = lambda: [node(path) for path in request.paths]

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

    def sync(self, path: str) -> None:
        self._session.before_write()  # as that, it needs a majority
        self._session.catch_up()

    def ensure_path(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            ancestor = "/" + "/".join(parts[:count])
            if ancestor not in self._server.nodes:
                self._one("create", ancestor, b"", -1, 0)

    def transaction(self) -> _LibraryTransaction:
        return _LibraryTransaction(self._server, self._session)
