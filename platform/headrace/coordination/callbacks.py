"""The thread that runs a session's callbacks one at a time. Knows nothing about ZooKeeper.

Its queue holds each task at most once, so the number of watches and callbacks bounds it.
"""

import logging
import threading
from collections.abc import Iterable
from typing import Final, Protocol

from headrace.coordination.errors import CoordinationError, SessionClosedError

logger = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.2
STOP_WAIT_MAX_S: Final = 5.0


class Task(Protocol):
    def run(self) -> None: ...


class CallbackThread:
    """Runs tasks in queue order, and only while `connected` is set.

    A task that raises a retriable `CoordinationError` goes to the back of the queue and runs again after
    `RETRY_PAUSE_S`; any other exception is logged.
    """

    def __init__(self, name: str, connected: threading.Event) -> None:
        self._connected = connected
        self._pending: dict[Task, None] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, task: Task) -> None:
        with self._changed:
            self._pending[task] = None
            self._changed.notify()

    def put_first(self, tasks: Iterable[Task]) -> None:
        """Puts tasks, in their order, at the front of the queue."""
        with self._changed:
            self._pending = {**dict.fromkeys(tasks), **self._pending}
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Starts no further task; waits for the running one, at most `STOP_WAIT_MAX_S`."""
        with self._changed:
            self._stopping = True
            self._pending.clear()
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_WAIT_MAX_S)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and not (self._pending and self._connected.is_set()):
                    self._changed.wait()
                if self._stopping:
                    return
                task = next(iter(self._pending))
                del self._pending[task]
            self._run(task)

    def _run(self, task: Task) -> None:
        try:
            task.run()
        except SessionClosedError:
            return
        except CoordinationError as error:
            if not error.retriable:
                logger.exception("%s failed", task)
                return
            logger.warning("%s: %s; retrying", task, error)
            with self._changed:
                if not self._stopping:
                    self._pending[task] = None
                    self._changed.wait(RETRY_PAUSE_S)
        except Exception:
            logger.exception("%s failed", task)
