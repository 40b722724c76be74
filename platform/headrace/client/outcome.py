"""Whether a delivery is done, awaited by any number of threads: a batch shares it with its records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.client.latch import Latch

logger = logging.getLogger(__name__)


class DeliveryOutcome:
    """Done or not done, and reported or not. The events are created only if a thread waits."""

    __slots__ = ("_callbacks", "_event", "_lock", "_reported", "is_done", "is_reported")

    def __init__(self) -> None:
        self.is_done = False
        self.is_reported = False
        """Whether the callbacks have returned, too."""
        self._lock = threading.Lock()
        self._reported: Latch | None = None
        self._event: Latch | None = None
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, timeout: float | None) -> bool:
        """Waits at most `timeout` seconds (None: without bound); returns whether it is done."""
        if self.is_done:
            return True
        with self._lock:
            if self.is_done:
                return True
            if self._event is None:
                self._event = Latch()
            event = self._event
        return event.wait(timeout)

    def wait_reported(self, timeout: float | None) -> bool:
        """Waits like `wait`, and until the callbacks that were given before have returned."""
        with self._lock:
            if self.is_reported:
                return True
            if self._reported is None:
                self._reported = Latch()
            event = self._reported
        return event.wait(timeout)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in the thread that finishes this, or at once if it is done already."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        call_safely(callback)

    def finish(self) -> None:
        """Releases the waiting threads and runs the callbacks in this thread. Call it once only."""
        with self._lock:
            self.is_done = True
            event, callbacks, self._callbacks = self._event, self._callbacks, []
        if event is not None:
            event.set()
        for callback in callbacks:
            call_in_sender(callback)
        with self._lock:
            self.is_reported = True
            reported = self._reported
        if reported is not None:
            reported.set()


def call_safely(callback: Callable[[], None]) -> None:
    """Calls the application's code in its own thread, and logs the errors that it raises."""
    try:
        callback()
    except Exception:
        logger.exception("a delivery callback failed")


def call_in_sender(callback: Callable[[], None]) -> None:
    """Calls the application's code and logs whatever it raises, so that it cannot end the sender thread:
    `sys.exit` and asyncio's `CancelledError` raise what is no `Exception`.
    """
    try:
        callback()
    except BaseException:
        logger.exception("a delivery callback failed")
