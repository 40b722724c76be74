"""A batch that was damaged when it was to be counted is counted once its bytes are restored; only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.batches.damage import Damage, walk
from headrace.audit.batches.raw_reader import RawBytes
from headrace.audit.counting.partition_counter import CountedPartition, PartitionCounter, SourcePartition
from headrace.audit.counting.set_aside_again import LOOK_S, SAY_S, SetAsidePlaces
from headrace.audit.findings import Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, CorruptRecord, RangeTally
from headrace.client.errors import NetworkError
from headrace.wire.errors import ErrorCode

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(4)]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
START, END = LOG.cuts[1], LOG.cuts[2]
TIERS = (DATACENTER_TIER, ANALYSIS_TIER)


class Disk:
    """Stands for a `RawReader`: the bytes that brokers serve."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.error = ErrorCode.NONE
        self.is_offline = False

    def read(self, _topic: str, _partition: int, address: int, max_bytes: int) -> RawBytes:
        if self.is_offline:
            raise NetworkError("the leader of page-view-0 was not reached")
        buffer = memoryview(self.data)[address : address + max_bytes] if not self.error else memoryview(b"")
        return RawBytes(self.error, buffer, LOG.end)


def rotten() -> bytearray:
    data = bytearray(LOG.data)
    data[END - 4] ^= 1
    return data


def counted() -> tuple[PartitionCounter, list[RangeTally | CorruptRecord]]:
    """A counter that has counted the rotten log past its damage, and what it says."""
    counter = PartitionCounter(
        CountedPartition(TOPIC, 0, SourcePartition(DC, 0), TIERS), 0, BUCKET_MS, lambda *_: True
    )
    data = memoryview(rotten())
    counter.feed(data[:START], 0)
    [step] = walk(data[START:END], START)
    counter.set_aside(Damage(START, END, step.cause))
    counter.feed(data[END:], END)
    return counter, counter.cut()


class Looking:
    """The places of one auditor that met the rotten batch, its clock, and its disk."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.disk = Disk(rotten())
        self.places = SetAsidePlaces(self.disk, lambda: self.now_s)  # type: ignore[arg-type]
        counter, self.said = counted()
        self.counters = {(TOPIC, 0): counter}
        for record in self.said:
            self.places.learn(received(record))

    def after(self, seconds: float) -> list[object]:
        self.now_s += seconds
        return list(self.places.news(self.counters))


def test_the_report_turns_complete_once_the_bytes_are_back_and_not_before() -> None:
    looking, store = Looking(), AuditStore("sqlite://")
    others = [report_of("publisher-7", BATCHES), load_of({0: LOG})]
    beats = [heartbeat(tier, {0: LOG}) for tier in TIERS]
    store.fold([received(each) for each in (*others, *looking.said)])
    store.fold([received(each, time_ms=NOW_MS) for each in beats])
    assert report(store, now_ms=NOW_MS).status is Status.CORRUPT
    assert looking.after(LOOK_S) == [], "it is damaged as it was"
    looking.disk.data = LOG.data
    assert looking.after(LOOK_S - 1) == []
    tallies = looking.after(1)
    assert {each.tier for each in tallies} == set(TIERS)  # type: ignore[attr-defined]
    store.fold([received(each) for each in tallies])
    fresh = AuditStore("sqlite://")
    fresh.fold(everything_reported(BATCHES, {0: LOG}))
    [mended], [never_rotten] = (report(each, now_ms=NOW_MS).verdicts for each in (store, fresh))
    assert mended == never_rotten
    assert mended.status is Status.COMPLETE
    assert looking.after(10 * LOOK_S) == [], "once is enough"
    store.close()
    fresh.close()


def test_what_is_still_damaged_is_said_again_for_auditors_that_start_later() -> None:
    looking = Looking()
    assert looking.after(SAY_S - 1) == []
    again = looking.after(LOOK_S)
    assert again == [each for each in looking.said if isinstance(each, CorruptRecord)]
    assert looking.after(LOOK_S) == []
    late = SetAsidePlaces(Disk(LOG.data), lambda: 2 * LOOK_S)  # type: ignore[arg-type]
    late._clock = lambda: 0.0
    for record in again:
        late.learn(received(record))
    late._clock = lambda: LOOK_S
    assert {type(each) for each in late.news(looking.counters)} == {RangeTally}


@pytest.mark.parametrize("problem", ["offline", "refused", "other bytes", "cut", "not counted to", "moved"])
def test_only_whole_batches_at_exactly_these_addresses_are_counted(problem: str) -> None:
    looking = Looking()
    looking.disk.data = bytearray(LOG.data)
    if problem == "offline":
        looking.disk.is_offline = True
    elif problem == "refused":
        looking.disk.error = ErrorCode.KAFKA_STORAGE_ERROR
    elif problem == "other bytes":
        looking.disk.data[START:END] = bytes(END - START)
    elif problem == "cut":
        looking.disk.data = looking.disk.data[: END - 1]
    elif problem == "not counted to":
        looking.counters[TOPIC, 0].counted_to = START
    else:  # a whole batch, which belongs at another address
        looking.disk.data[START:END] = LOG.data[: END - START]
    assert looking.after(LOOK_S) == []


def test_a_strangers_word_makes_nobody_count_what_is_not_a_batch_of_that_place() -> None:
    looking = Looking()
    [true, *_] = (each for each in looking.said if isinstance(each, CorruptRecord))
    inside = replace(true, from_address=START + 5, to_address=END)
    across = replace(true, from_address=0, to_address=START + 10)
    elsewhere = replace(true, datacenter="east")
    for lie in (inside, across, elsewhere, replace(true, cause="")):
        places = SetAsidePlaces(Disk(LOG.data), lambda: looking.now_s)  # type: ignore[arg-type]
        places.learn(received(lie))
        looking.now_s += LOOK_S
        assert places.news(looking.counters) == []


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.audit.counting.set_aside_again.PLACES_MAX", 3)
    looking = Looking()
    [record, *_] = (each for each in looking.said if isinstance(each, CorruptRecord))
    for address in range(10):
        looking.places.learn(received(replace(record, from_address=END + address)))
    assert len(looking.places._places) == len(looking.places._look_at_s) == 3
