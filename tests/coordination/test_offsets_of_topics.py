"""Offsets go with their topic: those that are older than the topic of their name are not read, and are
deleted.
"""

from typing import Any
from uuid import uuid4

import pytest

from fix_group_offsets import store_offsets
from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.broker.groups import offset_nodes
from headrace.broker.groups.offset_nodes import Committed
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, NotOwnerError, forget_topic
from headrace.coordination.topics import TopicRegistry

ODD = "a/b %2F"


def test_a_topic_of_the_same_name_begins_without_offsets(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t", "u")
        registry, topics = ConsumerRegistry(session, "g"), TopicRegistry(session)
        store_offsets(session, "g", {("t", 0): Committed(4711, "words"), ("u", 0): Committed(5)})
        registry.commit("t", 1, 4712)
        topics.delete("t")
        for _ in ("without the topic", "with a new one"):
            assert registry.all_offsets() == {("u", 0): 5}
            assert registry.offsets([("t", 0), ("t", 1), ("u", 0)]) == {
                ("t", 0): None,
                ("t", 1): None,
                ("u", 0): 5,
            }
            assert offset_nodes.read(session, "g", None) == {("u", 0): Committed(5)}
            assert offset_nodes.read(session, "g", [("t", 0), ("u", 0)]) == {("u", 0): Committed(5)}
            if not topics.list().get("t"):
                topics.create("t", uuid4(), {0: (1,)})
        registry.commit("t", 0, 7)
        assert registry.all_offsets() == {("t", 0): 7, ("u", 0): 5}
        assert offset_nodes.read(session, "g", None) == {("t", 0): Committed(7), ("u", 0): Committed(5)}


def test_other_changes_of_a_topic_keep_its_offsets(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t")
        registry, topics = ConsumerRegistry(session, "g"), TopicRegistry(session)
        registry.commit("t", 0, 7)
        topics.set_config("t", {"retention.ms": "1"})
        topics.add_partitions("t", {1: (1,)})
        assert registry.all_offsets() == {("t", 0): 7}


@pytest.mark.parametrize("is_recreated", [False, True])
def test_forgetting_a_topic_keeps_what_belongs_to_others(
    zookeeper: ZooKeeperRoom, is_recreated: bool
) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t", "u")
        topics = TopicRegistry(session)
        for group in ("g", ODD):
            values = {("t", 0): Committed(1, "words"), ("t", 1): Committed(2), ("u", 0): Committed(3, "more")}
            store_offsets(session, group, values)
        topics.delete("t")
        if is_recreated:
            topics.create("t", uuid4(), {0: (1,), 1: (1,)})
            ConsumerRegistry(session, ODD).commit("t", 1, 9)
        assert forget_topic(session, "t") == (3 if is_recreated else 4)
        assert session.exists(znodes.offsets("g", "t")) is None
        expected = {("u", 0): Committed(3, "more")}
        assert offset_nodes.read(session, "g", None) == expected
        if is_recreated:
            expected[("t", 1)] = Committed(9)
        assert offset_nodes.read(session, ODD, None) == expected
        assert forget_topic(session, "t") == 0


def test_the_first_offset_of_the_next_owner_is_not_replaced(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member is slow to store a partition's first offset, and another one owns the partition meanwhile."""
    with zookeeper.session() as slow, zookeeper.session() as fast:
        has_topics(slow, "t")
        late, next_one = ConsumerRegistry(slow, "g"), ConsumerRegistry(fast, "g")
        late.claim("t", 0, "late", wait_s=0)
        create = slow.create

        def creates_late(path: str, *arguments: Any, **options: Any) -> None:
            late.release("t", 0, "late")
            next_one.claim("t", 0, "next", wait_s=0)
            next_one.commit("t", 0, 200, owner="next")
            create(path, *arguments, **options)

        monkeypatch.setattr(slow, "create", creates_late)
        with pytest.raises(NotOwnerError, match="next owns it"):
            late.commit("t", 0, 100, owner="late")
        assert next_one.offsets([("t", 0)]) == {("t", 0): 200}


def test_an_offset_that_is_deleted_while_it_is_stored_is_stored(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a topic is deleted, and made again: the error would end the group's member."""
    with zookeeper.session() as session:
        has_topics(session, "t")
        registry = ConsumerRegistry(session, "g")
        registry.commit("t", 0, 1)
        write = session.set

        def writes_late(path: str, *arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(session, "set", write)
            session.delete(path)
            write(path, *arguments, **options)

        monkeypatch.setattr(session, "set", writes_late)
        registry.commit("t", 0, 2)
        assert registry.all_offsets() == {("t", 0): 2}


@pytest.mark.parametrize("topic", ["../../brokers", ".", "..", "a/b", "", "t\n"])
def test_names_that_no_topic_has_are_not_looked_up(zookeeper: ZooKeeperRoom, topic: str) -> None:
    with zookeeper.session() as session:
        assert offset_nodes.read(session, "g", [(topic, 0)]) == {}
        assert ConsumerRegistry(session, "g").offsets([(topic, 0)]) == {(topic, 0): None}
