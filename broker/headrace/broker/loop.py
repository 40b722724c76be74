"""The event loop: epoll, timers, and calls posted by other threads. Knows nothing of what it drives.

A *wakeup* is one round: wait, run what is ready, then the `at_wakeup_end` hooks (commit writes, send
responses).
"""

from __future__ import annotations

import heapq
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 512
POLL_MAX_S: Final = 60.0
TIMERS_PURGE_MIN: Final = 1024  # timers, cancelled ones included, before cancelled ones are first removed

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

Call = Callable[[], None]


class Ready(Protocol):
    """What is registered for a file descriptor. `on_failure` is called after `on_ready` raised: it must end
    or pause what is registered, since the descriptor is still ready.
    """

    def on_ready(self, events: int) -> None: ...
    def on_failure(self) -> None: ...


def describe(call: Callable[..., object]) -> str:
    """Returns the name of a call for log lines, without its arguments, which may be large."""
    while isinstance(call, partial):
        call = call.func
    name = getattr(call, "__qualname__", type(call).__name__)
    owner = getattr(call, "__self__", None)
    is_named = getattr(type(owner), "__str__", None) is not object.__str__  # others print all that they hold
    return f"{name} of {owner}" if owner is not None and is_named else name


class Timer:
    """A call at a later time; `cancel` prevents it."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None


class EventLoop:
    """Single-threaded; only `post` and `stop` may be called from other threads (and signal handlers)."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_count = 0
        self._purge_at = TIMERS_PURGE_MIN
        self._posted: deque[Call] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, READABLE)
        self._stopping = False
        self._hooks: list[Call] = []

    def at_wakeup_end(self, hook: Call) -> None:
        """Runs `hook` at the end of every wakeup, after those registered before."""
        self._hooks.append(hook)

    def put_hook_first(self, hook: Call) -> None:
        """Runs `hook` at the end of every wakeup, before all others."""
        self._hooks.insert(0, hook)

    def register(self, fd: int, ready: Ready, events: int = READABLE) -> None:
        self._ready[fd] = ready
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        del self._ready[fd]
        self._epoll.unregister(fd)

    def call_later(self, delay_ms: float, call: Call) -> Timer:
        timer = Timer(call)
        self._timer_count += 1
        if len(self._timers) >= self._purge_at:
            self._purge_timers()
        heapq.heappush(self._timers, (self._clock_s() + delay_ms / 1000, self._timer_count, timer))
        return timer

    def every(self, period_ms: float, call: Call) -> None:
        """Repeats a call; its exceptions are logged and do not end the repetition."""

        def again() -> None:
            try:
                call()
            finally:
                self.call_later(period_ms, again)

        self.call_later(period_ms, again)

    def post(self, call: Call) -> None:
        """Runs `call` on the loop's thread soon. Any thread."""
        self._posted.append(call)
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Ends `run` after the present wakeup and one more. Any thread and signal handlers may call it."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def run(self) -> None:
        while not self._stopping:
            self.turn(self._wait_s())
        self.turn(0)

    def turn(self, wait_s: float) -> None:
        """Runs one wakeup that waits at most `wait_s`."""
        ready = self._ready
        for fd, events in self._epoll.poll(wait_s, EVENTS_MAX):
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                continue
            target = ready.get(fd)
            if target is not None:
                try:
                    target.on_ready(events)
                except Exception:
                    self._fail(fd, target)
        while self._posted:
            self._run(self._posted.popleft())
        if self._timers:
            self._run_timers()
        for hook in self._hooks:
            self._run(hook)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake_fd)

    def _wait_s(self) -> float:
        if not self._timers:
            return POLL_MAX_S
        return min(POLL_MAX_S, max(0.0, self._timers[0][0] - self._clock_s()))

    def _run_timers(self) -> None:
        now_s = self._clock_s()
        while self._timers and self._timers[0][0] <= now_s:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._run(call)

    def _purge_timers(self) -> None:
        """Removes cancelled timers: fetches that could wait for minutes cancel theirs within milliseconds."""
        self._timers = [entry for entry in self._timers if entry[2].call is not None]
        heapq.heapify(self._timers)
        self._purge_at = max(TIMERS_PURGE_MIN, 2 * len(self._timers))

    def _fail(self, fd: int, target: Ready) -> None:
        """Ends what raised; the others that are ready are still served."""
        logger.exception("%s: handling its socket failed", target)
        try:
            target.on_failure()
        except Exception:
            logger.exception("%s: ending it failed, it is served no more", target)
            if self._ready.get(fd) is target:
                self.unregister(fd)

    def _run(self, call: Call) -> None:
        try:
            call()
        except Exception:
            logger.exception("a call on the event loop failed: %s", describe(call))
