"""A simulated installation for a drill: two datacenters, mirrors, auditors, loads, and an audit store.

One world is made of *lanes*, each a source partition with publishers of its own. `drill_planning` plants
failures in lanes before the world runs; the world then plays what was planned, in rounds of ten seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from drill.drill_logs import Sent, SimAuditor, SimLog, SimPublisher, Stored
from drill.drill_truth import Harm, Hour, Identity, Plant, hour_of, note_named
from fix_audit_world import (
    BUCKET_MS,
    HOUR_A,
    REPORTED_MS,
    WAREHOUSE,
    Batch,
    damaged_bytes,
    received,
    resealed,
)
from headrace.audit.counting.partition_counter import CountedPartition, SourcePartition
from headrace.audit.counting.standing import CountedTally
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import AcceptedGapRecord, LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    GapRecord,
    HeartbeatRecord,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.validity import check

ROUND_MS: Final = 10_000
HAND_OVER_ROUNDS: Final = 6
CLOSING_ROUND: Final = HAND_OVER_ROUNDS
ROUNDS: Final = HAND_OVER_ROUNDS + 2
LATER_MS: Final = (7 * 60_000, 3 * HOUR_MS, 3 * HOUR_MS + 7 * 60_000)
"""When the world is looked at again after the last round: behind the delays of the policy."""
DATACENTERS: Final = ("east", "west")


@dataclass
class Lane:
    """A source partition, its publishers, its log and the copy. `moves`: what happens to it in which round.

    `mirrored(round)`: whether the mirror copies it in that round.
    """

    topic: str
    datacenter: str
    partition: int
    log_partition: int
    publishers: list[SimPublisher]
    log: SimLog = field(default_factory=SimLog)
    copy: SimLog = field(default_factory=SimLog)
    plants: list[Plant] = field(default_factory=list)
    moves: dict[int, Callable[[World, Lane], None]] = field(default_factory=dict)
    mirrored: Callable[[int], bool] = lambda _round: True
    is_halted: bool = False
    is_loaded: bool = True
    loaded_to: int = 0
    dropped_tally_of: Sent | None = None
    rows_changed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Hour → how many rows, distinct offsets and dead letters the loads write more, or fewer."""
    skipped: tuple[Sent, Sent] | None = None
    """The first and last batch of the range that an operator let the loads skip."""
    addresses: dict[int, int] = field(default_factory=dict)
    """id of a sent batch → its first address in the log."""

    @property
    def sent(self) -> list[Sent]:
        """All batches, in the order in which they are handed over."""
        found = list(chain.from_iterable(publisher.sent for publisher in self.publishers))
        return sorted(found, key=lambda each: each.round)

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.log_partition

    def counted_as(self, tier: str) -> CountedPartition:
        source = SourcePartition(self.datacenter, self.partition)
        number = self.partition if tier == DATACENTER_TIER else self.log_partition
        return CountedPartition(self.topic, number, source, (tier,))

    def hour(self, sent: Sent) -> Hour:
        return Hour(self.topic, self.datacenter, hour_of(sent.batch.bucket_ms))

    def identities(self, batch: Batch) -> list[Identity]:
        place = (self.topic, self.datacenter, self.partition, batch.producer_id, batch.epoch)
        return [Identity(*place, sequence) for sequence in range(batch.first, batch.last + 1)]

    def harms(self, batch: Batch, status: Status, hop: str, times: int = 1) -> dict[Harm, int]:
        """The harms of a batch all of whose records are lost, or doubled `times` over."""
        hour_ms = hour_of(batch.bucket_ms)
        return {Harm(status, hop, hour_ms, each): times for each in self.identities(batch)}


