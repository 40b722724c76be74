"""A plant in a real installation: its truth, written before the harm, and how a report is judged by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from drill.drill_truth import Outcome
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Finding, Status, Verdict
from headrace.audit.intervals import covers, union
from headrace.client.observer import BatchIdentity
from headrace.wire.batch import BatchHeader

LATER_SERVICE: Final = "later"
PROVEN: Final = (Status.LOST, Status.CORRUPT, Status.DUPLICATED, Status.ALTERED)


class Number(NamedTuple):
    """One event, as it was published first."""

    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int


class Place(NamedTuple):
    """Addresses [start, end) of a partition."""

    partition: int
    start: int
    end: int


class StoredBatch(NamedTuple):
    """A batch of a log file."""

    header: BatchHeader
    data: bytes

    @property
    def start(self) -> int:
        return self.header.address

    @property
    def end(self) -> int:
        return self.header.address + self.header.size_bytes


@dataclass
class SitePlant:
    """One plant: its topic, and the events that must be named, with the statuses that are right.

    `places`: the addresses of the victims; batches that cannot be read are named by them alone.
    `unnumbered_count`: events without sequence numbers that must be called lost. `is_silenced`: nothing is
    proven, but the hour must not be complete. `grows`: another service publishes afterwards. Without any of
    these, the hour must be complete.
    """

    kind: str
    topic: str
    statuses: tuple[Status, ...] = ()
    victims: set[Number] = field(default_factory=set)
    places: tuple[Place, ...] = ()
    unnumbered_count: int = 0
    is_silenced: bool = False
    grows: bool = False
    named_s: float | None = None

    @property
    def is_harmless(self) -> bool:
        return not (self.victims or self.unnumbered_count or self.is_silenced)

    @property
    def place(self) -> str:
        """Where it is, and what must be said of it, for people."""
        status = " or ".join(self.statuses) or ("complete" if self.is_harmless else "not complete")
        who = [str(tuple(number)) for number in sorted(self.victims)]
        events = f", {len(who)} events from {who[0]} to {who[-1]}" if who else ""
        uncounted = f", {self.unnumbered_count} events" if self.unnumbered_count else ""
        where = "".join(f", addresses {each.start} to {each.end} of {each.partition}" for each in self.places)
        return f"{self.topic} must be {status}{events}{uncounted}{where}"

    def sentences(self, verdicts: Iterable[Verdict]) -> Iterator[str]:
        """Yields what a report says of the plant's topic."""
        for verdict in verdicts:
            if verdict.topic == self.topic:
                yield f"{verdict.status}, {verdict.counts}"
                yield from (f"{finding.hop}: {finding.text}" for finding in verdict.findings)

    def judge(self, verdicts: Iterable[Verdict]) -> tuple[Outcome, int]:
        """Returns the outcome so far, and how many events are called lost, doubled or corrupt falsely."""
        mine = [verdict for verdict in verdicts if verdict.topic == self.topic]
        findings = [each for verdict in mine for each in verdict.findings]
        if self.grows:  # the copy has what the log lost, so it halts: it truly lacks what came later
            findings = [each for each in findings if (each.hop, each.service) != (MIRROR_HOP, LATER_SERVICE)]
        named = {number for f in findings if f.status in PROVEN for number in numbers_of(f)}
        right = {n for f in findings if f.status in self.statuses for n in numbers_of(f)}
        if self.places and all(self._is_named(place, findings) for place in self.places):
            right |= self.victims
        counted = sum(f.record_count or 0 for f in findings if _is_count(f)) if self.unnumbered_count else 0
        false = len(named - self.victims) + max(0, counted - self.unnumbered_count)
        if self.is_harmless:
            return (Outcome.NAMED if mine and not findings else Outcome.UNKNOWN), false
        if mine and not findings:
            return Outcome.MISSED, false
        if self.victims - right or counted < self.unnumbered_count:
            return (Outcome.WRONG_PLACE if named - self.victims else Outcome.UNKNOWN), false
        return Outcome.NAMED, false

    def _is_named(self, place: Place, findings: Iterable[Finding]) -> bool:
        mine = [each for each in findings if each.partition in (None, place.partition)]
        return covers(union(map(self._place_of, mine)), place.start, place.end)

    def _place_of(self, finding: Finding) -> tuple[int, int]:
        """Returns the addresses that a finding says cannot be read, or hold other bytes; none if (0, 0)."""
        is_place = finding.status in (Status.CORRUPT, Status.ALTERED) and finding.status in self.statuses
        if not is_place or finding.before_address is None:
            return 0, 0
        return finding.after_address or 0, finding.before_address


def _is_count(finding: Finding) -> bool:
    """Whether events without numbers are called lost: by their count."""
    return finding.status is Status.LOST and finding.hop == PRODUCER_HOP and finding.sequences is None


def numbers_of(finding: Finding) -> Iterator[Number]:
    """Yields the events that a finding names by number."""
    if finding.sequences is None:
        return
    whose = (finding.partition or 0, finding.producer_id or 0, finding.producer_epoch or 0)
    for sequence in range(finding.sequences[0], finding.sequences[1] + 1):
        yield Number(*whose, sequence)


def numbers(batches: Iterable[StoredBatch], partition: int = 0) -> set[Number]:
    """Returns the events of batches of a log."""
    return {
        Number(partition, batch.header.producer_id, batch.header.producer_epoch, sequence)
        for batch in batches
        for sequence in range(
            batch.header.base_sequence, batch.header.base_sequence + batch.header.record_count
        )
    }


def numbers_sent(batch: BatchIdentity) -> set[Number]:
    """Returns the events of a batch that a producer numbered."""
    whose = (batch.partition, batch.producer_id, batch.producer_epoch)
    first = batch.base_sequence
    return {Number(*whose, sequence) for sequence in range(first, first + batch.record_count)}


def place_of(batches: list[StoredBatch], partition: int = 0) -> Place:
    """Returns the addresses of batches that lie one behind the other."""
    return Place(partition, batches[0].start, batches[-1].end)
