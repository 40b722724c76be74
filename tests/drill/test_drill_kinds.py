"""Plants at producers, on a real broker: what the truth says of them is what the log has, however slow the
machine is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fix_broker import BrokerCluster, RawClient
from headrace.audit.topic.drills import CANARY_TOPIC, DrillPlant
from headrace.drill import kinds
from headrace.drill.kinds import EVENTS, EVENTS_PER_BATCH, Hands, new_plant
from headrace.drill.place import Place
from headrace.events.publisher import EventPublisher
from headrace.wire.batch import hop

HOUR_MS = 1_431_864_000_000
PAUSE_S = 0.03


@pytest.fixture
def place(one_broker: BrokerCluster, registry_url: str) -> Place:
    place = Place("east", one_broker.bootstrap, one_broker.bootstrap, registry_url)
    place.ensure_canary()
    return place


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two events others have the processor: longer than a batch lingers."""
    publish: Callable[..., Any] = EventPublisher.publish

    def slowly(*arguments: Any, **named: Any) -> Any:
        time.sleep(PAUSE_S)
        return publish(*arguments, **named)

    monkeypatch.setattr(EventPublisher, "publish", slowly)


def records_by_producer(bootstrap: str, since: int) -> Counter[int]:
    with RawClient(bootstrap) as client:
        data = client.read_all(CANARY_TOPIC, 0)
    found: Counter[int] = Counter()
    for _, header in hop(data):
        if header.address >= since:
            found[header.producer_id] += header.record_count
    return found


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("kind", "arriving"),
    [
        (kinds.dropped, EVENTS - EVENTS_PER_BATCH),
        (kinds.dropped_at_the_end, EVENTS - EVENTS_PER_BATCH),
        (kinds.altered, EVENTS),
        (kinds.sent_by_nobody, EVENTS + EVENTS_PER_BATCH),
        (kinds.sent_twice, EVENTS),
        (kinds.nothing, EVENTS),
    ],
)
def test_as_many_events_arrive_as_the_truth_says(
    place: Place, tmp_path: Path, kind: kinds.Kind, arriving: int
) -> None:
    """A batch of 5 ms was sent with one event, and the drill waited for events that nobody had sent."""
    with RawClient(place.brokers) as client:
        since = client.list_offset(CANARY_TOPIC, 0, -1)[0]
    told: list[DrillPlant] = []
    hands = Hands(place, tmp_path, HOUR_MS, told.append, is_loaded=True)
    kind(hands, new_plant("a kind", "east", "a-service", HOUR_MS))
    arrived = records_by_producer(place.brokers, since)
    assert arrived.total() == told[-1].sent_count == arriving
    if kind is kinds.sent_by_nobody:
        assert arrived[told[-1].producer_id] == told[-1].record_count == EVENTS_PER_BATCH
    if kind in (kinds.dropped, kinds.dropped_at_the_end, kinds.altered):
        assert told[-1].record_count == EVENTS_PER_BATCH
        assert told[-1].last_sequence - told[-1].first_sequence == EVENTS_PER_BATCH - 1
