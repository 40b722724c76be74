"""The auditor of one datacenter: counts its logs, says what it counted, and beats. Owns one thread's loop.

It keeps no state on disk. Its last heartbeat in the audit topic says up to where everything is said; a
restart goes on there. What it says twice, the store keeps once; where its cuts differ from before, the
store chooses (`audit.cover`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.audit.counting import Counting, Source, Subject, subject_of
from headrace.audit.publish import AuditPublisher, AuditPublishError
from headrace.audit.reader import AuditReader
from headrace.audit.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    POSITIONS_PER_RECORD_MAX,
    AuditRecord,
    Gap,
    Position,
    Positions,
    ProducerReport,
)
from headrace.audit.tally import BUCKET_DEFAULT_MS
from headrace.client import Admin, Consumer
from headrace.client.admin import EARLIEST, LATEST
from headrace.client.errors import ClientError, CorruptRecordsError, OffsetOutOfRangeError
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError

logger = logging.getLogger(__name__)

EVERY_DEFAULT_S: Final = 5.0
DISCOVER_S: Final = 2.0
POLL_S: Final = 0.2
TROUBLE_PAUSE_S: Final = 1.0
LOOK_BACK_MS_FIRST: Final = 10 * 60_000
LOOK_BACK_FACTOR: Final = 12
LOOK_BACKS_MAX: Final = 3  # 10 minutes, 2 hours, a day; then from the beginning
READ_BACK_POLL_S: Final = 1.0
NOT_AUDITED: Final = re.compile(r"_.*")  # the audit's own topics, Kafka's internal ones


@dataclass(frozen=True, slots=True)
class Settings:
    """What one auditor does. `audit_topic` is where it speaks; `topics` what it counts."""

    datacenter: str
    bootstrap: str
    registry_url: str
    audit_topic: str
    topics: re.Pattern[str] = re.compile(".*")
    every_s: float = EVERY_DEFAULT_S
    bucket_ms: int = BUCKET_DEFAULT_MS


class Auditor:
    """Counts until `stop`. `mirrors` is the mirrors' map of a cluster that is mirrored into, None elsewhere.

    `trusted(datacenter, producer_id)`: see `audit.tally`; by default the producers that reported in
    `audit_topic`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        mirrors: MirrorMap | None = None,
        trusted: Callable[[str, int], bool] | None = None,
        wall_ms: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._mirrors = mirrors
        self._wall_ms = wall_ms
        self._clock = clock
        self._known_producers: set[tuple[str, int]] = set()
        self._trusted = trusted or (lambda dc, producer_id: (dc, producer_id) in self._known_producers)
        client_id = f"auditor-{settings.datacenter}"
        self._admin = Admin(settings.bootstrap, client_id=client_id)
        self._consumer = Consumer(settings.bootstrap, client_id=client_id, auto_offset_reset="error")
        self._reader = AuditReader(
            bootstrap=settings.bootstrap,
            registry_url=settings.registry_url,
            topics=[settings.audit_topic],
            client_id=client_id,
        )
        self._publisher = AuditPublisher(
            bootstrap=settings.bootstrap,
            registry_url=settings.registry_url,
            datacenter=settings.datacenter,
            service="auditor",
            topic=settings.audit_topic,
        )
        self._counting: dict[tuple[str, int], Counting] = {}
        self._said_to: dict[tuple[str, int], int] = {}
        self._unsaid: list[AuditRecord] = []
        self._stuck: dict[tuple[str, int], str] = {}
        self._trouble = "starting"
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End `run` soon. Any thread, also a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Count and say until `stop`."""
        try:
            while not self._stopping.is_set() and not self._attempt(self._resume):
                continue
            discover_at_s = say_at_s = 0.0
            while not self._stopping.is_set():
                now_s = self._clock()
                if now_s >= discover_at_s and self._attempt(self._discover):
                    discover_at_s = now_s + DISCOVER_S
                self._attempt(self._count)
                full = any(each.is_full for each in self._counting.values())
                if (now_s >= say_at_s or full) and self._attempt(self._say):
                    say_at_s = now_s + self.settings.every_s
            self._attempt(self._say)
        finally:
            self._consumer.close()
            self._reader.close()
            self._publisher.close()
            self._admin.close()

    def status(self) -> dict[str, Any]:
        """Plain data: how far it counted, and what is wrong."""
        return {
            "datacenter": self.settings.datacenter,
            "trouble": self._trouble,
            "unsaid": len(self._unsaid),
            "partitions": [
                {
                    "topic": topic,
                    "partition": partition,
                    "datacenter": each.subject.source.datacenter,
                    "counted_to": each.counted_to,
                    "reason": self._stuck.get((topic, partition), ""),
                }
                for (topic, partition), each in sorted(dict(self._counting).items())
            ],
        }

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Do a step; False, after a pause, if brokers, ZooKeeper or registry do not answer as they should."""
        try:
            step()
        except (
            ClientError,
            CoordinationError,
            RegistryError,
            RegistryUnavailableError,
            AuditPublishError,
        ) as error:
            if str(error) != self._trouble:
                logger.warning("%s; going on as soon as it works", error)
            self._trouble = str(error)
            self._stopping.wait(TROUBLE_PAUSE_S)
            return False
        self._trouble = ""
        return True

    # resuming

    def _resume(self) -> None:
        """Find the last heartbeat, looking back further and further."""
        self._reader.teach_registry()
        self._reader.discover()
        now_ms, look_back_ms = self._wall_ms(), LOOK_BACK_MS_FIRST
        for attempt in range(LOOK_BACKS_MAX + 1):
            timestamp_ms = now_ms - look_back_ms if attempt < LOOK_BACKS_MAX else 0
            self._reader.seek_to_timestamp(timestamp_ms)
            self._said_to = last_positions(self._read_back())
            if self._said_to:
                logger.info("resuming %d partitions where the last heartbeat ended", len(self._said_to))
                return
            look_back_ms *= LOOK_BACK_FACTOR
        logger.info("no heartbeat in %s: counting from the beginning", self.settings.audit_topic)

    def _read_back(self) -> Iterable[Positions]:
        """This auditor's heartbeats from where the reader stands to the end; learns producers on the way."""
        ends = {key: end for key, end in self._reader.ends().items() if end}
        beats: list[Positions] = []
        while ends and not self._stopping.is_set():
            read = self._reader.poll(READ_BACK_POLL_S)
            for said in read.said:
                if isinstance(said.record, Positions) and said.datacenter == self.settings.datacenter:
                    beats.append(said.record)
                self._learn(said.record, said.datacenter)
            if not read.positions:
                return beats
            ends = {key: end for key, end in ends.items() if read.positions.get(key, 0) < end}
        return beats

    def _learn(self, record: object, datacenter: str) -> None:
        if isinstance(record, ProducerReport):
            self._known_producers.update((datacenter, producer_id) for producer_id in record.producer_ids())

    # counting

    def _discover(self) -> None:
        self._reader.discover()
        found = self._admin.topics()
        self._forget_deleted({(name, partition) for name in found for partition in found[name].partitions})
        names = [n for n in found if self.settings.topics.fullmatch(n) and not NOT_AUDITED.fullmatch(n)]
        sources = None if self._mirrors is None else _sources(self._mirrors, names)
        fresh: list[tuple[tuple[str, int], Subject]] = []
        for name in sorted(names):
            for partition in found[name].partitions:
                subject = subject_of(self.settings.datacenter, name, partition, sources)
                if subject is not None and (name, partition) not in self._counting:
                    fresh.append(((name, partition), subject))
        if not fresh:
            return
        starts = {name: self._admin.list_offsets(name, EARLIEST) for name in {key[0] for key, _ in fresh}}
        self._consumer.assign([*self._consumer.assignment, *(key for key, _ in fresh)])
        for (name, partition), subject in fresh:
            address = self._said_to.get((name, partition), starts[name][partition].offset)
            counting = Counting(subject, address, self.settings.bucket_ms, self._trusted)
            self._counting[name, partition] = counting
            self._consumer.seek(name, partition, address)

    def _forget_deleted(self, existing: set[tuple[str, int]]) -> None:
        gone = self._counting.keys() - existing
        if not gone:
            return
        for key in gone:
            self._unsaid += self._counting.pop(key).cut()
            self._said_to.pop(key, None)
            self._stuck.pop(key, None)
        self._consumer.assign(key for key in self._consumer.assignment if key in existing)

    def _count(self) -> None:
        for said in self._reader.poll(0.0).said:
            self._learn(said.record, said.datacenter)
        try:
            batches = self._consumer.poll_batches(POLL_S)
        except OffsetOutOfRangeError as error:
            self._step_over(error)
            return
        except CorruptRecordsError as error:
            logger.error("counting of %s-%d stops: %s", error.topic, error.partition, error)
            self._stuck[error.topic, error.partition] = str(error)
            self._consumer.pause(error.topic, error.partition)
            return
        for each in batches:
            counting = self._counting[each.topic, each.partition]
            if each.base_address != counting.counted_to:
                self._jump(counting, each.base_address)
            counting.feed(each.buffer, each.base_address, each.end_address)

    def _jump(self, counting: Counting, address: int) -> None:
        """The log goes on elsewhere than where it was counted to: there are no batches in between."""
        counted_to, name = counting.counted_to, f"{counting.subject.topic}-{counting.subject.log_partition}"
        logger.warning("%s: counted to %d, the next batch is at %d", name, counted_to, address)
        self._unsaid += counting.cut()
        if address > counted_to:
            self._unsaid += _gaps(counting.subject, counted_to, address, "the log has no batches there")
        counting.skip_to(address)

    def _step_over(self, error: OffsetOutOfRangeError) -> None:
        """The log no longer has what comes next: say so, go on where it begins now."""
        counting = self._counting[error.topic, error.partition]
        partitions = [error.partition]
        start = self._admin.list_offsets(error.topic, EARLIEST, partitions=partitions)[error.partition].offset
        end = self._admin.list_offsets(error.topic, LATEST, partitions=partitions)[error.partition].offset
        self._unsaid += counting.cut()
        address = counting.counted_to
        if address < start:
            reason = "retention deleted them before the auditor counted them"
            logger.error(
                "%s-%d: addresses %d to %d: %s", error.topic, error.partition, address, start, reason
            )
            self._unsaid += _gaps(counting.subject, address, start, reason)
        else:
            logger.error(
                "%s-%d ends at %d, %d were counted: it was deleted and made again, or lost its end; "
                "counting anew",
                error.topic,
                error.partition,
                end,
                address,
            )
        counting.skip_to(start)
        self._consumer.seek(error.topic, error.partition, start)

    # saying

    def _say(self) -> None:
        """Publish all that was counted since the last time; then, when that is safe, the heartbeat."""
        for counting in self._counting.values():
            self._unsaid += counting.cut()
        for record in self._unsaid:
            self._publisher.publish(record)
        self._publisher.flush()
        self._unsaid.clear()
        for beat in self._heartbeat():
            self._publisher.publish(beat)
        self._publisher.flush()

    def _heartbeat(self) -> list[Positions]:
        beat = self._wall_ms()
        lines: dict[str, list[Position]] = {DATACENTER_TIER: [], ANALYSIS_TIER: []}
        for (topic, partition), counting in self._counting.items():
            end = self._consumer.high_watermark(topic, partition) or 0
            for tier in counting.subject.tiers:
                lines[tier].append(counting.position(end))
        records = []
        for tier, positions in lines.items():
            pieces = [
                tuple(positions[at : at + POSITIONS_PER_RECORD_MAX])
                for at in range(0, len(positions), POSITIONS_PER_RECORD_MAX)
            ]
            records += [Positions(tier, beat, part, len(pieces), piece) for part, piece in enumerate(pieces)]
        return records


def last_positions(beats: Iterable[Positions]) -> dict[tuple[str, int], int]:
    """(topic, counted partition) → the address up to which everything was said, by the newest whole
    heartbeat of each tier.
    """
    by_beat: dict[tuple[str, int], dict[int, Positions]] = {}
    for each in beats:
        by_beat.setdefault((each.tier, each.beat), {})[each.part] = each
    said_to: dict[tuple[str, int], int] = {}
    for _, parts in sorted(by_beat.items(), key=lambda entry: entry[0][1]):
        if len(parts) == next(iter(parts.values())).parts:
            for part in parts.values():
                for line in part.positions:
                    said_to[line.topic, line.log_partition] = line.counted_to_address
    return said_to


def _gaps(subject: Subject, start: int, end: int, reason: str) -> list[Gap]:
    whose = (subject.source.datacenter, subject.topic, subject.source.partition)
    return [Gap(tier, *whose, start, end, reason) for tier in subject.tiers]


def _sources(mirrors: MirrorMap, topics: Iterable[str]) -> dict[str, list[Source]]:
    mirrored = set(mirrors.topics())
    return {
        topic: [Source(each.datacenter, each.partition) for each in mirrors.sources(topic)]
        for topic in topics
        if topic in mirrored
    }
