"""Brings events again that never reached their datacenter's log, from the spools of this host's publishers.

What to bring is a function of the audit's evidence, of the spools and of the intents (`plan`): batches of an
earlier run, sent again with the same bytes and numbers, of which brokers store one copy, and new ones. So a
run that is killed at any step is completed by the next one, and a second run brings nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from headrace.audit.evidence import Evidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Status
from headrace.audit.intervals import covers, union
from headrace.audit.repair.intents import Intent, Intents
from headrace.audit.times import bucket_start
from headrace.audit.topic.records import AuditRecord
from headrace.audit.topic.resent import NO_NUMBER, ResentRecord
from headrace.events.spooled import SpoolContent, SpooledEvent, about, read_spool, spools
from headrace.wire.builder import BatchBuilder
from headrace.wire.compression import Codec
from headrace.wire.errors import WireError
from headrace.wire.partitioning import partition_for_key
from headrace.wire.records import Header

logger = logging.getLogger(__name__)

BATCH_MAX_BYTES: Final = 256 * 1024
BATCH_ROOM_BYTES: Final = 16 * 1024 * 1024  # for one record of any size


@dataclass(frozen=True)
class Lost:
    """A record that is to be brought again."""

    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class Resend:
    """Records of one partition and bucket that become one batch, in the order of their old numbers.

    `old_first_sequence`, `old_producer_id` and `old_producer_epoch` are -1 for events without numbers.
    """

    datacenter: str
    topic: str
    bucket_start_ms: int
    publisher: str
    service: str
    partition: int
    old_producer_id: int
    old_producer_epoch: int
    old_first_sequence: int
    records: tuple[Lost, ...]

    def key(self) -> str:
        """Returns the name of its intent: the same for the same events."""
        said: list[Any] = [self.datacenter, self.topic, self.publisher, self.partition]
        said += [self.old_producer_id, self.old_producer_epoch, self.old_first_sequence]
        values = hashlib.sha256()
        for record in self.records:
            values.update(hashlib.sha256(record.value or b"").digest())
        return hashlib.sha256(f"{json.dumps(said)}{values.hexdigest()}".encode()).hexdigest()


@dataclass(frozen=True)
class ResendPlan:
    """What is brought again: batches that an earlier run began with, and new ones.

    `arrived`: the producer ids of those begun that the log has, so that they are only said. `problems`: what
    is not brought, and why.
    """

    begun: tuple[Intent, ...] = ()
    fresh: tuple[Resend, ...] = ()
    problems: tuple[str, ...] = ()
    arrived: frozenset[int] = frozenset()

    @property
    def record_count(self) -> int:
        return sum(each.resent.record_count for each in self.begun) + sum(
            len(each.records) for each in self.fresh
        )


class SendsBatches(Protocol):
    """What is used of `client.exact_batches.BatchSender`."""

    def new_producer_id(self) -> tuple[int, int]: ...
    def send(self, topic: str, partition: int, data: bytes) -> None: ...


class Says(Protocol):
    """What is used of `audit.topic.publish.AuditPublisher`."""

    def publish(self, record: AuditRecord) -> None: ...
    def flush(self) -> None: ...


class Resender:
    """The spools and intents of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._spools = state_dir / "publishers"
        self.intents = Intents(state_dir / "repairs")

    def plan(self, evidence: Evidence, findings: Iterable[Finding], partition_count: int) -> ResendPlan:
        """Returns what the spools have of the lost events of an hour. Changes nothing.

        `findings`: of the hour's verdict. `partition_count`: of the topic in the datacenter.
        """
        wanted = [f for f in findings if f.hop == PRODUCER_HOP and f.status is Status.LOST]
        if not wanted:
            return ResendPlan()
        begun = [each for each in self.intents.all() if _is_of(each.resent, evidence)]
        contents = self._contents(evidence)
        fresh: list[Resend] = []
        problems: list[str] = []
        used: list[Intent] = []
        for finding in (each for each in wanted if each.sequences is not None):
            mine = [each for each in begun if _covers(each.resent, finding)]
            used += mine
            # Also beside what is begun: a run that was killed may have numbered only some of the batches.
            found = [r for r in _by_numbers(finding, evidence, contents) if not _is_begun(r, mine)]
            fresh += found
            missing = (finding.record_count or 0) - sum(len(each.records) for each in found)
            if not mine and missing > 0:
                problems.append(_nowhere(finding, missing, self._spools))
        known = {claim.producer_id for claim in evidence.claims}
        without = [each for each in begun if not each.resent.had_numbers]
        for handover in _without_numbers(evidence):
            mine = [each for each in without if each.resent.publisher == handover.publisher]
            unknown = [each for each in mine if each.resent.producer_id not in known]
            used += unknown
            lacking = handover.count - sum(each.resent.record_count for each in unknown)
            found, problem = _by_publisher(handover, lacking, mine, evidence, contents, partition_count)
            fresh += found
            if problem:
                problems.append(f"{problem}; the spools are in {self._spools}")
        # Brokers forget producers after a day: then they would store the same batch once more.
        arrived = frozenset(each.resent.producer_id for each in used if _is_in_log(each.resent, evidence))
        return ResendPlan(tuple(dict.fromkeys(used)), tuple(fresh), tuple(problems), arrived)

    def bring(self, plan: ResendPlan, sender: SendsBatches, says: Says, said_by: str) -> int:
        """Sends what is planned, and says so; returns how many records. Call it in `intents.locked`.

        Raises `ResendError`, `ClientError`, `AuditPublishError`; then call it again.
        """
        intents = [*plan.begun, *(self._intent(each, sender, said_by) for each in plan.fresh)]
        for intent in intents:
            if intent.resent.producer_id not in plan.arrived:
                sender.send(intent.resent.topic, intent.resent.partition, intent.batch)
            says.publish(intent.resent)
        says.flush()
        for intent in intents:
            self.intents.write(replace(intent, is_said=True))
        return plan.record_count

    def _intent(self, resend: Resend, sender: SendsBatches, said_by: str) -> Intent:
        """Numbers a batch, and keeps it on disk before it is sent."""
        producer_id, epoch = sender.new_producer_id()
        builder = BatchBuilder(BATCH_ROOM_BYTES)
        for record in resend.records:
            builder.append(record.time_ms, record.key, record.value, record.headers)
        batch = builder.build(
            codec=Codec.ZSTD, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
        )
        resent = ResentRecord(
            datacenter=resend.datacenter,
            topic=resend.topic,
            bucket_start_ms=resend.bucket_start_ms,
            publisher=resend.publisher,
            partition=resend.partition,
            producer_id=producer_id,
            producer_epoch=epoch,
            first_sequence=0,
            last_sequence=len(resend.records) - 1,
            old_producer_id=resend.old_producer_id,
            old_producer_epoch=resend.old_producer_epoch,
            old_first_sequence=resend.old_first_sequence,
            said_by=said_by,
        )
        intent = Intent(resent, resend.service, tuple(_digest(each.value) for each in resend.records), batch)
        self.intents.write(intent)
        return intent

    def _contents(self, evidence: Evidence) -> list[SpoolContent]:
        found: list[SpoolContent] = []
        for spool in spools(self._spools):
            described = about(spool)
            if described is not None and described.get("datacenter") == evidence.datacenter:
                content = read_spool(spool)
                found += [content] if content else []
        return found


