"""The ranges of addresses that tasks read. Pure.

A range may be cut inside a batch: a record belongs to the range that its own offset is in. So any cut gives
every record once, with byte addresses and with Kafka's record numbers.
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


def shares(ranges: Iterable[Range], count: int) -> list[tuple[Range, ...]]:
    """Cuts the ranges into at most `count` shares of the same size, of one range or several each."""
    whole = [range_ for range_ in ranges if range_.size > 0]
    total = sum(range_.size for range_ in whole)
    found: list[tuple[Range, ...]] = []
    for step in range(count):
        start, end = total * step // count, total * (step + 1) // count
        share: list[Range] = []
        at = 0
        for range_ in whole:
            first, last = max(start - at, 0), min(end - at, range_.size)
            if first < last:
                base = range_.from_offset
                share.append(Range(range_.topic, range_.partition, base + first, base + last))
            at += range_.size
        if share:
            found.append(tuple(share))
    return found


def split(ranges: Iterable[Range], min_count: int = 1) -> list[Range]:
    """Cuts the ranges into at least `min_count` ranges of nearly the same size, and drops empty ones.

    Returns more ranges if there are more partitions, and fewer if there are fewer offsets.
    """
    whole = [range_ for range_ in ranges if range_.size > 0]
    total = sum(range_.size for range_ in whole)
    if not whole or min_count <= len(whole):
        return whole
    cut: list[Range] = []
    for range_ in whole:
        count = max(1, min(range_.size, -(-range_.size * min_count // total)))
        ends = [range_.from_offset + range_.size * step // count for step in range(count + 1)]
        cut += [Range(range_.topic, range_.partition, start, end) for start, end in itertools.pairwise(ends)]
    return cut
