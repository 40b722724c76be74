"""Metadata of topics by their ids: a large answer is made on a thread, whoever asks in which way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from headrace.broker.cluster import ClusterView
from headrace.broker.handlers import metadata
from headrace.broker.state import BrokerState
from headrace.coordination.topics import PartitionState, TopicState

TOPIC_ID = uuid4()


def state(partitions: int) -> BrokerState:
    ready = PartitionState(1, 0, (1,), (1,))
    view = ClusterView().with_topics(
        {"t": TopicState("t", TOPIC_ID, dict.fromkeys(range(partitions), ready))}
    )
    made = SimpleNamespace(
        view=view,
        broker_id=1,
        cluster_id="test",
        config={"auto.create.topics.enable": False},
        leaderless=frozenset,
        is_left=False,
    )
    return cast(BrokerState, made)


@pytest.mark.parametrize(("name", "topic_id"), [("t", None), (None, TOPIC_ID), ("", TOPIC_ID)])
def test_a_large_topic_is_listed_on_a_thread(name: str | None, topic_id: UUID | None) -> None:
    """By its id it was listed in the loop: all clients waited, for each of ten thousand such topics."""
    body = SimpleNamespace(topics=(SimpleNamespace(name=name, topic_id=topic_id),))
    request = cast(Any, SimpleNamespace(version=12, body=body))
    assert callable(metadata.handle(state(metadata.LISTED_HERE_MAX), request))
    assert not callable(metadata.handle(state(metadata.LISTED_HERE_MAX - 1), request))
