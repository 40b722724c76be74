"""A log that goes back after it was counted: what was counted is checked, taken back, and counted again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    TOPIC,
    Batch,
)
from headrace.audit.batches.raw_reader import RawBytes
from headrace.audit.counting.auditor import Auditor
from headrace.audit.counting.counted_logs import CountedLogs
from headrace.audit.counting.partition_counter import (
    CountedPartition,
    LastBatch,
    PartitionCounter,
    SourcePartition,
)
from headrace.audit.counting.standing import (
    MARKS_MAX,
    CountedTally,
    Mark,
    Marks,
    NotReadableYetError,
    Standings,
    find_standing,
    marks_of,
)
from headrace.audit.counting.stuck import StuckPartitions
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    HeartbeatRecord,
    PartitionPosition,
)
from headrace.audit.topic.recounts import AUDITOR_ENDED, RecountRecord
from headrace.client import Consumer
from headrace.client.errors import NetworkError
from headrace.client.unpacking import FetchedBatches
from headrace.wire.batch import read_header, readdress
from headrace.wire.errors import ErrorCode

KEY = (TOPIC, 0)
PARTITION = CountedPartition(TOPIC, 0, SourcePartition(DC, 0), (DATACENTER_TIER,))


class LogReader:
    """Stands for a `RawReader` of a broker that holds these (epoch, batch) pairs from address 0 on."""

    def __init__(self, batches: list[tuple[int, Batch]], start_batch: int = 0) -> None:
        self.data, self.cuts, self.epochs = bytearray(), [0], []
        for epoch, batch in batches:
            encoded = bytearray(batch.encode())
            readdress(encoded, 0, len(self.data), leader_epoch=epoch)
            self.data += encoded
            self.cuts.append(len(self.data))
            self.epochs.append(epoch)
        self.start = self.cuts[start_batch]
        self.visible = len(self.data)

    def end(self, topic: str, partition: int) -> int:
        return self.visible

    def epoch_end(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        held = [(each, end) for each, end in zip(self.epochs, self.cuts[1:], strict=True) if each <= epoch]
        return max(held, default=(-1, -1))

    def read(self, topic: str, partition: int, address: int, max_bytes: int = 1) -> RawBytes:
        if not self.start <= address <= len(self.data):
            return RawBytes(ErrorCode.OFFSET_OUT_OF_RANGE, memoryview(b""), self.visible)
        at = max(cut for cut in self.cuts if cut <= address)
        found = self.data[at:] if address < self.visible else b""
        return RawBytes(ErrorCode.NONE, memoryview(bytes(found)), self.visible, at)

    def mark(self, number: int, topic_id: str = "") -> Mark:
        """The mark behind the first `number` batches."""
        if number == 0:
            return Mark(0, None, topic_id)
        header = read_header(self.data, self.cuts[number - 1])
        last = LastBatch(header.address, header.crc, header.partition_leader_epoch)
        return Mark(self.cuts[number], last, topic_id)


def batch_of(number: int, producer_id: int = 7) -> Batch:
    return Batch(0, producer_id, 0, number * 10, 10, HOUR_A)


histories = st.lists(st.integers(0, 3), min_size=1, max_size=8)  # how far each leader's epoch advances


@given(
    kept=st.integers(0, 6),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
    marked=st.sets(st.integers(0, 12)),
    bumps_epoch=st.booleans(),
    start=st.integers(0, 3),
)
def test_counting_goes_on_at_the_newest_place_that_the_log_still_has(
    kept: int, before: int, after: int, marked: set[int], bumps_epoch: bool, start: int
) -> None:
    """The log held `kept` + `before` batches when it was counted, and holds `kept` + `after` others now."""
    common = [(0, batch_of(number)) for number in range(kept)]
    counted = LogReader(common + [(0, batch_of(kept + number, 8)) for number in range(before)])
    epoch = 1 if bumps_epoch else 0
    now = LogReader(
        common + [(epoch, batch_of(kept + number, 9)) for number in range(after)], min(start, kept)
    )
    marks = [counted.mark(number) for number in sorted(marked) if number <= kept + before]
    standing = find_standing(now, KEY, marks, now.start, "")  # type: ignore[arg-type]
    holding = [mark.counted_to for mark in marks if mark.counted_to <= now.cuts[kept]]
    assert standing.mark.counted_to == max(holding, default=now.start)
    lost = any(mark.counted_to > now.cuts[kept] for mark in marks)
    assert bool(standing.problem) == lost


def test_a_mark_of_another_topic_of_the_same_name_does_not_count() -> None:
    log = LogReader([(0, batch_of(number)) for number in range(3)])
    fresh = LogReader([(0, batch_of(number, 9)) for number in range(2)])
    standing = find_standing(fresh, KEY, [log.mark(3, "old")], 0, "new")  # type: ignore[arg-type]
    assert standing == (Mark(0, None, "new"), "")


def test_a_batch_that_the_leader_does_not_show_yet_is_waited_for() -> None:
    """A new leader's high watermark may stand behind the one of the leader before it, for a moment."""
    log = LogReader([(0, batch_of(number)) for number in range(3)])
    log.visible = log.cuts[1]
    with pytest.raises(NotReadableYetError, match="does not show address"):
        find_standing(log, KEY, [log.mark(3)], 0, "")  # type: ignore[arg-type]


