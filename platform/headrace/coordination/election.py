"""Leader election among several candidates, by the ZooKeeper library's election recipe.

A leader is deposed as soon as its connection is SUSPENDED, not only when its session is LOST: while it cannot
reach ZooKeeper, another candidate may have been elected. A leader's writes to ZooKeeper should still be
guarded by versions.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from kazoo import exceptions as kz

from headrace.coordination.session import SessionState, ZooKeeperSession

logger = logging.getLogger(__name__)

CLOSE_WAIT_MAX_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.2


class Election:
    """A candidacy at `path`; `candidate` is its name in `candidates()`.

    From `start()` to `close()` a thread takes part in every election. It calls `on_elected()` when elected
    and `on_deposed()` when leadership ends; both run in that thread and must return soon.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        path: str,
        candidate: str,
        *,
        on_elected: Callable[[], None],
        on_deposed: Callable[[], None],
    ) -> None:
        self._session = session
        self._path = path
        self.candidate = candidate
        self._on_elected = on_elected
        self._on_deposed = on_deposed
        self._closing = threading.Event()
        self._in_doubt = threading.Event()
        self._leading = threading.Event()
        self._lock = threading.Lock()
        self._round = session.election_recipe(path, candidate)
        self._thread = threading.Thread(target=self._run_elections, name=f"election-{candidate}", daemon=True)

    def start(self) -> None:
        self._remove_listener = self._session.on_state(self._on_state)
        self._thread.start()

    def close(self) -> None:
        """Ends the candidacy; a leader is deposed first. Waits at most `CLOSE_WAIT_MAX_S`.

        Does not wait while ZooKeeper is unreachable: the candidate then stays listed until its session ends.
        """
        self._closing.set()
        self._in_doubt.set()
        with self._lock:
            self._round.cancel()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_MAX_S if self._session.state is SessionState.CONNECTED else 0)
            self._remove_listener()

    @property
    def leading(self) -> bool:
        """Whether this candidate is the leader, as far as it knows."""
        return self._leading.is_set()

    def candidates(self) -> list[str]:
        """Returns all candidates' names, the leader first."""
        return self._session.election_candidates(self._path)

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._in_doubt.set()

    def _run_elections(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                if self._closing.is_set():
                    return
                self._in_doubt.clear()
                self._round = self._session.election_recipe(self._path, self.candidate)
            try:
                self._round.run(self._lead)
            except kz.KazooException as error:
                logger.info(
                    "%s: candidacy at %s interrupted: %s", self.candidate, self._path, type(error).__name__
                )
            self._delete_node()

    def _lead(self) -> None:
        if self._in_doubt.is_set():
            return
        logger.info("%s: elected at %s", self.candidate, self._path)
        self._leading.set()
        try:
            self._on_elected()
            self._in_doubt.wait()
        except Exception:
            logger.exception("%s: elected at %s, on_elected failed", self.candidate, self._path)
        finally:
            self._leading.clear()
            logger.info("%s: no longer leader at %s", self.candidate, self._path)
            self._on_deposed()

    def _delete_node(self) -> None:
        """Deletes this candidate's node. One that a lost connection left behind would block every candidate,
        this one included, until the session ends."""
        while not self._closing.wait(RETRY_PAUSE_S) and self._round.lock.is_acquired:
            try:
                self._session.wait_connected(RETRY_PAUSE_S)
                self._round.lock.release()
            except kz.KazooException as error:
                logger.info(
                    "%s: cannot delete its node at %s: %s",
                    self.candidate,
                    self._path,
                    type(error).__name__,
                )
