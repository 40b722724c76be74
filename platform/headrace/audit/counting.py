"""Counting one partition's log range by range. Pure: batches in, tallies out at the moments it is told to
cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.audit.records import ANALYSIS_TIER, DATACENTER_TIER, Position, RangeTally
from headrace.audit.tally import Tally
from headrace.wire.primitives import Buffer

SPANS_PER_TALLY_MAX: Final = 5_000


class Source(NamedTuple):
    """Whose events a counted partition holds."""

    datacenter: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A partition to count: where it is, whose it is, and for which tiers its tallies speak.

    In the analysis cluster a mirrored partition speaks for tier analysis; one of that cluster's own topics
    for both.
    """

    topic: str
    log_partition: int
    source: Source
    tiers: tuple[str, ...]


class Counting:
    """The running count of one subject from `from_address` on."""

    def __init__(
        self, subject: Subject, from_address: int, bucket_ms: int, trusted: Callable[[str, int], bool]
    ) -> None:
        self.subject = subject
        self.from_address = from_address
        self.counted_to = from_address
        self.bucket_ms = bucket_ms
        datacenter = subject.source.datacenter
        self._trusted = lambda producer_id: trusted(datacenter, producer_id)
        self._tally = Tally(bucket_ms, self._trusted)

    @property
    def is_full(self) -> bool:
        """Whether it should be cut soon, for the size of its tally."""
        return len(self._tally) >= SPANS_PER_TALLY_MAX

    def feed(self, buffer: Buffer, base_address: int, end_address: int) -> None:
        """Count whole batches that lie at [base_address, end_address), directly behind what is counted.

        What lies before is skipped: a fetch inside a batch is answered with all of it. `ValueError` on a
        hole.
        """
        if base_address > self.counted_to:
            raise ValueError(f"batches at {base_address}, counted to {self.counted_to}")
        if base_address < self.counted_to:
            raise ValueError(f"batches at {base_address} were counted already, up to {self.counted_to}")
        self._tally.feed(buffer)
        self.counted_to = end_address

    def skip_to(self, address: int) -> None:
        """Go on at `address` after a gap; what was counted must have been cut."""
        self.from_address = self.counted_to = address
        self._tally = Tally(self.bucket_ms, self._trusted)

    def cut(self) -> list[RangeTally]:
        """The tallies of the range since the last cut, one a tier; none if nothing came."""
        if self.counted_to == self.from_address:
            return []
        spans, start = self._tally.spans, self.from_address
        self.skip_to(self.counted_to)
        subject = self.subject
        return [
            RangeTally(
                tier=tier,
                datacenter=subject.source.datacenter,
                topic=subject.topic,
                partition=subject.source.partition,
                log_partition=subject.log_partition,
                from_address=start,
                to_address=self.counted_to,
                bucket_ms=self.bucket_ms,
                spans=spans,
            )
            for tier in subject.tiers
        ]

    def position(self, end_address: int) -> Position:
        """Its line of a heartbeat. Nothing counted may be uncut."""
        subject = self.subject
        return Position(
            subject.source.datacenter,
            subject.topic,
            subject.source.partition,
            subject.log_partition,
            self.counted_to,
            max(end_address, self.counted_to),
        )


def subject_of(
    datacenter: str, topic: str, partition: int, sources: Mapping[str, list[Source]] | None
) -> Subject | None:
    """What a partition of this cluster is to the audit.

    `sources`: of a cluster that is mirrored into, topic → the source of each of its partitions; None where
    nothing is mirrored into. A mirrored topic's partition that belongs to nobody yet is not counted (None).
    """
    if sources is None:
        return Subject(topic, partition, Source(datacenter, partition), (DATACENTER_TIER,))
    if topic not in sources:
        return Subject(topic, partition, Source(datacenter, partition), (DATACENTER_TIER, ANALYSIS_TIER))
    if partition >= len(sources[topic]):
        return None
    return Subject(topic, partition, sources[topic][partition], (ANALYSIS_TIER,))
