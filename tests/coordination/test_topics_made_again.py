"""A topic that is made again under its name, on a real ZooKeeper: no change of its predecessor hits it.

Its nodes' versions begin at 0 again, so those that were read of its predecessor's guard nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination import znodes
from headrace.coordination.errors import TopicNotRegisteredError
from headrace.coordination.nodes import Node
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.coordination.transaction import Transaction


def delete(registry: TopicRegistry) -> None:
    with suppress(TopicNotRegisteredError):
        registry.delete("t")


def configure(registry: TopicRegistry) -> None:
    registry.change_config("t", lambda present: present | {"flush.ms": "1"})


def add_partition(registry: TopicRegistry) -> None:
    registry.add_partitions("t", {1: (1, 2)})


def reassign(registry: TopicRegistry) -> None:
    state = registry.get("t").partitions[0]
    moving = replace(state, replicas=(3, 1, 2), adding=(3,), removing=(1, 2))
    registry.set_partition_states([PartitionChange("t", 0, state, moving)])


CHANGES: Final = (delete, configure, add_partition, reassign)


def interrupt(
    session: ZooKeeperSession,
    monkeypatch: pytest.MonkeyPatch,
    others: Callable[[], None],
    *,
    answer_lost: bool,
) -> None:
    """Lets others act just before the next transaction, or after it, and it is sent again: no answer came."""
    begin = session.transaction

    def call(run: Callable[[], Any]) -> Any:
        monkeypatch.setattr(session, "transaction", begin)
        if answer_lost:
            run()
        others()
        return session._call(run)

    # Some transactions are begun for their size alone: the first one that is committed is meant.
    monkeypatch.setattr(session, "transaction", lambda: Transaction(session._client.transaction, call))


@pytest.mark.parametrize("answer_lost", [False, True], ids=["late", "answer lost"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_topic_that_was_made_again_is_itself(
    zookeeper: ZooKeeperRoom,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[TopicRegistry], None],
    answer_lost: bool,
) -> None:
    """With its predecessor's id the brokers would take it for deleted, and delete what it holds."""
    new = uuid4()
    with zookeeper.session() as session, zookeeper.session() as other:
        registry, others = TopicRegistry(session), TopicRegistry(other)
        registry.create("t", uuid4(), {0: (1, 2)}, {"retention.ms": "5"})

        def make_again() -> None:
            delete(others)
            others.create("t", new, {0: (1, 2)})

        interrupt(session, monkeypatch, make_again, answer_lost=answer_lost)
        change(registry)
        found = others.get("t")
        assert found.topic_id == new
        assert "retention.ms" not in found.config


@pytest.mark.parametrize("kind", ["topic", "state"])
def test_no_topic_is_read_that_is_half_of_each(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The old topic's id with the new one's epoch 0 would be news of a leader that there never was."""
    new = uuid4()
    with zookeeper.session() as session, zookeeper.session() as other:
        registry, others = TopicRegistry(session), TopicRegistry(other)
        for name in ("s", "t"):
            registry.create(name, uuid4(), {0: (1, 2)})
        read = session.get_many_small
        interrupted = znodes.topic("t") if kind == "topic" else znodes.partition_state("t", 0)

        def then_made_again(paths: Iterable[str], **limit: int) -> list[Node | None]:
            wanted = list(paths)
            nodes = read(wanted, **limit)
            if interrupted in wanted:
                monkeypatch.setattr(session, "get_many_small", read)
                delete(others)
                others.create("t", new, {0: (2, 1)})
            return nodes

        monkeypatch.setattr(session, "get_many_small", then_made_again)
        topics = registry.list()
        assert topics["s"] == others.get("s")
        assert topics["t"] == others.get("t")
        assert topics["t"].topic_id == new


def test_leaders_and_in_sync_sets_are_those_of_one_topic(zookeeper: ZooKeeperRoom) -> None:
    """A leader's follower caught up with the topic that is gone, not with the one of the same state now."""
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        states = []
        for _ in range(2):
            delete(registry)
            registry.create("t", uuid4(), {0: (1, 2)})
            both = registry.get("t").partitions[0]
            registry.set_partition_state("t", 0, replace(both, isr=(1,)), expected=both)
            states.append(registry.get("t").partitions[0])
        gone, present = states
        assert gone == present
        (problem,) = registry.set_partition_states([PartitionChange("t", 0, gone, replace(gone, isr=(1, 2)))])
        assert isinstance(problem, TopicNotRegisteredError) and "made again" in str(problem)
        assert registry.get("t").partitions[0].isr == (1,)
        registry.set_partition_state("t", 0, replace(present, isr=(1, 2)), expected=present)


def test_partitions_that_were_added_are_added_once_though_the_answer_was_lost(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        made = registry.create("t", uuid4(), {0: (1, 2)})
        interrupt(session, monkeypatch, lambda: None, answer_lost=True)
        topic = registry.add_partitions("t", {1: (2, 1)})
        assert topic == TopicRegistry(session).get("t") and topic.topic_id == made.topic_id
        assert len(topic.partitions) == 2


def test_a_topic_that_was_deleted_is_no_error_though_the_answer_was_lost(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headrace topics delete` said that there is no such topic, and a script stopped."""
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        registry.create("t", uuid4(), {0: (1, 2)})
        interrupt(session, monkeypatch, lambda: None, answer_lost=True)
        registry.delete("t")
        assert TopicRegistry(session).list() == {}
        with pytest.raises(TopicNotRegisteredError):
            registry.delete("t")
