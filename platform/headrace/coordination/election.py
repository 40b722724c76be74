"""One leader among several candidates, for as long as it can be sure of it. Wraps the ZooKeeper library's
election recipe.

Leadership ends as soon as the connection is in doubt (SUSPENDED), not only when the session is known to be
lost: a leader that cannot reach ZooKeeper may already have a successor. What a leader writes to ZooKeeper
should still be guarded by versions.
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
    """A candidacy at `path`. `candidate` names it to others (`candidates()`).

    From `start()` to `close()` a thread of its own stands for election again and again. It calls
    `on_elected()` when elected and `on_deposed()` when that ended; both run in that thread and must return
    soon.
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
        self._thread = threading.Thread(target=self._stand, name=f"election-{candidate}", daemon=True)

    def start(self) -> None:
        self._remove_listener = self._session.on_state(self._on_state)
        self._thread.start()

    def close(self) -> None:
        """Ends the candidacy; a leader is deposed first. Waits for it, at most `CLOSE_WAIT_MAX_S`, and not
        at all while ZooKeeper cannot be reached: then only the end of the session takes the candidate off
        the list."""
        self._closing.set()
        self._in_doubt.set()
        with self._lock:
            self._round.cancel()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_MAX_S if self._session.state is SessionState.CONNECTED else 0)
            self._remove_listener()

    @property
    def leading(self) -> bool:
        """Whether this candidate is the leader, as far as it can know."""
        return self._leading.is_set()

    def candidates(self) -> list[str]:
        """All candidates' names, the leader first."""
        return self._session.election_candidates(self._path)

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._in_doubt.set()

    def _stand(self) -> None:
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
            self._give_back()

    def _lead(self) -> None:
        if self._in_doubt.is_set():
            return
        logger.info("%s: elected at %s", self.candidate, self._path)
        self._leading.set()
        try:
            self._on_elected()
            self._in_doubt.wait()
        except Exception:
            logger.exception("%s: elected at %s, could not take office", self.candidate, self._path)
        finally:
            self._leading.clear()
            logger.info("%s: no longer leader at %s", self.candidate, self._path)
            self._on_deposed()

    def _give_back(self) -> None:
        """Makes sure that our node is gone: one left by a release in a dead connection would stand in
        everybody's way,
        ours too, for as long as the session lives."""
        while not self._closing.wait(RETRY_PAUSE_S) and self._round.lock.is_acquired:
            try:
                self._session.wait_connected(RETRY_PAUSE_S)
                self._round.lock.release()
            except kz.KazooException as error:
                logger.info(
                    "%s: could not yet leave %s: %s", self.candidate, self._path, type(error).__name__
                )
