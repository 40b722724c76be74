"""Which of several overlapping tallies count. Pure.

An auditor that restarts may cut the log at other addresses than before, and two may run by mistake. Each
tally is right for its own range, so any chain of ranges end to end counts correctly; overlapping ones must
not both count. The choice depends on the set of ranges alone, never on the order in which they came: the
most addresses covered, then the fewest ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from headrace.audit.intervals import Interval


class Candidate(NamedTuple):
    """A counted range [start, end). `digest` tells two counts of the same range apart; `row` is the
    caller's.
    """

    start: int
    end: int
    digest: str
    row: int


def choose(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The disjoint candidates that count, in order of address: weighted interval scheduling by length."""
    ordered = sorted(candidates, key=lambda each: (each.end, each.start, each.digest))
    ends = [each.end for each in ordered]
    # best[i]: (addresses covered, minus the number of ranges) that the first i candidates can give.
    best: list[tuple[int, int]] = [(0, 0)]
    taken: list[bool] = []
    before: list[int] = []
    for index, each in enumerate(ordered):
        earlier = bisect_right(ends, each.start, hi=index)
        covered, minus_count = best[earlier]
        with_it = (covered + each.end - each.start, minus_count - 1)
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


def contradictions(candidates: Iterable[Candidate]) -> list[Interval]:
    """Ranges counted twice with different results: the log changed under the auditor, or one miscounted."""
    digests: dict[Interval, set[str]] = {}
    for each in candidates:
        digests.setdefault((each.start, each.end), set()).add(each.digest)
    return sorted(interval for interval, seen in digests.items() if len(seen) > 1)
