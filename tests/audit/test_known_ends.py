"""A heartbeat does not say that a log was counted to its end while nobody knows where that is; and an auditor
that starts again knows all the same how far such a log was counted.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fix_audit_world import DC, TOPIC, received
from fix_client import StartCluster
from headrace.audit.counting.known_ends import known_ends
from headrace.audit.counting.partition_counter import PartitionCounter, counted_partition
from headrace.audit.counting.resuming import LOOK_BACKS_MAX, log_starts, resume
from headrace.audit.counting.standing import CountedTally, marks_of
from headrace.audit.times import END_STALE_MAX_MS
from headrace.audit.topic.reader import Polled
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    HeartbeatRecord,
    PartitionPosition,
    RangeTally,
    ReceivedRecord,
)
from headrace.client import Admin, Consumer
from headrace.process.clock import now_ms
from headrace.wire.records import Record, encode_batch

KEY = ("t", 0)


def test_a_log_whose_fetches_fail_is_left_out_of_heartbeats(fake_cluster: StartCluster) -> None:
    cluster, ahead_s = fake_cluster(), 0.0
    cluster.log().append(encode_batch([Record(0, 1_000, None, b"v")]))
    end = cluster.log().end
    with Consumer(
        cluster.bootstrap, auto_offset_reset="earliest", clock=lambda: time.monotonic() + ahead_s
    ) as consumer:
        consumer.assign([KEY])

        def named(counted_to: int) -> list[int]:
            counter = cast(PartitionCounter, SimpleNamespace(counted_to=counted_to))
            return [known for _, known in known_ends({KEY: counter}, consumer)]

        assert named(end) == named(0) == [], "its end is not known yet"
        deadline = time.monotonic() + 30
        while not consumer.poll_batches(0.2):
            assert time.monotonic() < deadline
        assert named(end) == named(0) == [end]
        cluster.brokers[0].stop()
        ahead_s = END_STALE_MAX_MS / 1_000
        assert named(end) == [], "there may be more by now"
        assert named(0) == [end], "that it is not counted to its end is still right"


def beat(number: int, *partitions: int) -> HeartbeatRecord:
    at = [PartitionPosition(DC, TOPIC, each, each, 100, 100) for each in partitions]
    return HeartbeatRecord(DATACENTER_TIER, number, 0, 1, tuple(at))


def test_tallies_of_a_log_that_a_heartbeat_left_out_are_vouched_for_by_none() -> None:
    tallies = [CountedTally(15, (TOPIC, each), 200, "", 100) for each in (0, 1)]
    marks = marks_of([beat(10, 0, 1), beat(20, 0)], tallies)
    assert marks.published_to == {(TOPIC, 1): (200, "")}
    assert marks.published_from == {(TOPIC, 1): 100}


MINUTE_MS = 60_000
LOG = ("_audit", 0)


class AuditTopic:
    """Stands for an `AuditReader` of an audit topic with these records."""

    def __init__(self, records: list[ReceivedRecord]) -> None:
        self.records = records
        self.looks = 0
        self._at = 0

    def seek_to_timestamp(self, timestamp_ms: int) -> None:
        self.looks += 1
        times = [each.time_ms for each in self.records]
        self._at = next((at for at, time_ms in enumerate(times) if time_ms >= timestamp_ms), len(times))

    def ends(self) -> dict[tuple[str, int], int]:
        return {LOG: len(self.records)}

    def poll(self, _timeout_s: float) -> Polled:
        return Polled(self.records[self._at :], {LOG: len(self.records)})


def test_an_auditor_that_starts_while_a_log_has_no_leader_knows_how_far_it_was_counted() -> None:
    """Else it counts the log from its beginning, and what an unclean election took stays in the store."""
    start_ms = now_ms()

    def ago(minutes: int, record: object) -> ReceivedRecord:
        return received(record, time_ms=start_ms - minutes * MINUTE_MS)

    def counted(minutes: int, *partitions: int) -> ReceivedRecord:
        return ago(minutes, beat(start_ms - minutes * MINUTE_MS, *partitions))

    unnoted = RangeTally(DATACENTER_TIER, DC, TOPIC, 1, 1, 100, 200, 600_000, ())
    topic = AuditTopic(
        [counted(90, 0, 1), counted(60, 0, 1), ago(59, unnoted), counted(58, 0), counted(5, 0), counted(1, 0)]
    )

    def resumed(*partitions: int) -> tuple[list[int], int]:
        topic.looks = 0
        present = {(TOPIC, each) for each in partitions}
        marks = resume(topic, DC, lambda _: None, lambda: False, present)  # type: ignore[arg-type]
        if 1 in partitions:
            assert marks.published_to == {(TOPIC, 1): (200, "")}
        return [len(marks.of((TOPIC, each))) for each in partitions], topic.looks

    assert resumed(0) == ([1], 1), "what the last minutes name needs no second look"
    assert resumed(0, 1) == ([1, 1], 2)
    assert resumed(0, 1, 2) == ([1, 1, 0], LOOK_BACKS_MAX), "of one that was never counted, a day"


def counted_to(beat_ms: int, address: int, parts: int = 1, part: int = 0) -> HeartbeatRecord:
    place = PartitionPosition(DC, TOPIC, 0, 0, address, address, "")
    return HeartbeatRecord(DATACENTER_TIER, beat_ms, part, parts, (place,))


@pytest.mark.parametrize("ahead", [120, 1], ids=["by two hours", "by a minute"])
def test_an_auditor_whose_clock_was_set_back_goes_on_where_it_was(ahead: int) -> None:
    """Its earlier heartbeats have higher beats. It counted everything again that it had counted since."""
    start_ms = now_ms()

    def at(minutes: float, record: Any, log: tuple[str, int] = LOG) -> ReceivedRecord:
        return received(record, time_ms=start_ms + int(minutes * MINUTE_MS))._replace(log=log)

    def beats(minutes: float, address: int) -> list[ReceivedRecord]:
        """A heartbeat has a copy in each log."""
        record = counted_to(start_ms + int(minutes * MINUTE_MS), address)
        return [at(minutes, record), at(minutes, record, ("_audit", 1))]

    tally = RangeTally(DATACENTER_TIER, DC, TOPIC, 0, 0, 500, 600, 600_000, ())
    records = [
        *beats(ahead - 1, 100),
        *beats(ahead, 200),
        *beats(-3, 300),
        *beats(-2, 400),
        *beats(-1, 500),
        at(-0.5, tally),
    ]
    for some, published_to in ((records, 600), (records[:-1], 0)):
        marks = resume(AuditTopic(some), DC, lambda _: None, lambda: False, {(TOPIC, 0)})  # type: ignore[arg-type]
        assert [each.counted_to for each in marks.of((TOPIC, 0))] == [100, 200, 300, 400, 500]
        assert marks.published_to.get((TOPIC, 0), (0, ""))[0] == published_to


def test_a_tally_that_was_said_when_the_clock_had_just_been_set_back_is_vouched_for_by_none() -> None:
    start_ms = now_ms()
    ahead_ms = start_ms + 60 * MINUTE_MS
    tally = RangeTally(DATACENTER_TIER, DC, TOPIC, 0, 0, 200, 300, 600_000, ())
    records = [
        received(counted_to(ahead_ms, 200), time_ms=ahead_ms)._replace(log=LOG),
        received(tally, time_ms=start_ms - 9)._replace(log=LOG),
    ]
    marks = resume(AuditTopic(records), DC, lambda _: None, lambda: False, {(TOPIC, 0)})  # type: ignore[arg-type]
    assert marks.counted_to((TOPIC, 0)) == 200
    assert marks.published_to == {(TOPIC, 0): (300, "")}


def test_an_auditor_that_starts_counts_a_topic_of_which_one_partition_has_no_leader(
    fake_cluster: StartCluster,
) -> None:
    """It counted none of that topic's partitions until all had leaders, and waited for them at each look, so
    that no other topic was counted meanwhile.
    """
    cluster = fake_cluster(partitions=2)
    cluster.create(TOPIC, 3)
    cluster.leaders[TOPIC, 1] = -1
    fresh = [each for number in range(3) if (each := counted_partition("east", TOPIC, number, None, "id"))]
    with Admin(cluster.bootstrap, timeout_ms=500) as admin:
        assert log_starts(admin, fresh) == {TOPIC: {0: 0, 2: 0}}
        cluster.leaders.update({(TOPIC, 0): -1, (TOPIC, 2): -1})
        assert log_starts(admin, fresh) == {}
