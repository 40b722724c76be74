"""A heartbeat does not say that a log was counted to its end while nobody knows where that is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

from fix_audit_world import DC, TOPIC
from fix_client import StartCluster
from headrace.audit.counting.known_ends import known_ends
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.counting.standing import CountedTally, marks_of
from headrace.audit.times import END_STALE_MAX_MS
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, PartitionPosition
from headrace.client import Consumer
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


def test_tallies_of_a_log_that_a_heartbeat_left_out_are_vouched_for_by_none() -> None:
    def beat(number: int, *partitions: int) -> HeartbeatRecord:
        at = [PartitionPosition(DC, TOPIC, each, each, 100, 100) for each in partitions]
        return HeartbeatRecord(DATACENTER_TIER, number, 0, 1, tuple(at))

    tallies = [CountedTally(15, (TOPIC, each), 200, "", 100) for each in (0, 1)]
    marks = marks_of([beat(10, 0, 1), beat(20, 0)], tallies)
    assert marks.published_to == {(TOPIC, 1): (200, "")}
    assert marks.published_from == {(TOPIC, 1): 100}
