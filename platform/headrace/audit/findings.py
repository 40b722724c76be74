"""What the audit says: findings, and the verdict on an hour of a topic. Values only, no I/O, no clock.

`audit.verdicts.verdicts` judges `audit.evidence`, and these follow from it. A *hop* leads from one tier to
the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.audit.evidence import Acceptance
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import FROM_PRODUCERS

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
    warehouse that it is about. `about`: what tells it from other findings with the same values: of something
    unknown that is no number of events, whose word is missing ("" if that may still come); of events, which
    side has them, or whose they are.
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
    about: str = ""


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
