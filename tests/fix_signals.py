"""Signals whose handlers raise in the middle of a call, as Ctrl+C and watchdogs do."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator

import pytest

GAP_S = (0.0002, 0.002)
AGAIN_S = 2.0
CALLS_MAX = 5_000_000  # a worker of CI once grew to 20 GB here

Interrupt = Callable[[Callable[[], object]], None]


class SignalError(Exception):
    pass


@pytest.fixture
def interrupted() -> Iterator[Interrupt]:
    """Repeats a call until a signal's handler raises in it. By the timer of the process's own time: the other
    one is that of the tests' timeout.
    """
    is_armed = False

    def handle(*_: object) -> None:
        if is_armed:
            raise SignalError

    def repeat(call: Callable[[], object]) -> None:
        nonlocal is_armed
        is_armed = True
        try:
            # Once more later: Python only reports what is raised in a finalizer.
            signal.setitimer(signal.ITIMER_VIRTUAL, random.uniform(*GAP_S), AGAIN_S)
            for _ in range(CALLS_MAX):
                call()
            raise AssertionError(f"no signal came in {CALLS_MAX:,} calls")
        except SignalError:
            pass
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    before = signal.signal(signal.SIGVTALRM, handle)
    gc.disable()  # it would run what other tests left behind, and the handler raise in that
    yield repeat
    gc.enable()
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
