"""Simulated time: one queue of events for the whole world; on it an event loop and threads for each broker.

Everything runs on one real thread. What a broker does may be late (it is stopped), or never happen (it died):
each event belongs to one life of one process.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.broker.loop import Timer

Call = Callable[[], None]
Waiting = Callable[[], bool]
Outcome = Callable[[Any, Exception | None], None]
_push: Final = heapq.heappush
ERRORS_MAX: Final = 20
WALL_MS: Final = 1_700_000_000_000
"""What the brokers' wall clocks show when a world begins."""


class Life:
    """One life of a simulated process. While it is stopped, its events wait; once it died, they are void."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        self.held: list[Call] = []


class Clock:
    """The queue of events. `draw` is the only source of chance in a world."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Life, Call]] = []
        self._numbers = itertools.count()
        self.errors: list[str] = []
        self.has_true_events = False
        """Whether events are as old as they say; otherwise a world has events of several hours."""

    def after(self, delay_ms: float, life: Life, call: Call) -> None:
        """Calls later, if that life still lasts then."""
        _push(self._events, (self.now_ms + delay_ms, next(self._numbers), life, call))

    def run_until(self, end_ms: float) -> None:
        """Runs all events up to a moment."""
        events = self._events
        pop = heapq.heappop
        while events and events[0][0] <= end_ms:
            at_ms, _, life, call = pop(events)
            if life.is_dead:
                continue
            if life.is_stopped:
                life.held.append(call)
                continue
            if at_ms > self.now_ms:
                self.now_ms = at_ms
            call()
        self.now_ms = max(self.now_ms, end_ms)

    def run_while(self, is_waiting: Waiting, end_ms: float) -> None:
        """Runs events as long as somebody waits, and up to a moment. For a call that blocks: it is called by
        an event, and those that are due meanwhile run below it.
        """
        while is_waiting() and self.now_ms < end_ms:
            following_ms = self._events[0][0] if self._events else end_ms
            self.run_until(min(end_ms, max(following_ms, self.now_ms)))

    def go_on(self, life: Life) -> None:
        """Lets a life that was stopped do what has come meanwhile, in its order."""
        life.is_stopped = False
        held, life.held = life.held, []
        for call in held:
            self.after(0.0, life, call)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.draw.random()


class SimLoop:
    """What a broker's parts need of `broker.loop.EventLoop`, on simulated time."""

    def __init__(self, clock: Clock, life: Life) -> None:
        self._clock = clock
        self._life = life
        self._hooks: list[Call] = []

    def at_wakeup_end(self, hook: Call) -> None:
        self._hooks.append(hook)

    def put_hook_first(self, hook: Call) -> None:
        self._hooks.insert(0, hook)

    def wake(self, call: Call) -> None:
        """Runs a call as one wakeup of the loop, with the hooks at its end."""
        call()
        for hook in self._hooks:
            hook()

    def call_later(self, delay_ms: float, call: Call) -> Timer:
        timer = Timer(call)

        def due() -> None:
            if timer.call is not None:
                self.wake(timer.call)

        self._clock.after(max(0.0, delay_ms), self._life, due)
        return timer

    def every(self, period_ms: float, call: Call) -> None:
        def again() -> None:
            self.wake(call)
            self._clock.after(period_ms, self._life, again)

        self._clock.after(period_ms, self._life, again)

    def post(self, call: Call) -> None:
        self._clock.after(0.0, self._life, partial(self.wake, call))


class SimWorkers:
    """Threads for blocking work: a job takes effect at one moment, and the loop hears of it later."""

    def __init__(self, clock: Clock, life: Life, loop: SimLoop, low_ms: float, high_ms: float) -> None:
        self._clock = clock
        self._life = life
        self._loop = loop
        self._low_ms = low_ms
        self._high_ms = high_ms
        self.slow = 1.0
        """By how much everything takes longer."""

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        def work() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = job()
            except Exception as caught:
                error = caught
            news_ms = self._clock.between(0.0, self._low_ms)
            self._clock.after(news_ms, self._life, partial(self._loop.wake, partial(done, result, error)))

        delay_ms = self._clock.between(self._low_ms, self._high_ms) * self.slow
        self._clock.after(delay_ms, self._life, work)
