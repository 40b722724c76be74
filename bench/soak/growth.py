"""What the processes of a site hold, and whether it grows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import psutil

SAMPLES_MIN: Final = 8
"""Two for each quarter of the time."""


class Held(NamedTuple):
    """What a unit's processes hold together: memory that is theirs alone, descriptors, threads."""

    memory_mb: float
    descriptors: float
    threads: float


class Bound(NamedTuple):
    """How much more may be held at the end: a part of what was held before, and so much beside it."""

    part: float
    beside: float


BOUNDS: Final = (Bound(0.10, 2.0), Bound(0.0, 12.0), Bound(0.0, 4.0))
"""As the fields of `Held`. Descriptors and threads come and go with the visits of that moment."""


class Growth(NamedTuple):
    """One unit: medians of the second and of the last quarter of the time."""

    unit: str
    early: Held
    late: Held

    def beyond(self) -> list[str]:
        """Returns the names of the figures that have grown beyond their bounds."""
        compared = zip(Held._fields, self.early, self.late, BOUNDS, strict=True)
        return [
            name for name, early, late, bound in compared if late > early * (1 + bound.part) + bound.beside
        ]


def held(pids: Iterable[int]) -> Held | None:
    """Returns what these processes hold with all below them; None if none of them lives."""
    found: list[Held] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            found += [_held(process) for process in (top, *top.children(recursive=True))]
    return Held(*map(sum, zip(*found, strict=True))) if found else None


def _held(process: psutil.Process) -> Held:
    with process.oneshot():
        memory = process.memory_full_info().uss / 1e6
        return Held(memory, process.num_fds(), process.num_threads())


def growths(samples: Mapping[str, Sequence[Held]]) -> list[Growth]:
    """Compares the second quarter of each unit's samples with the last one: the first one is a start.

    Raises `ValueError` if there are fewer than `SAMPLES_MIN`.
    """
    return [_growth(unit, taken) for unit, taken in samples.items()]


def _growth(unit: str, taken: Sequence[Held]) -> Growth:
    if len(taken) < SAMPLES_MIN:
        raise ValueError(f"{unit}: {len(taken)} samples; it takes {SAMPLES_MIN}")
    quarter = len(taken) // 4
    return Growth(unit, _median(taken[quarter : 2 * quarter]), _median(taken[-quarter:]))


def _median(taken: Sequence[Held]) -> Held:
    return Held(*(statistics.median(figures) for figures in zip(*taken, strict=True)))
