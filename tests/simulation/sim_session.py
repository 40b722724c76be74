"""A simulated session: the real `ZooKeeperSession` on simulated time, above `sim_zookeeper`.

A client that is cut off gets no answers and no events; when it is back, its session may have expired. The
server that it talks to may be behind the others, or in a minority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from kazoo import exceptions as kz

from headrace.coordination import documents, znodes
from headrace.coordination.callbacks import Task
from headrace.coordination.errors import CoordinationError, NodeExistsError, ZooKeeperUnavailableError
from headrace.coordination.nodes import translate
from headrace.coordination.session import SessionState, ZooKeeperSession
from simulation.sim_clock import Clock, Life
from simulation.sim_zookeeper import Fired, Library, Znode, ZooKeeper, children_of

SESSION_MS: Final = 4_000.0
EVENT_MIN_MS: Final = 0.2
EVENT_MAX_MS: Final = 40.0
RETRY_MS: Final = 200.0
ANSWER_LOST: Final = 0.02
"""How often a write is done, and its answer lost: then the session sends it again."""


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
        self._behind: dict[str, Znode] | None = None
        self._may_write = True
        self._late: list[tuple[str, str, Fired]] = []
        self.number = server.open_session(self)
        self._client = Library(server, self)
        self._callbacks = _Callbacks(clock, life, self)  # type: ignore[assignment]
        self._state = SessionState.CONNECTED
        self._connected.set()

    # --- a server that is behind the others ---

    @property
    def nodes(self) -> dict[str, Znode]:
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


def reserve_producer_ids(session: SimSession, count: int) -> None:
    """Gives the first producer ids of a world away. Those of an empty ZooKeeper begin at the time of day, so
    no world would repeat.
    """
    with suppress(NodeExistsError):  # an answer may be lost, and the node made again
        block = {"block_start": "0", "block_end": str(count - 1)}
        session.create(znodes.PRODUCER_ID_BLOCK, documents.encode(block))
