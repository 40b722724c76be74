"""Sets and multisets of whole numbers as half-open intervals `(start, end)`.

Pure; knows nothing of sequences or addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Interval = tuple[int, int]


class Stretch(NamedTuple):
    """Numbers from `start` to `end - 1`, each `left` times in one multiset and `right` times in another."""

    start: int
    end: int
    left: int
    right: int


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the same numbers, each once, as sorted intervals that do not touch."""
    out: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def subtract(whole: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """Returns the numbers in `whole` that are not in `taken`."""
    compared = stretches(union(whole), union(taken))
    return [(start, end) for start, end, is_in_whole, is_taken in compared if is_in_whole and not is_taken]


def intersect(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """Returns the numbers that are in both, as sorted intervals that do not touch."""
    compared = stretches(union(left), union(right))
    return [(start, end) for start, end, is_left, is_right in compared if is_left and is_right]


def covers(intervals: Sequence[Interval], start: int, end: int) -> bool:
    """Whether all numbers from `start` to `end - 1` are in `intervals`, which must come from `union`."""
    return start >= end or any(low <= start and end <= high for low, high in intervals)


def overlaps(intervals: Iterable[Interval], start: int, end: int) -> bool:
    """Whether any number from `start` to `end - 1` is in `intervals`."""
    return any(low < end and start < high for low, high in intervals)


def stretches(left: Iterable[Interval], right: Iterable[Interval]) -> list[Stretch]:
    """Compares two multisets: returns sorted stretches of constant multiplicity in both.

    Numbers that are in neither are left out. Adjacent stretches differ in a multiplicity.
    """
    steps: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for side, intervals in enumerate((left, right)):
        for start, end in intervals:
            if start < end:
                steps[start][side] += 1
                steps[end][side] -= 1
    out: list[Stretch] = []
    counts = [0, 0]
    since = 0
    for at in sorted(steps):
        change_left, change_right = steps[at]
        if not (change_left or change_right):
            continue
        if counts != [0, 0]:
            out.append(Stretch(since, at, *counts))
        counts[0] += change_left
        counts[1] += change_right
        since = at
    return out
