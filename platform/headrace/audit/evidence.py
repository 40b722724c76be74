"""The evidence that the audit judges: values only, no I/O, no clock.

`audit.gathering.gather` reads evidence from the store, `audit.verdicts.verdicts` judges it, and
`audit.findings` are what follows from it.

A *claim* is a publisher's report that it accepted records with certain sequence numbers. A claim is
*withdrawn* when a later report omits it: the producer bumped its epoch and gave the same records new numbers
(KIP-360). A *cover* is the set of addresses that a tier has counted or loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.audit.batches.tally import Span
from headrace.audit.evidence_of_reports import LostLog, MissingReport
from headrace.audit.evidence_of_tables import HeldTwice, UnsoundFile
from headrace.audit.intervals import Interval, intersect, union
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import FROM_LOG, FROM_PRODUCERS
from headrace.audit.topic.recounts import Recount


class Claim(NamedTuple):
    """Records that a publisher accepted, by identity. `reported_ms` is the time of its last report.

    `content`: what their batches hold (`wire.content`); None if the publisher does not know.
    """

    publisher: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    withdrawn: bool
    reported_ms: int
    content: int | None = None


class Handover(NamedTuple):
    """How many events of an hour a publisher accepted, and how many got a sequence number (its claims).

    The rest waits in the client or was dropped there. `final`: the counts will not change again.
    """

    publisher: str
    handed_over_count: int
    sequenced_count: int
    final: bool
    reported_ms: int


class CountedSpan(NamedTuple):
    """A span of a source partition as a tier counted it, and when the tier reported it."""

    partition: int
    span: Span
    counted_ms: int


class PublisherState(NamedTuple):
    """What is known about one publisher. `closed`: its last report was its final one.

    `counts_only`: it does not know sequence numbers, so its events are compared with the log by count.
    `skew_ms`: by how much its clock is ahead (`audit.store.clocks`); all times of it here are put right by
    that. `report_number`: that of its newest report.
    """

    service: str
    server: str
    started_ms: int
    last_ms: int
    closed: bool
    counts_only: bool = False
    skew_ms: int = 0
    report_number: int = 0


class Heartbeat(NamedTuple):
    """An auditor's newest heartbeat for one partition."""

    at_ms: int
    counted_to_address: int
    end_address: int


class DeclaredPartitions(NamedTuple):
    """How many partitions a datacenter's auditor said last that a topic has, and when it said so."""

    partition_count: int
    said_ms: int


class ReportedGap(NamedTuple):
    """Addresses [start, end) that a tier can no longer see, or that an operator let a load skip.

    `first_ms`, `last_ms`: from which event time to which such addresses of a datacenter's log may have held
    events; None: without a bound.
    """

    start: int
    end: int
    cause: str
    first_ms: int | None = None
    last_ms: int | None = None


class CorruptRange(NamedTuple):
    """A damaged batch at [start, end) of a tier's log; `audit-corrupt.avsc` describes the other fields."""

    start: int
    end: int
    cause: str
    record_count: int | None
    first_ms: int | None
    last_ms: int | None
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    in_tally: bool


class CorruptHere(NamedTuple):
    """A damaged batch of a source partition in a tier's log that belongs to the hour."""

    tier: str
    partition: int
    range: CorruptRange


@dataclass(frozen=True, slots=True)
class TierEvidence:
    """How far one tier has looked at one source partition.

    `cover` is sorted and disjoint. The warehouse has no heartbeat, and no corrupt batches of its own.
    `first_counted_ms`: when the counted range with the lowest address was counted. `frontier_ms`: the event
    time to which counting has come, where it lags. `counted`: up to which address each range was counted, and
    when.
    """

    cover: tuple[Interval, ...] = ()
    heartbeat: Heartbeat | None = None
    gaps: tuple[ReportedGap, ...] = ()
    corrupt: tuple[CorruptRange, ...] = ()
    recounts: tuple[Recount, ...] = ()
    first_counted_ms: int | None = None
    frontier_ms: int | None = None
    counted: tuple[tuple[int, int], ...] = ()

    def known(self) -> list[Interval]:
        """Returns what is counted, or set aside as corrupt."""
        return union((*self.cover, *((each.start, each.end) for each in self.corrupt)))

    def recount_in(self, start: int, end: int) -> Recount | None:
        """Returns the newest recount of addresses in [start, end), or at `start`."""
        sharing = (each for each in self.recounts if each.from_address < max(end, start + 1))
        found = [each for each in sharing if start < each.to_address]
        return max(found, key=lambda each: each.said_ms, default=None)

    def gap_in(self, start: int, end: int) -> ReportedGap | None:
        """Returns the first reported gap that shares addresses with [start, end)."""
        return next((gap for gap in self.gaps if gap.start < end and start < gap.end), None)


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """How far each tier has looked at one source partition.

    `log_partition` is the analysis cluster's partition. `contradictions` are problems: ranges that a tier
    counted twice with different results. `taken`: what loads read from the datacenter's own log.
    `unreported`: addresses between two loads that a change of the table may have consumed of which nobody
    told the audit.
    """

    log_partition: int | None = None
    datacenter: TierEvidence = TierEvidence()
    analysis: TierEvidence = TierEvidence()
    warehouse: TierEvidence = TierEvidence()
    contradictions: tuple[str, ...] = ()
    taken: tuple[Interval, ...] = ()
    unreported: tuple[Interval, ...] = ()

    def taken_from_source(self) -> list[Interval]:
        """Returns the addresses that the copy never had, and that the warehouse took from the source's log.

        A load of the copy may have consumed a range that spans the gap; it read nothing there.
        """
        return intersect(((gap.start, gap.end) for gap in self.analysis.gaps), self.taken)


