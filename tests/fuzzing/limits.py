"""Bounds on the processor time and the memory that a reader in this process takes for one input."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from typing import Final

CPU_MAX_S: Final = 3.0
MEMORY_GROWTH_MAX_BYTES: Final = 600 << 20


class TooSlowError(Exception):
    """An input took more than `CPU_MAX_S` of processor time."""


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Raises if the block takes longer, or makes this process larger, than an input may. Main thread only."""

    def end(*_: object) -> None:
        raise TooSlowError(f"{what} takes more than {CPU_MAX_S:g} s")

    before = _peak_bytes()
    old = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_MAX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    growth = _peak_bytes() - before
    assert growth <= MEMORY_GROWTH_MAX_BYTES, f"{what} takes {growth >> 20} MiB"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