def test_a_rotten_batch_is_not_a_log_that_went_back() -> None:
    log = LogReader([(0, batch_of(number)) for number in range(3)])
    mark = log.mark(2)
    log.data[log.cuts[1] : log.cuts[2]] = bytes(log.cuts[2] - log.cuts[1])
    assert find_standing(log, KEY, [mark], 0, "").mark == mark  # type: ignore[arg-type]


@pytest.mark.parametrize("bit", range(64))
def test_a_batch_whose_offset_rots_is_not_another_batch(bit: int) -> None:
    log = LogReader([(0, batch_of(number)) for number in range(3)])
    mark = log.mark(2)
    log.data[log.cuts[1] + 7 - bit // 8] ^= 1 << bit % 8
    assert find_standing(log, KEY, [mark], 0, "") == (mark, "")  # type: ignore[arg-type]


def test_marks_are_bounded_and_the_oldest_stay_sparse() -> None:
    marks = Marks()
    for number in range(10_000):
        marks.note(KEY, Mark(number, None))
    kept = [mark.counted_to for mark in marks.of(KEY)]
    assert len(kept) <= MARKS_MAX and kept[0] == 0 and kept[-1] == 9_999
    assert kept == sorted(set(kept))
    marks.go_back(KEY, 9_990)
    assert marks.of(KEY)[-1].counted_to == 9_990


def test_a_counter_goes_back_and_says_so() -> None:
    log = LogReader([(0, batch_of(number)) for number in range(4)])
    standings = Standings(log)  # type: ignore[arg-type]
    counter = PartitionCounter(PARTITION, 0, BUCKET_MS, lambda _dc, _producer: True)
    counter.feed(memoryview(log.data)[: log.cuts[2]], 0)
    counter.cut()
    standings.note(counter, "id")
    counter.feed(memoryview(log.data)[log.cuts[2] :], log.cuts[2])
    assert standings.check(counter, 0, "id") == []
    regrown = LogReader([(0, batch_of(number)) for number in range(3)] + [(0, batch_of(3, 9))] * 2)
    standings = Standings(regrown)  # type: ignore[arg-type]
    standings.marks.note(KEY, log.mark(2, "id"))
    [record] = standings.check(counter, 0, "id")
    assert (record.from_address, record.counted_to_address) == (log.cuts[2], log.cuts[4])
    assert "not that of epoch 0" in record.cause
    assert counter.counted_to == log.cuts[2] and counter.last == log.mark(2).last
    assert counter.cut() == []  # what was not published is counted again
    counter.feed(memoryview(regrown.data)[log.cuts[2] :], log.cuts[2])
    assert counter.counted_to == len(regrown.data)


def test_an_auditor_that_ended_before_its_heartbeat_takes_its_last_tallies_back() -> None:
    """Nothing says that the log still holds them: it was cut meanwhile, and the report said complete."""
    log = LogReader([(0, batch_of(number)) for number in range(4)])
    last = log.mark(2, "id")
    assert last.last is not None
    position = PartitionPosition(DC, TOPIC, 0, 0, last.counted_to, last.counted_to, "id", *last.last)
    beat = HeartbeatRecord(DATACENTER_TIER, 1_000, 0, 1, (position,))
    tallies = [CountedTally(900, KEY, log.cuts[2]), CountedTally(1_100, KEY, log.cuts[4])]
    standings = Standings(log)  # type: ignore[arg-type]
    standings.marks = marks_of([beat], tallies)
    mark, [record] = standings.begin(PARTITION, 0, "id")
    assert mark == last
    assert (record.from_address, record.counted_to_address) == (log.cuts[2], log.cuts[4])
    assert record.cause == AUDITOR_ENDED
    standings.marks = marks_of([beat], [CountedTally(1_100, KEY, log.cuts[4] + 1)])
    assert "the log ends at" in standings.begin(PARTITION, 0, "id")[1][0].cause
    standings.marks = marks_of([beat], tallies[:1])
    assert standings.begin(PARTITION, 0, "id") == (last, [])
    standings.marks = marks_of([beat], tallies)
    assert standings.begin(PARTITION, 0, "another topic of that name")[1] == []


def test_an_auditor_that_ended_while_it_counted_again_goes_back_below_that() -> None:
    """The log had lacked the newest mark, and holds it again: tallies of what lies on both sides of it would
    be taken back as a whole, and counted again from there alone (simulated world 84146).
    """
    log = LogReader([(0, batch_of(number)) for number in range(6)])
    heartbeats = [beat_of(log.mark(number, "id"), 1_000 + number) for number in (2, 4)]
    tallies = [CountedTally(1_100, KEY, log.cuts[upto], "", log.cuts[upto - 3]) for upto in (5, 6)]
    standings = Standings(log)  # type: ignore[arg-type]
    standings.marks = marks_of(heartbeats, tallies)
    mark, [record] = standings.begin(PARTITION, 0, "id")
    assert mark == log.mark(2, "id")
    assert (record.from_address, record.counted_to_address) == (log.cuts[2], log.cuts[6])
    early = CountedTally(1_100, KEY, log.cuts[3], "", log.cuts[1])
    standings.marks = marks_of(heartbeats, [early])
    mark, [record] = standings.begin(PARTITION, 0, "id")
    assert mark.counted_to == 0 and record.counted_to_address == log.cuts[4]


def test_what_was_counted_again_is_no_mark_any_more_although_the_log_is_as_it_was() -> None:
    """An unclean election brought another log, which was counted, and a second one the first log again: what
    lies between is the other log's in the store (simulated world 90369).
    """
    log = LogReader([(0, batch_of(number)) for number in range(6)])
    heartbeats = [beat_of(log.mark(number, "id"), 1_000 + number) for number in (1, 3, 5)]
    other = LogReader([(0, batch_of(number)) for number in (0, 7, 8, 9)])
    again = CountedTally(1_100, KEY, other.cuts[4], "", other.cuts[1])
    standings = Standings(log)  # type: ignore[arg-type]
    standings.marks = marks_of([*heartbeats, beat_of(other.mark(4, "id"), 1_100)], [again])
    mark, [record] = standings.begin(PARTITION, 0, "id")
    assert mark == log.mark(1, "id")
    assert (record.from_address, record.counted_to_address) == (log.cuts[1], other.cuts[4])


def beat_of(mark: Mark, said_ms: int) -> HeartbeatRecord:
    assert mark.last is not None
    at = PartitionPosition(DC, TOPIC, 0, 0, mark.counted_to, mark.counted_to, mark.topic_id, *mark.last)
    return HeartbeatRecord(DATACENTER_TIER, said_ms, 0, 1, (at,))


def test_a_log_whose_end_nobody_tells_now_keeps_what_no_heartbeat_vouches_for() -> None:
    """Found by a simulated world: the next attempt took nothing back, and what was lost was not named."""
    log = LogReader([(0, batch_of(0))])
    standings = Standings(log)  # type: ignore[arg-type]
    standings.marks = marks_of([], [CountedTally(1_100, KEY, log.cuts[1] + 1)])
    with patch.object(log, "end", side_effect=NetworkError("nobody leads")), pytest.raises(NetworkError):
        standings.begin(PARTITION, 0, "id")
    [record] = standings.begin(PARTITION, 0, "id")[1]
    assert record.counted_to_address == log.cuts[1] + 1 and "the log ends at" in record.cause


# --- the auditor, between polls ---

TOPIC_ID = uuid4()


class ConsumerOfFailures:
    """Stands for the auditor's `Consumer`, whose fetches of these partitions have failed once each."""

    def __init__(self) -> None:
        self.sought: dict[tuple[str, int], int] = {}
        self.assignment: list[tuple[str, int]] = []

    def interruptions(self, topic: str, partition: int) -> int:
        return 1

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        self.assignment = list(partitions)

    def seek(self, topic: str, partition: int, address: int, *, topic_id: UUID) -> None:
        assert topic_id == TOPIC_ID
        self.sought[topic, partition] = address

    def resume(self, topic: str, partition: int) -> None:
        """Does nothing."""

    pause = resume


class AdminOfOneTopic:
    def list_offsets(self, topic: str, *_: object, **__: object) -> dict[int, SimpleNamespace]:
        return {number: SimpleNamespace(offset=0) for number in range(2)}

    def topic(self, topic: str) -> SimpleNamespace:
        return SimpleNamespace(topic_id=TOPIC_ID)


def auditor_of(log: LogReader, *counters: PartitionCounter) -> Auditor:
    """An auditor that has counted so far, and has no connections."""
    auditor, consumer = object.__new__(Auditor), ConsumerOfFailures()
    logs = CountedLogs(cast(Consumer, consumer))
    logs.begin(
        {(TOPIC, each.partition.log_partition): each.counted_to for each in counters}, {TOPIC: TOPIC_ID}
    )
    consumer.sought.clear()
    values = {
        "_counters": {(TOPIC, each.partition.log_partition): each for each in counters},
        "_consumer": consumer,
        "_logs": logs,
        "_admin": AdminOfOneTopic(),
        "_raw": log,
        "_standings": Standings(log),  # type: ignore[arg-type]
        "_topic_ids": {},
        "_unpublished": [],
        "_interruptions": {},
        "_stuck": StuckPartitions(),
    }
    vars(auditor).update(values)
    return auditor


def counter_of(log_partition: int, log: LogReader, batches: int) -> PartitionCounter:
    partition = replace(PARTITION, log_partition=log_partition)
    counter = PartitionCounter(partition, 0, BUCKET_MS, lambda _dc, _producer: True)
    counter.feed(memoryview(log.data)[: log.cuts[batches]], 0)
    counter.cut()
    return counter


def test_a_partition_that_cannot_be_checked_now_costs_no_other_partitions_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogReader([(0, batch_of(number)) for number in range(3)])
    first, second = counter_of(0, log, 1), counter_of(1, log, 1)
    auditor = auditor_of(log, first, second)

    def silent(topic: str, partition: int, epoch: int) -> tuple[int, int]:
        if partition == 0:
            raise NetworkError("its leader is away")
        return 0, len(log.data)

    monkeypatch.setattr(log, "epoch_end", silent)
    rest = memoryview(log.data)[log.cuts[1] :]
    for number in range(2):
        auditor._feed(FetchedBatches(TOPIC, number, rest, log.cuts[1], len(log.data), len(log.data)))
    assert (first.counted_to, second.counted_to) == (log.cuts[1], len(log.data))
    assert auditor._consumer.sought == {(TOPIC, 0): log.cuts[1]}  # type: ignore[attr-defined]
    assert auditor._unpublished == []


def test_a_close_look_at_a_log_that_was_cut_and_has_grown_again_goes_back_first() -> None:
    """The broker was away for many fetches, and the new batches are as long as the old ones."""
    counted = LogReader([(0, batch_of(number)) for number in range(4)])
    regrown = LogReader([(0, batch_of(number)) for number in range(2)] + [(0, batch_of(2, 9))] * 3)
    counter = counter_of(0, counted, 4)
    auditor = auditor_of(regrown, counter)
    auditor._standings.marks.note(KEY, counted.mark(2, str(TOPIC_ID)))
    auditor._look_closely(KEY)
    assert counter.counted_to == counted.cuts[2]
    [record] = auditor._unpublished
    assert isinstance(record, RecountRecord) and record.from_address == counted.cuts[2]
