"""Sequence ranges that a publisher claims, and what their batches hold: merged where they touch. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from headrace.audit.topic.records import HandoverTally
from headrace.wire.content import NO_BATCHES, added


def merge_ranges(ranges: Iterable[Iterable[int]]) -> list[list[int]]:
    """Sorts [partition, producer id, epoch, first, last] lists; merges adjacent and overlapping ones."""
    merged: list[list[int]] = []
    for range_ in sorted(list(values) for values in ranges):
        if merged and merged[-1][:3] == range_[:3] and range_[3] <= merged[-1][4] + 1:
            merged[-1][4] = max(merged[-1][4], range_[4])
        else:
            merged.append(range_)
    return merged


def contents_of(merged: Iterable[list[int]], tally: HandoverTally) -> list[int | None]:
    """Returns what the batches of each merged range hold; None where a part is unknown, or there twice."""
    known = tally.contents or (None,) * len(tally.ranges)
    parts = sorted(zip(tally.ranges, known, strict=True), key=itemgetter(0))
    at = 0
    found: list[int | None] = []
    for *identity, first, last in merged:
        content: int | None = NO_BATCHES
        while at < len(parts) and list(parts[at][0][:3]) == identity and parts[at][0][3] <= last:
            (*_, start, end), part = parts[at]
            content = added(content, part) if start == first else None
            first, at = max(first, end + 1), at + 1
        found.append(content)
    return found