@dataclass(frozen=True)
class _Lacking:
    """How many of a publisher's events of the hour never got a number."""

    publisher: str
    service: str
    server: str
    count: int


def _without_numbers(evidence: Evidence) -> Iterator[_Lacking]:
    counts: dict[str, int] = {}
    for handover in evidence.handovers:
        publisher = evidence.publishers.get(handover.publisher)
        is_over = handover.final or (publisher is not None and publisher.closed)
        if publisher is not None and not publisher.counts_only and is_over:
            lacking = handover.handed_over_count - handover.sequenced_count
            counts[handover.publisher] = counts.get(handover.publisher, 0) + max(0, lacking)
    for name, count in counts.items():
        if count:
            yield _Lacking(name, evidence.publishers[name].service, evidence.publishers[name].server, count)


def _is_of(resent: ResentRecord, evidence: Evidence) -> bool:
    in_hour = evidence.hour_ms <= resent.bucket_start_ms < evidence.end_ms
    return in_hour and (resent.datacenter, resent.topic) == (evidence.datacenter, evidence.topic)


def _is_in_log(resent: ResentRecord, evidence: Evidence) -> bool:
    """Whether the datacenter's auditor has counted all of these events in the log, by their new numbers."""
    whose = (resent.partition, resent.producer_id, resent.producer_epoch)
    counted = (
        (each.span.first_sequence, each.span.last_sequence + 1)
        for each in evidence.datacenter_spans
        if (each.partition, each.span.producer_id, each.span.producer_epoch) == whose
    )
    return covers(union(counted), resent.first_sequence, resent.first_sequence + resent.record_count)


def _covers(resent: ResentRecord, finding: Finding) -> bool:
    """Whether these events are some of a finding's, under their old numbers or under the new ones."""
    if finding.sequences is None or resent.partition != finding.partition:
        return False
    first, last = finding.sequences
    producer = (finding.producer_id, finding.producer_epoch)
    for ids, start in (
        ((resent.old_producer_id, resent.old_producer_epoch), resent.old_first_sequence),
        ((resent.producer_id, resent.producer_epoch), resent.first_sequence),
    ):
        if ids == producer and start <= last and first < start + resent.record_count:
            return True
    return False


def _is_begun(resend: Resend, intents: Iterable[Intent]) -> bool:
    """Whether an intent has some of these events, which have numbers."""
    last = resend.old_first_sequence + len(resend.records) - 1
    whose = (resend.partition, resend.old_producer_id, resend.old_producer_epoch)
    return any(
        (begun.partition, begun.old_producer_id, begun.old_producer_epoch) == whose
        and begun.old_first_sequence <= last
        and resend.old_first_sequence < begun.old_first_sequence + begun.record_count
        for begun in (intent.resent for intent in intents)
    )


