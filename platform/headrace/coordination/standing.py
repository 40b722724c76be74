"""What outlives a session: watches, held ephemeral nodes, callbacks after a loss. Each is a callback task."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.coordination.errors import (
    NodeExistsError,
    NodeHeldError,
    NoNodeError,
    ZooKeeperUnavailableError,
)

if TYPE_CHECKING:
    from headrace.coordination.session import ZooKeeperSession


class Watch:
    """A standing watch; `cancel()` ends it (a callback that has begun still finishes)."""

    def __init__(self, session: "ZooKeeperSession", what: str, look: Callable[[], None]) -> None:
        self._session = session
        self._look = look
        self._what = what
        self._cancelled = False

    def fired(self, _event: object) -> None:
        if not self._cancelled:
            self._session._callbacks.put(self)

    def run(self) -> None:
        if not self._cancelled:
            self._look()

    def cancel(self) -> None:
        self._cancelled = True
        self._session.forget(self)

    def __str__(self) -> str:
        return f"watch on {self._what}"


class HeldNode:
    """An ephemeral node that is put back whenever the session had to be replaced, until `release()`."""

    POLL_S: Final = 0.1

    def __init__(self, session: "ZooKeeperSession", path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self._session = session
        self._released = False

    def acquire(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                raise NodeHeldError(
                    f"{self.path} is held by another live session (waited {wait_s:g} s); "
                    "is the same process running twice?"
                )
            time.sleep(self.POLL_S)

    def run(self) -> None:
        """The callback thread's part after a session loss."""
        if self._released:
            return
        if not self._try():
            raise ZooKeeperUnavailableError(f"{self.path} is still held by another session, trying again")
        if self._released:
            self.release()

    def release(self) -> None:
        """Deletes the node, if it is ours; never raises because it is gone."""
        self._released = True
        self._session.forget(self)
        stat = self._session.exists(self.path)
        if stat is not None and stat.owner_session == self._session.session_id:
            try:
                self._session.delete(self.path)
            except NoNodeError:
                return

    def _try(self) -> bool:
        try:
            self._session.create(self.path, self.data, ephemeral=True, make_parents=True)
        except NodeExistsError:
            stat = self._session.exists(self.path)
            return stat is not None and stat.owner_session == self._session.session_id
        return True

    def __str__(self) -> str:
        return f"ephemeral node {self.path}"


class RestoredCallback:
    """A callback that runs after each replaced session."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def run(self) -> None:
        self._callback()

    def __str__(self) -> str:
        return f"on_restored {self._callback!r}"
