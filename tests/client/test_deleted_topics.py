"""Topics of a producer that were deleted: it asks for them no more, and makes none that nobody sends to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.client.awaited_topics import AwaitedTopics
from headrace.client.network import Network


class Scene:
    """A producer's network, whose metadata answers the test gives."""

    def __init__(self) -> None:
        self.network = Network(
            "127.0.0.1:1", client_id="c", request_timeout_ms=1_000, create_topics=True, clock=lambda: 0.0
        )
        self.topics = AwaitedTopics(self.network)

    def answer(self, **known: bool) -> None:
        part = SimpleNamespace(
            partition_index=0, leader_id=1, error_code=0, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,)
        )
        topics = [
            SimpleNamespace(
                name=name,
                error_code=0 if is_known else 3,
                topic_id=None,
                is_internal=False,
                partitions=[part] if is_known else [],
            )
            for name, is_known in known.items()
        ]
        broker = SimpleNamespace(node_id=1, host="127.0.0.1", port=1)
        body: Any = SimpleNamespace(brokers=[broker], controller_id=1, cluster_id="x", topics=topics)
        self.network._on_metadata(self.network._updates.ask(0.0), body, None)


@pytest.fixture
def scene() -> Any:
    made = Scene()
    yield made
    made.network.close()


def test_a_topic_that_was_deleted_is_asked_for_no_more(scene: Scene) -> None:
    scene.topics.want("old")
    scene.topics.look()
    scene.answer(old=True)
    scene.topics.release("old")
    scene.topics.look()
    scene.topics.tell()
    assert scene.network._topics == {"old"}
    scene.answer(old=False)
    scene.topics.tell([("old", 0)])
    assert scene.network._topics == {"old"}, "a batch for it waits"
    scene.answer(old=False)
    scene.topics.tell([("another", 0)])
    assert scene.network._topics == set()


def test_a_topic_that_somebody_waits_for_is_asked_for_on(scene: Scene) -> None:
    scene.topics.want("new")
    scene.topics.look()
    scene.answer(new=False)
    scene.topics.tell()
    assert scene.network._topics == {"new"}
