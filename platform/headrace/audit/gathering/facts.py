"""The builders that `audit.gathering.gather` fills with facts: of an hour, of an hour's logs, of a
partition."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from headrace.audit.evidence import (
    Claim,
    CorruptHere,
    CorruptRange,
    CountedSpan,
    Handover,
    Heartbeat,
    LoadedContent,
    PartitionEvidence,
    ReportedGap,
    TierEvidence,
    WrittenRows,
)
from headrace.audit.intervals import Interval, union
from headrace.audit.topic.records import ANALYSIS_TIER
from headrace.audit.topic.recounts import Recount


@dataclass(slots=True)
class HourFacts:
    """The facts about one hour of the topic from one datacenter, whichever log has its events."""

    claims: list[Claim] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    touched_ms: int = 0


@dataclass(slots=True)
class LogFacts:
    """The facts about one hour in the logs of one topic of the name. `spans` are by tier, `rows` and `loads`
    by partition.
    """

    spans: defaultdict[str, list[CountedSpan]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, WrittenRows] = field(default_factory=dict)
    loads: defaultdict[int, list[LoadedContent]] = field(default_factory=lambda: defaultdict(list))
    corrupt: list[CorruptHere] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(any(self.spans.values()) or self.rows or self.loads or self.corrupt)


@dataclass(slots=True)
class TierFacts:
    """What one tier reported about one source partition. `first`: the lowest counted address, and when.
    `counted`: the end of each counted range, and when.
    """

    ranges: list[Interval] = field(default_factory=list)
    first: tuple[int, int] | None = None
    heartbeat: Heartbeat | None = None
    gaps: list[ReportedGap] = field(default_factory=list)
    corrupt: list[CorruptRange] = field(default_factory=list)
    recounts: list[Recount] = field(default_factory=list)
    frontier_ms: int | None = None
    counted: list[tuple[int, int]] = field(default_factory=list)

    def evidence(self) -> TierEvidence:
        return TierEvidence(
            cover=tuple(union(self.ranges)),
            heartbeat=self.heartbeat,
            gaps=tuple(self.gaps),
            corrupt=tuple(self.corrupt),
            recounts=tuple(self.recounts),
            first_counted_ms=None if self.first is None else self.first[1],
            frontier_ms=self.frontier_ms,
            counted=tuple(self.counted),
        )


@dataclass(slots=True)
class PartitionFacts:
    """The facts about one source partition of the topic."""

    log_partition: int | None = None
    datacenter: TierFacts = field(default_factory=TierFacts)
    analysis: TierFacts = field(default_factory=TierFacts)
    warehouse: TierFacts = field(default_factory=TierFacts)
    taken: list[Interval] = field(default_factory=list)
    unreported: list[Interval] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def of_auditor(self, tier: str) -> TierFacts:
        """Returns the facts of a tier that an auditor counts."""
        return self.analysis if tier == ANALYSIS_TIER else self.datacenter

    def evidence(self) -> PartitionEvidence:
        return PartitionEvidence(
            self.log_partition,
            self.datacenter.evidence(),
            self.analysis.evidence(),
            self.warehouse.evidence(),
            tuple(self.contradictions),
            tuple(union(self.taken)),
            tuple(self.unreported),
        )