def _by_numbers(finding: Finding, evidence: Evidence, contents: Iterable[SpoolContent]) -> Iterator[Resend]:
    """Yields what the spools have of a finding that names sequence numbers, as often as a batch holds it."""
    assert finding.sequences is not None and finding.partition is not None
    first, last = finding.sequences
    for content in contents:
        for batch in content.batches:
            identity = batch.identity
            place = (identity.topic, identity.partition, identity.producer_id, identity.producer_epoch)
            if place != (evidence.topic, finding.partition, finding.producer_id, finding.producer_epoch):
                continue
            low = max(first, identity.base_sequence)
            high = min(last, identity.base_sequence + identity.record_count - 1)
            if low > high:
                continue
            try:
                held = batch.records()[low - identity.base_sequence : high - identity.base_sequence + 1]
            except WireError as error:
                logger.warning("a batch in a spool cannot be read: %s", error)
                continue
            records = [Lost(each.timestamp_ms, each.key, each.value, tuple(each.headers)) for each in held]
            old = _Numbers(identity.producer_id, identity.producer_epoch, low)
            yield from _in_batches(records, evidence, content, finding.partition, old)


def _by_publisher(
    lacking: _Lacking,
    count: int,
    begun: Iterable[Intent],
    evidence: Evidence,
    contents: Iterable[SpoolContent],
    partition_count: int,
) -> tuple[list[Resend], str]:
    """Returns what the spools have of a publisher's events without numbers; and what they lack."""
    whose = f"{lacking.count} events of service {lacking.service} on {lacking.server} never got a number"
    taken = {value for intent in begun for value in intent.values}
    found: list[Resend] = []
    left = count
    for content in (each for each in contents if each.about.get("publisher") == lacking.publisher):
        try:
            events = [
                event
                for event in content.unnumbered(evidence.topic)
                if evidence.hour_ms <= event.time_ms < evidence.end_ms and _digest(event.value) not in taken
            ]
        except WireError as error:
            return [], f"{whose}, and their spool cannot be read: {error}"
        if len(events) > left:
            return [], f"{whose}, but their spool has {len(events)} such events: which are lost is not known"
        left -= len(events)
        by_partition: dict[int, list[Lost]] = {}
        for number, event in enumerate(events):
            partition = _partition_of(event, number, partition_count)
            by_partition.setdefault(partition, []).append(Lost(event.time_ms, event.key, event.value))
        for partition, records in sorted(by_partition.items()):
            found += _in_batches(records, evidence, content, partition, _UNNUMBERED)
    return found, f"{whose}, and {left} of them are in no spool of this host" if left > 0 else ""


def _partition_of(event: SpooledEvent, number: int, partition_count: int) -> int:
    return partition_for_key(event.key, partition_count) if event.key else number % partition_count


class _Numbers(NamedTuple):
    """The numbers that the first of some records had; the others follow it."""

    producer_id: int
    producer_epoch: int
    first_sequence: int

    def after(self, count: int) -> _Numbers:
        """Returns the numbers of the record that comes `count` later."""
        if self.producer_id == NO_NUMBER:
            return self
        return self._replace(first_sequence=self.first_sequence + count)


_UNNUMBERED: Final = _Numbers(NO_NUMBER, NO_NUMBER, NO_NUMBER)


def _in_batches(
    records: list[Lost], evidence: Evidence, content: SpoolContent, partition: int, old: _Numbers
) -> Iterator[Resend]:
    """Yields the records in pieces, each of one bucket and, unless it is one record, of at most
    `BATCH_MAX_BYTES`. `old`: the numbers of the first.
    """
    bucket_ms: int = content.about["bucket_ms"]
    at = 0
    while at < len(records):
        bucket, size, end = bucket_start(records[at].time_ms, bucket_ms), 0, at
        while end < len(records) and bucket_start(records[end].time_ms, bucket_ms) == bucket:
            size += len(records[end].value or b"") + len(records[end].key or b"")
            if size > BATCH_MAX_BYTES and end > at:
                break
            end += 1
        numbers = old.after(at)
        yield Resend(
            datacenter=evidence.datacenter,
            topic=evidence.topic,
            bucket_start_ms=bucket,
            publisher=str(content.about.get("publisher")),
            service=str(content.about.get("service")),
            partition=partition,
            old_producer_id=numbers.producer_id,
            old_producer_epoch=numbers.producer_epoch,
            old_first_sequence=numbers.first_sequence,
            records=tuple(records[at:end]),
        )
        at = end


def _nowhere(finding: Finding, missing: int, folder: Path) -> str:
    where = f" (service {finding.service} on {finding.server})" if finding.service else ""
    return (
        f"{missing} of the events of this finding are in no spool in {folder}{where}; run the repair on that "
        f"host, with its HEADRACE_STATE_DIR: {finding.text}"
    )


def _digest(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()
