"""Topics that are made again in the moment in which an auditor meets them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from fix_broker import StartCluster
from headrace.audit.counting.counted_logs import CountedLogs
from headrace.audit.counting.partition_counter import CountedPartition, counted_partition
from headrace.audit.counting.resuming import begun_where_counts_hold
from headrace.audit.counting.standing import Mark, Standings
from headrace.audit.topic.recounts import RecountRecord
from headrace.client import Admin, Consumer, Producer
from headrace.client.admin import OffsetAndTimestamp
from headrace.client.errors import LogTruncationError

TOPIC = "t"
POLL_S = 0.2
WAIT_MAX_S = 30.0


@pytest.fixture
def made_again(broker_cluster: StartCluster) -> tuple[str, UUID, UUID]:
    """A broker's address, and the ids of a deleted topic and of the one that has its name now."""
    bootstrap = broker_cluster(datacenter="east").bootstrap
    ids: list[UUID] = []
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for _ in range(2):
            if ids:
                admin.delete_topic(TOPIC)
            admin.create_topic(TOPIC, 1)
            ids.append(admin.topic(TOPIC).topic_id)
            producer.send(TOPIC, b"x").result(WAIT_MAX_S)
    return bootstrap, ids[0], ids[1]


def test_what_another_topic_of_the_same_name_holds_is_not_read(made_again: tuple[str, UUID, UUID]) -> None:
    bootstrap, deleted, present = made_again
    with Consumer(bootstrap, auto_offset_reset="error") as consumer:
        logs = CountedLogs(consumer)
        logs.begin({(TOPIC, 0): 0}, {TOPIC: deleted})
        until = time.monotonic() + WAIT_MAX_S
        with pytest.raises(LogTruncationError):
            while time.monotonic() < until:
                assert consumer.poll_batches(POLL_S) == []
        assert logs.of_other_topics({TOPIC: present}) == {(TOPIC, 0)}
        logs.end([(TOPIC, 0)])
        logs.begin({(TOPIC, 0): 0}, {TOPIC: present})
        while not (found := consumer.poll_batches(POLL_S)):
            assert time.monotonic() < until
        logs.seek(TOPIC, 0, found[0].end_address)
        assert logs.topic_ids() == {TOPIC: str(present)} and not logs.of_other_topics({TOPIC: present})
        assert consumer.position(TOPIC, 0) == found[0].end_address


class FakeAdmin:
    """A topic that is made again once its log's start was told."""

    def __init__(self, ids: list[UUID]) -> None:
        self.ids = ids

    def list_offsets(
        self, topic: str, timestamp_ms: int, *, partitions: Iterable[int]
    ) -> Mapping[int, OffsetAndTimestamp]:
        assert list(partitions) == [0]
        if len(self.ids) > 1:
            del self.ids[0]
        return {0: OffsetAndTimestamp(0, -1)}

    def topics(self) -> dict[str, Any]:
        partitions = {0: SimpleNamespace(leader=1)}
        return {TOPIC: SimpleNamespace(topic_id=self.ids[0], partitions=partitions)}


class FakeStandings:
    """It finds that the log does not hold what was counted."""

    def begin(
        self, partition: CountedPartition, start: int, topic_id: str
    ) -> tuple[Mark, list[RecountRecord]]:
        return Mark(0, None, topic_id), partition.recounts(0, 100, "the log ends at 0")


@pytest.mark.parametrize("is_made_again", [False, True])
def test_no_count_is_taken_back_by_what_another_topics_log_holds(is_made_again: bool) -> None:
    ids = [uuid4(), uuid4()][: 2 if is_made_again else 1]
    before = ids[0]
    fresh = counted_partition("east", TOPIC, 0, None, str(before))
    assert fresh is not None
    admin, standings = cast(Admin, FakeAdmin(ids)), cast(Standings, FakeStandings())
    begun = begun_where_counts_hold(admin, standings, [fresh], {TOPIC: before})
    assert list(begun) == ([] if is_made_again else [(TOPIC, 0)])
    assert all(each.recounts for each in begun.values())
