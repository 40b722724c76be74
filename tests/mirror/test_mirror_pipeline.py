"""The loops that move bytes, step by step: what they keep, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import pytest

from fix_audit_world import HOUR_A, PartitionBytes
from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicInfo
from headrace.client.network import Network
from headrace.mirror import pipeline
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.pipeline import PRODUCES_IN_FLIGHT_MAX, Pipeline
from headrace.replication.pull import Fetched
from headrace.wire.produce import REQUEST_PARTITIONS_MAX, ProduceRequest
from headrace.wire.records import Record, encode_batch

NOBODY = "127.0.0.1:1"
WAIT_MAX_S = 10.0


def test_a_copy_whose_target_cannot_be_reached_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds counts for its lane: two such copies would keep all others there from fetching."""
    monkeypatch.setattr(pipeline, "TARGET_WAIT_MAX_S", 0.05)
    source = PartitionBytes()
    source.append(encode_batch([Record(0, HOUR_A, None, b"value")]))
    copy = PartitionCopy("t", 0, 0, draw=lambda: 0.5)
    opened = Pipeline(NOBODY, NOBODY, client_id="test")
    opened.add([copy])
    copy.located(0, source.end)
    copy.fetched(1, 0, Fetched(bytes(source.data), 0, source.end), time.monotonic())
    opened._append_step()
    assert copy.ahead_bytes == source.end
    deadline = time.monotonic() + WAIT_MAX_S
    while copy.ahead_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
        opened._append_step()
    assert (copy.ahead_bytes, copy.state) == (0, CopyState.LOCATING)
    assert copy.problem == "the leader of t-0 in the target cannot be reached"
    opened.close()


class Target:
    """The connections to a target of one broker: keeps what is sent, and answers nothing."""

    def __init__(self, partitions: int) -> None:
        self.sent: list[list[int]] = []
        self.ready_s = 0.0
        self.lead(partitions, epoch=0)

    def lead(self, partitions: int, epoch: int) -> None:
        led = {each: PartitionInfo(each, 1, epoch) for each in range(partitions)}
        self.cluster = Cluster(brokers={1: BrokerAddress("127.0.0.1", 1)}, topics={"t": TopicInfo("t", led)})

    def keep_topics(self, _: object) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...

    def ready(self, _: int) -> bool:
        return True

    def ready_since_s(self, _: int) -> float:
        return self.ready_s

    def in_flight_count(self, _: int) -> int:
        return len(self.sent)

    def send(self, _node_id: int, request: ProduceRequest, _done: object) -> None:
        self.sent.append([part.partition for topic in request.topics for part in topic.partitions])


@pytest.fixture(autouse=True)
def unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a `Target` see requests as they are."""
    monkeypatch.setattr(pipeline, "produce_call", lambda request, by_id: request)


@pytest.fixture
def opened() -> Iterator[Pipeline]:
    made = Pipeline(NOBODY, NOBODY, client_id="test")
    yield made
    made.close()


def located_copies(opened: Pipeline, target: Target, partitions: int) -> list[PartitionCopy]:
    """Copies that have all been located after the target was connected."""
    copies = [PartitionCopy("t", each, each, draw=lambda: 0.5) for each in range(partitions)]
    return located(opened, target, copies)


def located(opened: Pipeline, target: Target, copies: list[PartitionCopy]) -> list[PartitionCopy]:
    """These copies, once they have all been located after the target was connected."""
    opened.add(copies)
    opened._target.close()
    opened._target = cast(Network, target)
    opened._append_step()
    for copy in copies:
        copy.located(0, 1 << 30, asked_s=time.monotonic())
    return copies


def fetch(copy: PartitionCopy, count: int) -> None:
    source = PartitionBytes()
    for _ in range(count):
        source.append(encode_batch([Record(0, HOUR_A, None, b"value")]))
    copy.fetched(copy.generation, 0, Fetched(bytes(source.data), 0, source.end), time.monotonic())


def test_a_copy_with_much_to_append_leaves_the_others_a_turn(
    opened: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.mirror.copying.CHUNK_BATCHES_MAX", 1)
    monkeypatch.setattr(pipeline, "CHUNK_BATCHES_MAX", 1)
    target = Target(3)
    for copy in located_copies(opened, target, 3):
        fetch(copy, 5)
    opened._append_step()
    assert target.sent == [[0], [1], [2], [0]]
    assert len(target.sent) == PRODUCES_IN_FLIGHT_MAX


@pytest.mark.parametrize("change", ["another connection", "another reign of its leader"])
def test_nothing_is_appended_to_a_target_that_may_have_lost_its_log(opened: Pipeline, change: str) -> None:
    """Its log would be empty, and take any address as its first: the beginning would be missing."""
    target = Target(1)
    (copy,) = located_copies(opened, target, 1)
    fetch(copy, 1)
    if change == "another connection":
        target.ready_s = time.monotonic()
    else:
        target.lead(1, epoch=1)
    opened._append_step()
    assert (target.sent, copy.state) == ([], CopyState.LOCATING)
    assert copy.needs_locating(time.monotonic())
    copy.located(0, 1 << 30, asked_s=time.monotonic())
    fetch(copy, 1)
    opened._append_step()
    assert target.sent == [[0]]


def test_a_produce_names_no_more_topics_than_a_broker_takes(opened: Pipeline) -> None:
    """It would end the connection, and so it would again: when the target was away, all have something."""
    count = REQUEST_PARTITIONS_MAX // 2 + 500
    target = Target(0)
    names = [f"t{each}" for each in range(count)]
    target.cluster = Cluster(
        brokers={1: BrokerAddress("127.0.0.1", 1)},
        topics={name: TopicInfo(name, {0: PartitionInfo(0, 1)}) for name in names},
    )
    for copy in located(opened, target, [PartitionCopy(name, 0, 0, draw=lambda: 0.5) for name in names]):
        fetch(copy, 1)
    opened._append_step()
    assert sum(map(len, target.sent)) == count
    assert all(2 * len(partitions) <= REQUEST_PARTITIONS_MAX for partitions in target.sent)