class World:
    """Plays what was planned. `verdicts` are those of the last look."""

    def __init__(self, seed: int, lanes: list[Lane], rng: random.Random) -> None:
        self.seed = seed
        self.lanes = lanes
        self.plants = [plant for lane in lanes for plant in lane.plants]
        self.round = 0
        self.now_ms = REPORTED_MS
        self.verdicts: list[Verdict] = []
        self._rng = rng
        self._store = AuditStore("sqlite://")
        self._waiting: list[ReceivedRecord] = []
        self._loads = 0
        self._auditors: dict[str, list[SimAuditor]] = {}
        for place in (*DATACENTERS, "analysis"):
            beats: list[HeartbeatRecord] = []
            tallies: list[CountedTally] = []
            several = 2 if rng.random() < 0.3 else 1
            tier = ANALYSIS_TIER if place == "analysis" else DATACENTER_TIER
            counted = [
                (lane.counted_as(tier), lane.copy if tier == ANALYSIS_TIER else lane.log)
                for lane in lanes
                if place in (lane.datacenter, "analysis")
            ]
            self._auditors[place] = [SimAuditor(counted, rng, beats, tallies) for _ in range(several)]

    def run(self) -> None:
        """Plays all rounds, and looks at the report again and again."""
        try:
            for self.round in range(ROUNDS):
                self.now_ms = REPORTED_MS + self.round * ROUND_MS
                self._play()
                if self.round % 2:
                    self._look()
            for later_ms in LATER_MS:
                self.round += 1
                self.now_ms = REPORTED_MS + later_ms
                self._play(is_late=True)
                self._look()
        finally:
            self._store.close()

    # --- what happens in a round ---

    def _play(self, *, is_late: bool = False) -> None:
        for lane in self.lanes:
            self._append(lane)
            if move := lane.moves.get(self.round):
                move(self, lane)
            if not lane.is_halted and lane.mirrored(self.round):
                self._mirror(lane)
        for place, auditors in self._auditors.items():
            for auditor in auditors:
                self._audit(place, auditor)
        if is_late or self.round == HAND_OVER_ROUNDS - 2:
            self._load()
        for lane in self.lanes:
            for publisher in lane.publishers:
                self._report(lane, publisher)
        self._deliver(everything=is_late)

    def _append(self, lane: Lane) -> None:
        for sent in lane.sent:
            if sent.old is not None:
                for _ in range(sent.old_appended.count(self.round)):
                    lane.log.append(sent.old)
            for _ in range(sent.appended.count(self.round)):
                stored = lane.log.append(sent.batch, is_altered=sent.altered_in == DATACENTER_TIER)
                lane.addresses.setdefault(id(sent), stored.address)

    def _mirror(self, lane: Lane) -> None:
        changed = {
            lane.addresses.get(id(each)): each
            for each in lane.sent
            if each.in_copy != 1 or each.twin or each.altered_in == ANALYSIS_TIER
        }
        for stored in lane.log.since(lane.copy.end):
            sent = changed.get(stored.address)
            if sent is not None:
                twin = None
                if sent.twin is not None:
                    address = lane.addresses[id(sent.twin)]
                    twin = next(each.data for each in lane.log.batches if each.address == address)
                is_altered = sent.altered_in == ANALYSIS_TIER
                data = resealed(stored.data) if is_altered else damaged_bytes(stored.data, twin)
                stored = Stored(stored.address, data, stored.epoch)
            lane.copy.append_stored(stored)

    def _audit(self, place: str, auditor: SimAuditor) -> None:
        if self._rng.random() < 0.15:
            auditor.restart()
        dies = self._rng.random() < 0.1 and self.round < ROUNDS
        for record in auditor.round(self.now_ms, dies_before_heartbeat=dies):
            if not (isinstance(record, RangeTally) and self._is_dropped(record)):
                self.say(record, place, "auditor")

    def _is_dropped(self, tally: RangeTally) -> bool:
        for lane in self.lanes:
            if (lane.topic, lane.datacenter, lane.partition) != (
                tally.topic,
                tally.datacenter,
                tally.partition,
            ):
                continue
            address = lane.addresses.get(id(lane.dropped_tally_of), -1)
            return tally.tier == DATACENTER_TIER and tally.from_address <= address < tally.to_address
        return False

    def interrupt(self, lane: Lane) -> None:
        """The broker was away: auditors check whether the log still holds what they counted."""
        for auditor in self._auditors[lane.datacenter]:
            auditor.interrupted.add((lane.topic, lane.partition))

    def blind(self, lane: Lane, *, on: bool) -> None:
        """The datacenter's auditors cannot read this partition for a while."""
        for auditor in self._auditors[lane.datacenter]:
            (auditor.blind.add if on else auditor.blind.discard)((lane.topic, lane.partition))

    def restart_auditors(self, lane: Lane) -> None:
        for place in (lane.datacenter, "analysis"):
            for auditor in self._auditors[place]:
                auditor.restart()

    def _load(self) -> None:
        self._loads += 1
        for topic in sorted({lane.topic for lane in self.lanes if lane.is_loaded}):
            lanes = [lane for lane in self.lanes if lane.topic == topic and lane.copy.end > lane.loaded_to]
            pieces = list(chain.from_iterable(self._loaded(lane) for lane in lanes))
            gaps = [gap for lane in lanes for gap in self._skipped(lane)]
            for lane in lanes:
                lane.loaded_to = lane.copy.end
            for number, piece in enumerate(pieces):
                sequence = self._loads * 100 + number
                report_of = LoadReport(WAREHOUSE, topic, sequence, self.now_ms, (piece,), tuple(gaps))
                self.say(report_of, "analysis", "warehouse")

    def _skipped(self, lane: Lane) -> Iterator[AcceptedGapRecord]:
        if lane.skipped is None:
            return
        first, last = (lane.addresses.get(id(each), lane.copy.end) for each in lane.skipped)
        if last < lane.copy.end:
            end = next(each.end for each in lane.copy.batches if each.address == last)
            yield AcceptedGapRecord(lane.log_partition, first, end, "an operator said so")

    def _loaded(self, lane: Lane) -> Iterator[LoadedPartition]:
        start, end = max(lane.loaded_to, lane.copy.start), lane.copy.end
        gaps = [(gap.from_address, gap.to_address) for gap in self._skipped(lane)]
        for low, high in [*gaps, (end, end)]:
            if low < start:
                continue
            if low > start:
                yield self._piece(lane, start, low)
            start = high

    def _piece(self, lane: Lane, start: int, end: int) -> LoadedPartition:
        hours = []
        for hour in lane.copy.hours(start, end):
            change = lane.rows_changed.get(hour.hour_ms, (0, 0, 0))
            if -change[1] <= hour.rows and any(change):
                del lane.rows_changed[hour.hour_ms]
                rows, offsets, dead = (sum(pair) for pair in zip(hour[1:4], change, strict=True))
                hour = LoadedHour(hour.hour_ms, rows, offsets, dead, hour.content)
            hours.append(hour)
        return LoadedPartition(lane.log_partition, start, end, tuple(hours))

    def _report(self, lane: Lane, publisher: SimPublisher) -> None:
        if publisher.dies is not None and self.round > publisher.dies:
            if publisher.succeeded and self.round == CLOSING_ROUND:
                self._say_of(lane, publisher, publisher.report(lane.topic, self.round, closed=True))
        elif publisher.is_heard and self.round <= CLOSING_ROUND:
            is_last = publisher.dies is None and self.round == CLOSING_ROUND
            self._say_of(lane, publisher, publisher.report(lane.topic, self.round, closed=is_last))

    def _say_of(self, lane: Lane, publisher: SimPublisher, record: object) -> None:
        time_ms = self.now_ms + publisher.skew_ms
        self._waiting.append(
            received(record, time_ms=time_ms, datacenter=lane.datacenter, service=publisher.service)
        )

    def say_gap(self, lane: Lane, start: int, end: int, *, accepted: bool) -> None:
        """The mirror reports a gap of a lane."""
        place = (ANALYSIS_TIER, lane.datacenter, lane.topic, lane.partition, start, end)
        cause = "retention deleted them before they were copied"
        self.say(GapRecord(*place, cause, accepted), "analysis", "mirror")

    def say(self, record: object, datacenter: str, service: str) -> None:
        each = received(record, time_ms=self.now_ms, datacenter=datacenter, service=service)
        check(each, self.now_ms)
        self._waiting.append(each)

    def _deliver(self, *, everything: bool) -> None:
        """The store folds what has arrived: records of one key in order, some late, some twice."""
        late: set[str] = set()
        left: list[ReceivedRecord] = []
        arrived: list[ReceivedRecord] = []
        for each in self._waiting:
            key = each.service + str(getattr(each.record, "key", str)())
            if not everything and (key in late or self._rng.random() < 0.05):
                late.add(key)
                left.append(each)
                continue
            arrived += [each] * (2 if self._rng.random() < 0.05 else 1)
        self._waiting = left
        self._store.fold(arrived)

    def _look(self) -> None:
        self.verdicts = list(report(self._store, now_ms=self.now_ms).verdicts)
        note_named(self.plants, self.verdicts, self.now_ms)


def bucket(rng: random.Random) -> int:
    """The start of a random bucket of two hours."""
    return HOUR_A + rng.randrange(2 * HOUR_MS // BUCKET_MS) * BUCKET_MS
