"""The ranges of addresses that tasks read. Pure.

A range may be cut inside a batch: a record belongs to the part that its own offset is in. So any cut gives
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


def split(ranges: Iterable[Range], min_parts: int = 1) -> list[Range]:
    """Cuts the ranges into at least `min_parts` parts of nearly the same size, and drops empty ones.

    Returns more parts if there are more partitions, and fewer if there are fewer offsets.
    """
    whole = [part for part in ranges if part.size > 0]
    total = sum(part.size for part in whole)
    if not whole or min_parts <= len(whole):
        return whole
    parts: list[Range] = []
    for part in whole:
        count = max(1, min(part.size, -(-part.size * min_parts // total)))
        cuts = [part.from_offset + part.size * step // count for step in range(count + 1)]
        parts += [Range(part.topic, part.partition, start, end) for start, end in itertools.pairwise(cuts)]
    return parts
