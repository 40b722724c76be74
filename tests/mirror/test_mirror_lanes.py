"""A lane to a source of many brokers: which of them it asks, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicInfo
from headrace.client.errors import ClientError
from headrace.client.network import Network
from headrace.mirror import lanes
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.lanes import FETCH_MIN_BYTES, LANE_MAX_BYTES, Lane
from headrace.wire.fetch import REQUEST_PARTITIONS_MAX, FetchRequest

BROKERS = LANE_MAX_BYTES // FETCH_MIN_BYTES + 4
NOBODY = "127.0.0.1:1"


class Source:
    """The connections to a source where each broker leads one partition; answers when told to."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.asked: dict[int, Callable[[Any, ClientError | None], None]] = {}
        self.requests: list[FetchRequest] = []
        self.cluster = Cluster(
            brokers={each: BrokerAddress("127.0.0.1", 1) for each in range(BROKERS)},
            topics={"t": TopicInfo("t", {each: PartitionInfo(each, each) for each in range(BROKERS)})},
        )

    def keep_topics(self, _: object) -> None: ...

    def ready(self, broker_id: int) -> bool:
        return broker_id not in self.away

    def send(self, broker_id: int, request: FetchRequest, done: Any) -> None:
        self.asked[broker_id] = done
        self.requests.append(request)

    def answer(self) -> set[int]:
        """Answers all requests, with nothing new; returns which brokers were asked."""
        asked, self.asked = self.asked, {}
        self.requests.clear()
        for done in asked.values():
            done(SimpleNamespace(topics=[]), None)
        return set(asked)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(lanes, "fetch_call", lambda request, by_id: request)
    return Source()


@pytest.fixture
def lane(source: Source) -> Iterator[Lane]:
    made = Lane(NOBODY, client_id="test", lock=threading.Lock(), on_fetched=lambda: None)
    made.network.close()
    made.network = cast(Network, source)
    for partition in range(BROKERS):
        copy = PartitionCopy("t", partition, partition, draw=lambda: 0.5)
        copy.located(0, 0)
        made.copies.append(copy)
    yield made


def test_more_brokers_than_a_lane_has_room_for_are_asked_in_turns(lane: Lane, source: Source) -> None:
    lane.step()
    first = source.answer()
    assert len(first) == LANE_MAX_BYTES // FETCH_MIN_BYTES
    lane.step()
    assert first | source.answer() == set(range(BROKERS))


def test_a_copy_whose_source_cannot_be_reached_says_so(
    lane: Lane, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked caught up: what its leader has meanwhile nobody knows."""
    source.away = {3}
    lane.step()
    assert lane.copies[3].status()["state"] == "caught_up"
    monkeypatch.setattr(lanes, "SOURCE_WAIT_MAX_S", 0.0)
    lane.step()
    assert lane.copies[3].state is CopyState.LOCATING
    assert lane.copies[3].problem == "the leader of t-3 in the source cannot be reached"
    assert {copy.state for copy in lane.copies if copy.partition != 3} == {CopyState.COPYING}


def test_more_topics_than_one_fetch_may_name_are_asked_in_turns(source: Source) -> None:
    """A broker ends the connection of a Fetch that names more: nothing would be copied any more."""
    count = REQUEST_PARTITIONS_MAX // 2 + 500
    names = [f"t{each}" for each in range(count)]
    source.cluster = Cluster(
        brokers={1: BrokerAddress("127.0.0.1", 1)},
        topics={name: TopicInfo(name, {0: PartitionInfo(0, 1)}) for name in names},
    )
    lane = Lane(NOBODY, client_id="test", lock=threading.Lock(), on_fetched=lambda: None)
    lane.network.close()
    lane.network = cast(Network, source)
    for name in names:
        copy = PartitionCopy(name, 0, 0, draw=lambda: 0.5)
        copy.located(0, 0)
        lane.copies.append(copy)
    asked = []
    for _ in range(2):
        lane.step()
        (request,) = source.requests
        asked.append({topic.name for topic in request.topics})
        assert (
            len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
            <= REQUEST_PARTITIONS_MAX
        )
        source.answer()
    assert asked[0] | asked[1] == set(names)
