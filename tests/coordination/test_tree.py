"""A ZooKeeper's tree in another ZooKeeper: the same data, and the same order of what was written when."""

from __future__ import annotations

import uuid

import pytest

from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import CoordinationError
from headrace.coordination.producer_ids import allocate_block, skip_ids
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.coordination.tree import TreeNode, read_tree, write_tree


def content(session: ZooKeeperSession) -> dict[str, bytes]:
    return {node.path: node.data for node in read_tree(session)}


def test_a_copy_has_the_same_nodes_and_no_ephemeral_ones(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as source:
        has_topics(source, "one", "two")
        source.create("/headrace/binary", bytes(range(256)), make_parents=True)
        source.hold_ephemeral(znodes.broker(1), b"{}")
        source.ensure_path("/copy")
        with ZooKeeperSession(f"{zookeeper.hosts}/copy").start() as target:
            nodes = [node for node in read_tree(source) if not node.path.startswith("/copy")]
            write_tree(target, nodes)
            assert content(target) == {node.path: node.data for node in nodes}
            assert znodes.BROKER_IDS in content(target)
            assert znodes.broker(1) not in content(target)
            assert TopicRegistry(target).list() == TopicRegistry(source).list()


def test_an_offset_that_was_older_than_its_topic_stays_older(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as source:
        has_topics(source, "kept", "again")
        group = ConsumerRegistry(source, "readers")
        group.commit("kept", 0, 7)
        group.commit("again", 0, 8)
        TopicRegistry(source).delete("again")
        has_topics(source, "again")
        assert group.all_offsets().keys() == {("kept", 0)}
        nodes = read_tree(source)
        assert znodes.offset("readers", "again", 0) in {node.path for node in nodes}
        source.ensure_path("/copy")
        with ZooKeeperSession(f"{zookeeper.hosts}/copy").start() as target:
            write_tree(target, nodes)
            assert ConsumerRegistry(target, "readers").all_offsets() == group.all_offsets()


def test_what_was_written_together_was_written_together(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as source:
        source.ensure_path("/a")
        source.transaction().create("/a/offset", b"1").create("/a/offset/metadata", b"m").commit()
        source.transaction().set("/a/offset", b"2").set("/a/offset/metadata", b"n").commit()
        source.set("/a", b"later")
        nodes = read_tree(source, "/a")
        source.ensure_path("/copy")
        with ZooKeeperSession(f"{zookeeper.hosts}/copy").start() as target:
            write_tree(target, nodes)
            offset, metadata, parent = target.get_many(["/a/offset", "/a/offset/metadata", "/a"])
            assert offset is not None and metadata is not None and parent is not None
            assert (offset.data, metadata.data, parent.data) == (b"2", b"n", b"later")
            assert offset.stat.modified_zxid == metadata.stat.modified_zxid
            assert offset.stat.modified_zxid < parent.stat.modified_zxid


def test_topics_that_change_without_end_are_an_error(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zookeeper.session() as source:
        has_topics(source, "one")
        topics = TopicRegistry(source)
        read_many = source.get_many

        def changing(paths: list[str], **options: object) -> object:
            topics.create(f"topic-{uuid.uuid4().hex}", uuid.uuid4(), {0: (1,)})
            return read_many(paths)

        monkeypatch.setattr(source, "children_many", lambda paths: [[] for _ in changing(paths)])  # type: ignore[attr-defined]
        with pytest.raises(CoordinationError, match="topics were created or deleted"):
            read_tree(source)


def test_a_node_without_its_parent_is_left_out(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        write_tree(session, [TreeNode("/gone/child", b"", 5, 5), TreeNode("/here", b"x", 6, 9)])
        assert session.children("/") == ["here"] and session.get("/here").data == b"x"


def test_skipped_producer_ids_are_never_allocated(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        before = allocate_block(session)
        first = skip_ids(session, 1_000_000)
        assert allocate_block(session)[0] == first == before[-1] + 1_000_001
