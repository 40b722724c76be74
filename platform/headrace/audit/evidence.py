"""What the judge is given and what it says: values only, no I/O, no clock.

`audit.gather` collects evidence from the store, `audit.verdicts` judges it.

Words: a *claim* is a publisher's word that it took over records with certain sequence numbers; a claim is
*withdrawn* when a later report leaves it out: the producer bumped its epoch and gave the same records other
numbers (KIP-360). A *cover* is the set of addresses that a tier has counted or loaded. A *hop* is the way
from one tier to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.audit.intervals import Interval
from headrace.audit.tally import HOUR_MS, Span

PRODUCER_HOP: Final = "producer → datacenter"
MIRROR_HOP: Final = "datacenter → analysis"
LOAD_HOP: Final = "analysis → warehouse"
HOPS: Final = (PRODUCER_HOP, MIRROR_HOP, LOAD_HOP)

DELAY_DEFAULT_MS: Final = 5 * 60_000
LOAD_DELAY_DEFAULT_MS: Final = 2 * HOUR_MS
REPORT_GRACE_DEFAULT_MS: Final = 30_000
SILENCE_DEFAULT_MS: Final = 30_000


class Status(StrEnum):
    """From best to worst: a whole is as bad as its worst part."""

    COMPLETE = "complete"
    PENDING = "pending"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    LOST = "lost"

    @property
    def severity(self) -> int:
        return _SEVERITY[self]


_SEVERITY: Final = {status: rank for rank, status in enumerate(Status)}


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of `statuses`; complete if there are none."""
    return max(statuses, key=lambda status: status.severity, default=Status.COMPLETE)


class Claim(NamedTuple):
    """Records that a publisher took over, by identity. `reported_ms` is when it said so last."""

    publisher: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    withdrawn: bool
    reported_ms: int


class Handover(NamedTuple):
    """How many events of this hour a publisher was handed, and how many of them got a sequence number (its
    claims).

    The rest waits in the client or was dropped there. `final`: these numbers will not change again.
    """

    publisher: str
    handed_over_count: int
    sequenced_count: int
    final: bool
    reported_ms: int


class Counted(NamedTuple):
    """A span of a source partition as some tier counted it, and when it said so."""

    partition: int
    span: Span
    counted_ms: int


class PublisherLife(NamedTuple):
    """What is known of one publisher. `closed`: its last report said that nothing will follow."""

    service: str
    server: str
    started_ms: int
    last_ms: int
    closed: bool


class Beat(NamedTuple):
    """An auditor's last word on one partition."""

    at_ms: int
    counted_to_address: int
    end_address: int


class Hole(NamedTuple):
    """Addresses [start, end) that a tier can no longer see, or that a load was told to skip."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """One source partition: how far each tier has looked. Covers are sorted and disjoint."""

    log_partition: int | None = None
    datacenter_cover: tuple[Interval, ...] = ()
    analysis_cover: tuple[Interval, ...] = ()
    warehouse_cover: tuple[Interval, ...] = ()
    datacenter_beat: Beat | None = None
    analysis_beat: Beat | None = None
    datacenter_gaps: tuple[Hole, ...] = ()
    analysis_gaps: tuple[Hole, ...] = ()
    warehouse_gaps: tuple[Hole, ...] = ()
    conflicts: tuple[str, ...] = ()


class Rows(NamedTuple):
    """What the warehouse wrote of one source partition and hour, over all loads."""

    rows: int = 0
    distinct_offsets: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything about one hour of one topic from one datacenter.

    `publisher_of` gives the publisher of a producer id, from its reports on any hour. `latest` is the highest
    (epoch, sequence) that the datacenter's log holds of a (partition, producer id), in any hour.
    """

    topic: str
    datacenter: str
    hour_ms: int
    claims: tuple[Claim, ...] = ()
    handovers: tuple[Handover, ...] = ()
    datacenter_spans: tuple[Counted, ...] = ()
    analysis_spans: tuple[Counted, ...] = ()
    partitions: Mapping[int, PartitionEvidence] = field(default_factory=dict)
    rows: Mapping[int, Rows] = field(default_factory=dict)
    publishers: Mapping[str, PublisherLife] = field(default_factory=dict)
    publisher_of: Mapping[int, str] = field(default_factory=dict)
    latest: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    touched_ms: int = 0

    @property
    def end_ms(self) -> int:
        return self.hour_ms + HOUR_MS

    def life_of(self, producer_id: int) -> PublisherLife | None:
        """The publisher behind a producer id, if any reported it."""
        return self.publishers.get(self.publisher_of.get(producer_id, ""))


@dataclass(frozen=True, slots=True)
class Policy:
    """What an installation expects of its tiers.

    Until `delay_ms` (`load_delay_ms` for the warehouse) after the tier before has spoken, something missing
    is pending. `report_grace_ms`: how long a publisher may take to say that it renumbered something.
    `silence_ms`: how old the last word of a datacenter's auditor may be and still stand for an hour that was
    not over then.
    `accept_foreign` matches the topics whose producers need no reports: they are taken from the log on.
    `hops` are the ones judged.
    """

    delay_ms: int = DELAY_DEFAULT_MS
    load_delay_ms: int = LOAD_DELAY_DEFAULT_MS
    report_grace_ms: int = REPORT_GRACE_DEFAULT_MS
    silence_ms: int = SILENCE_DEFAULT_MS
    accept_foreign: re.Pattern[str] | None = None
    hops: tuple[str, ...] = HOPS

    def accepts_foreign(self, topic: str) -> bool:
        return self.accept_foreign is not None and self.accept_foreign.fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, in values and in words.

    `sequences` are inclusive, (first, last). The records lie, or should lie, between `after_address` and
    `before_address` of the partition's log (None: not known, or no end yet).
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


class Counts(NamedTuple):
    """Records as each tier counted them; duplicates count as often as they are there."""

    producer: int = 0
    datacenter: int = 0
    analysis: int = 0
    warehouse: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one hour of one topic from one datacenter: its worst finding, or complete without
    any.
    """

    topic: str
    datacenter: str
    hour_ms: int
    status: Status
    counts: Counts
    hops: Mapping[str, Status]
    findings: tuple[Finding, ...]

    def count(self, status: Status) -> int:
        """Records named by the findings of that status."""
        return sum(each.record_count or 0 for each in self.findings if each.status is status)