class Acceptance(NamedTuple):
    """Who accepted a finding as it is, when (ms) and why (`audit.topic.acceptances`)."""

    said_by: str
    said_ms: int
    reason: str


class WrittenRows(NamedTuple):
    """What all loads together wrote of one source partition and hour."""

    rows: int = 0
    distinct_offsets: int = 0
    dead_lettered: int = 0


class LoadedContent(NamedTuple):
    """What one load wrote of an hour from addresses [start, end): how many events, dead letters among them,
    and the content of the batches that it read; None if that is not known.
    """

    start: int
    end: int
    record_count: int
    content: int | None


_NO_EVIDENCE: Final = PartitionEvidence()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known about one hour of one topic from one datacenter.

    `publisher_names`: producer id → key of `publishers`, from reports on any hour. `unclosed`: those that
    have had events of the topic, in any hour, and have not closed. `latest`: (partition,
    producer id) → the highest (epoch, sequence) in the datacenter's log, of any hour. `touched_ms`: when the
    newest record about this hour was reported. `ahead_ms`: how far the clock of the datacenter's auditor is
    ahead, at least. `counted_from`: see `audit.topic.declarations`. `acceptances`:
    by the digests of findings, of any datacenter.

    A topic may have been deleted and made again under its name (`audit.incarnations`). This is then what is
    known of the present one, first seen at `made_again_ms`; `earlier` are the deleted ones, and `between` are
    claims that nobody can ascribe. `deleted_ms`: when the datacenter's auditor saw that the present one was
    deleted, too. `declared`: how many partitions it said last that the topic has. `is_forgotten`: the store
    has forgotten the hour at some time, and may lack a part of it.
    """

    topic: str
    datacenter: str
    hour_ms: int
    claims: tuple[Claim, ...] = ()
    handovers: tuple[Handover, ...] = ()
    datacenter_spans: tuple[CountedSpan, ...] = ()
    analysis_spans: tuple[CountedSpan, ...] = ()
    partitions: Mapping[int, PartitionEvidence] = field(default_factory=dict)
    rows: Mapping[int, WrittenRows] = field(default_factory=dict)
    loads: Mapping[int, tuple[LoadedContent, ...]] = field(default_factory=dict)
    publishers: Mapping[str, PublisherState] = field(default_factory=dict)
    unclosed: frozenset[str] = frozenset()
    publisher_names: Mapping[int, str] = field(default_factory=dict)
    latest: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    touched_ms: int = 0
    corrupt: tuple[CorruptHere, ...] = ()
    counted_from: str = FROM_PRODUCERS
    acceptances: Mapping[str, Acceptance] = field(default_factory=dict)
    topic_id: str = ""
    is_deleted: bool = False
    earlier: tuple[Evidence, ...] = ()
    between: tuple[Claim, ...] = ()
    made_again_ms: int | None = None
    deleted_ms: int | None = None
    declared: DeclaredPartitions | None = None
    unsound_files: tuple[UnsoundFile, ...] = ()
    doubled: tuple[HeldTwice, ...] = ()
    ahead_ms: int = 0
    missing_reports: tuple[MissingReport, ...] = ()
    lost_logs: tuple[LostLog, ...] = ()
    is_forgotten: bool = False

    @property
    def is_counted_from_log(self) -> bool:
        """Whether the topic declares for this hour that producers need not report."""
        return self.counted_from == FROM_LOG

    @property
    def end_ms(self) -> int:
        return self.hour_ms + HOUR_MS

    @property
    def is_after_deletion(self) -> bool:
        """Whether the topic was deleted before this hour began: no log of it has got an event since. Where
        one has events of this hour, the clock that said so was behind, or that of a producer ahead.
        """
        if self.datacenter_spans:
            return False
        return self.deleted_ms is not None and self.deleted_ms <= self.hour_ms

    def publisher_of(self, producer_id: int) -> PublisherState | None:
        """Returns the publisher that reported a producer id, if any did."""
        return self.publishers.get(self.publisher_names.get(producer_id, ""))

    def partition(self, number: int) -> PartitionEvidence:
        """Returns the evidence of a source partition; empty if no tier reported anything about it."""
        return self.partitions.get(number, _NO_EVIDENCE)
