"""What threads wait for once: an event in whose `wait` a signal's handler may raise anywhere.

`threading.Event` and `Condition` keep their lock if that happens just after they took it, and a thread that
sets them waits for ever. Here a waiter has a lock of its own, and takes no other.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress


class Latch:
    """Set once, by one thread; any threads wait for that."""

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: deque[threading.Lock] = deque()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits at most `timeout_s` (None: without bound); returns whether it is set."""
        if self.is_set:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if not self.is_set:  # else perhaps nobody releases it
                waiter.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        finally:
            with suppress(ValueError):  # `set` has taken it
                self._waiters.remove(waiter)
        return self.is_set

    def set(self) -> None:
        self.is_set = True
        with suppress(IndexError):
            while True:
                self._waiters.popleft().release()
