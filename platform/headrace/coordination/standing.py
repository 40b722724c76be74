"""What outlives a session: watches, held ephemeral nodes, callbacks after a loss. Each is a callback task."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from headrace.coordination.callbacks import Task
from headrace.coordination.errors import (
    NodeExistsError,
    NodeHeldError,
    NoNodeError,
    ZooKeeperUnavailableError,
)
from headrace.coordination.nodes import NodeStat
from headrace.coordination.transaction import Transaction

HELD_POLL_S: Final = 0.1


class Session(Protocol):
    """What watches and held nodes need of the session they belong to."""

    @property
    def session_id(self) -> int:
        """The server's number of the present session."""

    def exists(self, path: str) -> NodeStat | None: ...

    def create(self, path: str, data: bytes, *, ephemeral: bool, make_parents: bool) -> None: ...

    def delete(self, path: str) -> None: ...

    def ensure_path(self, path: str) -> None: ...

    def transaction(self) -> Transaction: ...

    def schedule(self, task: Task) -> None:
        """Runs `task` soon, in the callback thread."""

    def forget(self, task: Task) -> None:
        """Stops running `task` after a session loss."""


class Watch:
    """A standing watch; `cancel()` ends it (a callback that has begun still finishes)."""

    def __init__(self, session: Session, name: str, read_and_call: Callable[[], None]) -> None:
        self._session = session
        self._read_and_call = read_and_call
        self._name = name
        self._cancelled = False

    def fired(self, _event: object) -> None:
        if not self._cancelled:
            self._session.schedule(self)

    def run(self) -> None:
        if not self._cancelled:
            self._read_and_call()

    def cancel(self) -> None:
        self._cancelled = True
        self._session.forget(self)

    def __str__(self) -> str:
        return f"watch on {self._name}"


class HeldNode:
    """An ephemeral node that is created again after every session loss, until `release()`.

    `counter`: a node whose version grows by one, in the same transaction, each time this one is created; its
    parent's grows, too, and so counts the creations of all.
    """

    def __init__(self, session: Session, path: str, data: bytes, *, counter: str | None = None) -> None:
        self.path = path
        self.data = data
        self._counter = counter
        self._session = session
        self._released = False

    def acquire(self, wait_s: float) -> None:
        """Creates the node. Raises `NodeHeldError` if another session holds it for longer than `wait_s`."""
        deadline = time.monotonic() + wait_s
        while not self._create():
            if time.monotonic() >= deadline:
                raise NodeHeldError(
                    f"{self.path} is held by another live session (waited {wait_s:g} s); "
                    "is the same process running twice?"
                )
            time.sleep(HELD_POLL_S)

    def run(self) -> None:
        """Creates the node again after a session loss; runs in the callback thread."""
        if self._released:
            return
        if not self._create():
            raise ZooKeeperUnavailableError(f"{self.path} is still held by another session, retrying")
        if self._released:
            self.release()

    def abandon(self) -> None:
        """Creates the node no more."""
        self._released = True
        self._session.forget(self)

    def release(self) -> None:
        """Deletes the node if this session owns it; does nothing if it is already deleted."""
        self.abandon()
        stat = self._session.exists(self.path)
        if stat is not None and stat.owner_session == self._session.session_id:
            try:
                self._session.delete(self.path)
            except NoNodeError:
                return

    def _create(self) -> bool:
        try:
            if self._counter is None:
                self._session.create(self.path, self.data, ephemeral=True, make_parents=True)
            else:
                self._session.ensure_path(self.path.rpartition("/")[0])
                self._session.ensure_path(self._counter)
                creation = self._session.transaction().create(self.path, self.data, ephemeral=True)
                creation.set(self._counter, b"").set(self._counter.rpartition("/")[0], b"").commit()
        except NodeExistsError:
            stat = self._session.exists(self.path)
            return stat is not None and stat.owner_session == self._session.session_id
        return True

    def __str__(self) -> str:
        return f"ephemeral node {self.path}"


class RestoredCallback:
    """A callback that runs each time an expired session has been replaced."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def run(self) -> None:
        self._callback()

    def __str__(self) -> str:
        return f"on_restored {self._callback!r}"
