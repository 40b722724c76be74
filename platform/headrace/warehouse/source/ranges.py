"""Which addresses a task reads. Pure.

A split need not lie at a batch's edge: a record belongs to the split that its own offset lies in, so any
cut gives every record once, for byte addresses and for Kafka's record numbers alike.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Range:
    """Offsets `[from_offset, to_offset)` of one partition."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int

    @property
    def size(self) -> int:
        """Bytes at a headrace broker, record numbers at Apache Kafka."""
        return self.to_offset - self.from_offset


def split(ranges: Iterable[Range], min_parts: int = 1) -> list[Range]:
    """Cut the ranges into at least `min_parts` of nearly the same size; empty ones are dropped.

    A partition is never joined with another one, so there may be more. Sizes bound how many there can be.
    """
    whole = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in whole)
    if not whole or min_parts <= len(whole):
        return whole
    parts: list[Range] = []
    for each in whole:
        count = max(1, min(each.size, -(-each.size * min_parts // total)))
        cuts = [each.from_offset + each.size * step // count for step in range(count + 1)]
        parts += [Range(each.topic, each.partition, start, end) for start, end in itertools.pairwise(cuts)]
    return parts
