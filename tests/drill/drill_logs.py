"""The parts of a simulated datacenter: logs, publishers, and auditors that run the audit's own counting.

Logs hold real batches; `SimAuditor` counts them with `PartitionCounter`, checks them with `Standings` and
publishes the records that a real auditor publishes, cut at random places, with restarts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple

from drill.drill_truth import hour_of
from fix_audit_world import BUCKET_MS, HOUR_A, REPORTED_MS, Batch, resealed
from headrace.audit.batches.raw_reader import RawBytes
from headrace.audit.counting.partition_counter import CountedPartition, PartitionCounter, heartbeat
from headrace.audit.counting.standing import CountedTally, Standings, marks_of
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadedHour
from headrace.audit.topic.records import HandoverTally, HeartbeatRecord, ProducerReport, RangeTally
from headrace.wire.batch import read_header, readdress
from headrace.wire.content import content_of
from headrace.wire.errors import ErrorCode

FIRST_BUCKET_MS: Final = HOUR_A - 24 * HOUR_MS
SKIPS_MAX: Final = 3  # batches between two cuts of a tally

Key = tuple[str, int]


@dataclass
class Sent:
    """One batch that a publisher was handed and numbered in `round`.

    `appended`: the rounds in which the log takes it. `old`: its identity until `renumbered_round`, and
    `old_appended` when the log takes that. `in_copy`: 0 if the copy's batch holds nothing. `altered_in`: the
    tier from which on it has other bytes under a right checksum.
    """

    batch: Batch
    round: int
    appended: list[int]
    old: Batch | None = None
    old_appended: list[int] = field(default_factory=list)
    renumbered_round: int = 0
    in_copy: int = 1
    twin: Sent | None = None
    altered_in: str = ""
    plant: int | None = None

    def claimed(self, round_: int) -> Batch:
        """What its publisher reports of it in this round."""
        return self.old if self.old is not None and round_ < self.renumbered_round else self.batch


@dataclass
class SimPublisher:
    """A publisher of one partition. `dies`: the round after which it says nothing, if it is killed.

    `unnumbered`: bucket → events that it was handed and that never got a number. `succeeded`: its successor
    reports for it. `skew_ms`: how far its clock is off.
    """

    name: str
    service: str
    producer_id: int
    sent: list[Sent] = field(default_factory=list)
    dies: int | None = None
    succeeded: bool = False
    is_heard: bool = True
    skew_ms: int = 0
    unnumbered: dict[int, int] = field(default_factory=dict)

    def report(self, topic: str, round_: int, *, closed: bool) -> ProducerReport:
        """Everything so far, as the publisher's report with this number says it."""
        buckets: dict[int, list[Batch]] = {}
        for sent in self.sent:
            if sent.round <= round_:
                buckets.setdefault(sent.batch.bucket_ms, []).append(sent.claimed(round_))
        tallies = []
        for bucket_ms in sorted(buckets.keys() | self.unnumbered.keys()):
            members = buckets.get(bucket_ms, [])
            count = sum(each.count for each in members) + self.unnumbered.get(bucket_ms, 0)
            ranges = tuple((b.partition, b.producer_id, b.epoch, b.first, b.last) for b in members)
            part = (bucket_ms - FIRST_BUCKET_MS) // BUCKET_MS
            contents = tuple(content_sent(each) for each in members)
            tallies.append(HandoverTally(part, topic, bucket_ms, count, closed, ranges, contents))
        return ProducerReport(self.name, REPORTED_MS, round_ + 1, closed, tuple(tallies))


@cache
def content_sent(batch: Batch) -> int:
    return content_of(batch.encode())


class Stored(NamedTuple):
    """A batch in a log."""

    address: int
    data: bytes
    epoch: int

    @property
    def end(self) -> int:
        return self.address + len(self.data)


