"""The choice among overlapping tallies: which of them count. Pure.

A restarted auditor may cut the log at other addresses than before, and two auditors may run by mistake. Each
tally is right for its own range, so any chain of adjacent ranges counts correctly, but two overlapping ranges
must not both count. The choice depends only on the set of ranges, not on their order of arrival: the most
addresses covered, then the fewest ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A counted range [start, end).

    `digest` distinguishes different counts of the same range. `row`: opaque value of the caller.
    """

    start: int
    end: int
    digest: str
    row: int


def choose(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns the disjoint candidates that count, by address: weighted interval scheduling by length."""
    ordered = sorted(candidates, key=lambda candidate: (candidate.end, candidate.start, candidate.digest))
    ends = [candidate.end for candidate in ordered]
    # best[i]: (addresses covered, minus the number of ranges) that the first i candidates can give.
    best: list[tuple[int, int]] = [(0, 0)]
    taken: list[bool] = []
    before: list[int] = []
    for index, candidate in enumerate(ordered):
        earlier = bisect_right(ends, candidate.start, hi=index)
        covered, minus_count = best[earlier]
        with_it = (covered + candidate.end - candidate.start, minus_count - 1)
        before.append(earlier)
        taken.append(with_it > best[index])
        best.append(max(with_it, best[index]))
    chosen: list[Candidate] = []
    index = len(ordered)
    while index:
        if taken[index - 1]:
            chosen.append(ordered[index - 1])
            index = before[index - 1]
        else:
            index -= 1
    return chosen[::-1]
