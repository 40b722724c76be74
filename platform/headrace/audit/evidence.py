"""The evidence that the audit judges, and the verdicts that follow from it: values only, no I/O, no clock.

`audit.gathering.gather` reads evidence from the store, `audit.verdicts.verdicts` judges it.

A *claim* is a publisher's report that it accepted records with certain sequence numbers. A claim is
*withdrawn* when a later report omits it: the producer bumped its epoch and gave the same records new numbers
(KIP-360). A *cover* is the set of addresses that a tier has counted or loaded. A *hop* leads from one tier
to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.audit.batches.tally import Span
from headrace.audit.evidence_of_reports import LostLog, MissingReport
from headrace.audit.evidence_of_tables import HeldTwice, UnsoundFile
from headrace.audit.intervals import Interval, intersect, union
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import FROM_LOG, FROM_PRODUCERS
from headrace.audit.topic.recounts import Recount

PRODUCER_HOP: Final = "producer → datacenter"
MIRROR_HOP: Final = "datacenter → analysis"
LOAD_HOP: Final = "analysis → warehouse"
HOPS: Final = (PRODUCER_HOP, MIRROR_HOP, LOAD_HOP)

DELAY_DEFAULT_MS: Final = 5 * 60_000
LOAD_DELAY_DEFAULT_MS: Final = 2 * HOUR_MS
REPORT_GRACE_DEFAULT_MS: Final = 30_000
SILENCE_DEFAULT_MS: Final = 30_000
PUBLISHER_SILENCE_DEFAULT_MS: Final = 30_000  # three reports of a publisher with the default interval


class Status(StrEnum):
    """The verdicts, from best to worst. A combined status is the worst of its parts.

    ALTERED: as many events as were sent, of the same numbers, and not the same bytes.
    """

    COMPLETE = "complete"
    PENDING = "pending"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    ALTERED = "altered"
    CORRUPT = "corrupt"
    LOST = "lost"

    @property
    def severity(self) -> int:
        return _SEVERITY[self]


_SEVERITY: Final = {status: rank for rank, status in enumerate(Status)}


def worst(statuses: Iterable[Status]) -> Status:
    """Returns the most severe of `statuses`; complete if there are none."""
    return max(statuses, key=lambda status: status.severity, default=Status.COMPLETE)


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
    that.
    """

    service: str
    server: str
    started_ms: int
    last_ms: int
    closed: bool
    counts_only: bool = False
    skew_ms: int = 0


class Heartbeat(NamedTuple):
    """An auditor's newest heartbeat for one partition."""

    at_ms: int
    counted_to_address: int
    end_address: int


class ReportedGap(NamedTuple):
    """Addresses [start, end) that a tier can no longer see, or that an operator let a load skip."""

    start: int
    end: int
    cause: str


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
    claims that nobody can ascribe.
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
    unsound_files: tuple[UnsoundFile, ...] = ()
    doubled: tuple[HeldTwice, ...] = ()
    ahead_ms: int = 0
    missing_reports: tuple[MissingReport, ...] = ()
    lost_logs: tuple[LostLog, ...] = ()

    @property
    def is_counted_from_log(self) -> bool:
        """Whether the topic declares for this hour that producers need not report."""
        return self.counted_from == FROM_LOG

    @property
    def end_ms(self) -> int:
        return self.hour_ms + HOUR_MS

    def publisher_of(self, producer_id: int) -> PublisherState | None:
        """Returns the publisher that reported a producer id, if any did."""
        return self.publishers.get(self.publisher_names.get(producer_id, ""))

    def partition(self, number: int) -> PartitionEvidence:
        """Returns the evidence of a source partition; empty if no tier reported anything about it."""
        return self.partitions.get(number, _NO_EVIDENCE)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a site expects of its tiers.

    Something that a tier lacks is pending until `delay_ms` (`load_delay_ms` for the warehouse) after the tier
    before reported it. `report_grace_ms`: how long a publisher may take to report that it renumbered records.
    `silence_ms`: how old a datacenter's newest heartbeat may be if it is from before the hour's end.
    `publisher_silence_ms`: how old the newest report of a publisher that has not closed may be. `hops` are
    the hops to judge.
    """

    delay_ms: int = DELAY_DEFAULT_MS
    load_delay_ms: int = LOAD_DELAY_DEFAULT_MS
    report_grace_ms: int = REPORT_GRACE_DEFAULT_MS
    silence_ms: int = SILENCE_DEFAULT_MS
    publisher_silence_ms: int = PUBLISHER_SILENCE_DEFAULT_MS
    hops: tuple[str, ...] = HOPS


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that the audit proved, in values and as text.

    `sequences` are (first, last), inclusive. The records lie, or should lie, between `after_address` and
    `before_address` of the partition's log (None: not known, or no end yet). `since_ms`: when the tier before
    reported them (None: not known); it is not part of the finding's identity. `path`: the file of the
    warehouse that it is about.
    """

    status: Status
    hop: str
    text: str
    record_count: int | None = None
    partition: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    service: str | None = None
    server: str | None = None
    sequences: tuple[int, int] | None = None
    after_address: int | None = None
    before_address: int | None = None
    since_ms: int | None = field(default=None, compare=False)
    path: str | None = None


class Accepted(NamedTuple):
    """A finding that somebody has accepted as it is."""

    finding: Finding
    acceptance: Acceptance


class Counts(NamedTuple):
    """Records as each tier counted them, duplicates included."""

    producer: int = 0
    datacenter: int = 0
    analysis: int = 0
    warehouse: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The audit's judgement of one hour of one topic from one datacenter.

    `status` is that of the worst finding, complete without any. `accepted` are the findings that somebody has
    accepted, which are in no status, and in every report. `counted_from`: "producers", or "log" if the
    topic declares that its producers need not report; nothing is then proven about events before the log.
    `notes`: what explains the counts and is no problem.
    """

    topic: str
    datacenter: str
    hour_ms: int
    status: Status
    counts: Counts
    hops: Mapping[str, Status]
    findings: tuple[Finding, ...]
    counted_from: str = FROM_PRODUCERS
    accepted: tuple[Accepted, ...] = ()
    notes: tuple[str, ...] = ()

    def count(self, status: Status) -> int:
        """Returns how many records the findings of this status name."""
        return sum(finding.record_count or 0 for finding in self.findings if finding.status is status)