class SimLog:
    """A partition's log, as a broker holds it and as `RawReader` reads it."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.topic_id = "first"

    def append(self, batch: Batch, *, is_altered: bool = False) -> Stored:
        data = bytearray(resealed(batch.encode()) if is_altered else batch.encode())
        readdress(data, 0, self.end, leader_epoch=self.epoch)
        stored = Stored(self.end, bytes(data), self.epoch)
        self.append_stored(stored)
        return stored

    def append_stored(self, stored: Stored) -> None:
        """Appends a batch at its own address, as a copy does."""
        if not self.batches:
            self.start = stored.address
        self.batches.append(stored)
        self.end = stored.end

    def cut(self, address: int, *, new_leader: bool) -> None:
        """The log loses everything from `address` on."""
        self.batches = [each for each in self.batches if each.address < address]
        self.end = address
        self.epoch += new_leader

    def delete_before(self, address: int) -> None:
        """Retention deletes everything before `address`."""
        self.batches = [each for each in self.batches if each.address >= address]
        self.start = address

    def since(self, address: int) -> list[Stored]:
        return [each for each in self.batches if each.address >= address]

    def hours(self, start: int, end: int) -> list[LoadedHour]:
        """What a correct load of [start, end) writes."""
        rows: dict[int, int] = {}
        for stored in self.batches:
            header = read_header(stored.data, 0)
            if start <= stored.address < end and not header.is_control:
                hour_ms = hour_of(header.base_timestamp_ms)
                rows[hour_ms] = rows.get(hour_ms, 0) + header.record_count
        return [LoadedHour(hour_ms, count, count, 0) for hour_ms, count in sorted(rows.items())]


class SimReader:
    """Stands for the auditor's `RawReader`."""

    def __init__(self, logs: dict[Key, SimLog]) -> None:
        self._logs = logs

    def end(self, topic: str, partition: int) -> int:
        return self._logs[topic, partition].end

    def epoch_end(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        held = [(b.epoch, b.end) for b in self._logs[topic, partition].batches if b.epoch <= epoch]
        return max(held, default=(-1, -1))

    def read(self, topic: str, partition: int, address: int, max_bytes: int = 1) -> RawBytes:
        log = self._logs[topic, partition]
        if not log.start <= address <= log.end:
            return RawBytes(ErrorCode.OFFSET_OUT_OF_RANGE, memoryview(b""), log.end)
        found = next((each for each in log.batches if each.address <= address < each.end), None)
        if found is None:
            return RawBytes(ErrorCode.NONE, memoryview(b""), log.end)
        return RawBytes(ErrorCode.NONE, memoryview(found.data), log.end, found.address)


class SimAuditor:
    """One auditor of a cluster. `beats`, `tallies`: those in the audit topic, which a restart reads. `reader`
    shows what logs hold that are not in memory.
    """

    def __init__(
        self,
        partitions: Iterable[tuple[CountedPartition, SimLog]],
        rng: random.Random,
        beats: list[HeartbeatRecord],
        tallies: list[CountedTally],
        reader: Any = None,
    ) -> None:
        self.partitions = {(each.topic, each.log_partition): (each, log) for each, log in partitions}
        self.interrupted: set[Key] = set()
        self.blind: set[Key] = set()
        self._rng = rng
        self._beats = beats
        self._tallies = tallies
        own: Any = SimReader({k: log for k, (_, log) in self.partitions.items()})
        self._standings = Standings(reader or own)
        self._counters: dict[Key, PartitionCounter] = {}
        self._ids: dict[Key, str] = {}
        self._unpublished: list[object] = []
        """What was found before a log could not be read: it is published with what follows."""

    def restart(self) -> None:
        """Forgets everything but what is in the audit topic."""
        self._standings.marks = marks_of(self._beats, self._tallies)
        self._counters, self._ids, self._unpublished = {}, {}, []

    def round(self, now_ms: int, *, dies_before_heartbeat: bool = False) -> list[object]:
        """Counts what is new; returns the records that it publishes."""
        for key, (partition, log) in self.partitions.items():
            self._count(key, partition, log)
        records, self._unpublished = self._unpublished, []
        self._tallies += (
            CountedTally(
                now_ms, (each.topic, each.log_partition), each.to_address, each.topic_id, each.from_address
            )
            for each in records
            if isinstance(each, RangeTally)
        )
        if dies_before_heartbeat:
            self.restart()
            return records
        counters = [(each, self.partitions[key][1].end) for key, each in self._counters.items()]
        ids = {topic: self._ids[topic, number] for topic, number in self._counters}
        beats = heartbeat(now_ms, counters, ids)
        self._beats += beats
        for (topic, _), counter in self._counters.items():
            self._standings.note(counter, ids[topic])
        return [*records, *beats]

    def _count(self, key: Key, partition: CountedPartition, log: SimLog) -> None:
        if key in self.blind:
            return
        records = self._unpublished
        if self._ids.get(key, log.topic_id) != log.topic_id:
            records += self._counters.pop(key).cut()  # its topic was deleted
            self._standings.marks.forget(key)
        counter = self._counters.get(key)
        if counter is None:
            source = partition.source._replace(topic_id=log.topic_id)
            partition = replace(partition, source=source)
            mark, recounts = self._standings.begin(partition, log.start, log.topic_id)
            counter = PartitionCounter(partition, mark.counted_to, BUCKET_MS, lambda *_: True, mark.last)
            self._counters[key], self._ids[key] = counter, log.topic_id
            records += recounts
        elif key in self.interrupted or counter.counted_to > log.end:
            records += self._standings.check(counter, log.start, log.topic_id)
        self.interrupted.discard(key)
        for stored in log.since(counter.counted_to):
            if stored.address > counter.counted_to:
                records += counter.cut()
                reason = "retention deleted them before the auditor counted them"
                records += counter.partition.gaps(counter.counted_to, stored.address, reason)
                counter.skip_to(stored.address)
            counter.feed(memoryview(stored.data), stored.address)
            if not self._rng.randrange(SKIPS_MAX):
                records += counter.cut()
        records += counter.cut()
