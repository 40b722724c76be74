"""A topic whose nodes in ZooKeeper are not whole: it was not deleted, since that is one transaction."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest

from fix_broker import RawClient
from fix_replicas import ReplicatedCluster, batch
from fix_replicas import replicas as replicas
from fix_zookeeper import ZooKeeperRoom
from headrace.client.replica_admin import ReplicaAdmin
from headrace.coordination import znodes
from headrace.coordination.election import controller_of
from headrace.coordination.errors import CorruptNodeError, TopicNotRegisteredError
from headrace.coordination.partition_state import state_document
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.reassignment.moving import ReassignmentError, UnfinishedError
from headrace.reassignment.operations import drain, undrain


def removed(topic: str) -> list[str]:
    return [znodes.topic_config(topic), znodes.partition_state(topic, 0)]


def touch(replicas: ReplicatedCluster, topic: str) -> None:
    """Has brokers read the topic again, with the next change of any."""
    path = znodes.topic(topic)
    replicas.session.set(path, replicas.session.get(path).data)


def is_said(replicas: ReplicatedCluster, broker: int, text: str) -> bool:
    return text in replicas.brokers[broker].output()


@pytest.mark.parametrize("at", [0, 1], ids=["settings", "state"])
def test_brokers_keep_the_logs_of_a_topic_that_lacks_a_node(replicas: ReplicatedCluster, at: int) -> None:
    """In Apache Kafka such a topic had its default settings, or a partition without a leader."""
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    path = removed(topic)[at]
    node = replicas.session.get(path)
    replicas.session.delete(path)
    touch(replicas, topic)
    replicas.topic(1, 2, 3)  # all brokers read the topics again
    for broker in (1, 2, 3):
        says = f"{path}: the node is missing"
        replicas.wait_for("the broker names the node", partial(is_said, replicas, broker, says))
        assert replicas.on_disk(broker, topic) == held
    replicas.session.create(path, node.data)
    replicas.elect(topic, 2)
    replicas.produce(topic, "second")
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


@pytest.mark.parametrize("damage", [None, b"{}"], ids=["missing", "rotten"])
def test_a_topic_without_its_settings_gets_leaders(replicas: ReplicatedCluster, damage: bytes | None) -> None:
    """Brokers went on with the partitions as they were before, and the next leader never led."""
    topic = replicas.topic(1, 2, 3, min_insync_replicas="2")
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.topic_config(topic)
    data = replicas.session.get(path).data
    replicas.session.delete(path) if damage is None else replicas.session.set(path, damage)
    try:
        with RawClient(replicas.brokers[2].address) as client:
            # `replicas.elect` reads the settings, too.
            before = PartitionState(1, 0, (1, 2, 3), (1, 2, 3))
            after = PartitionState(2, 1, (1, 2, 3), (2, 3))
            change = PartitionChange(topic, 0, before, after)
            assert replicas.registry.set_partition_states([change]) == [None]
            replicas.wait_for(
                "2 leads", lambda: client.produce(topic, 0, batch("second"), acks=-1).error_code == 0
            )
        replicas.wait_for("1 follows", lambda: replicas.on_disk(1, topic) == replicas.on_disk(2, topic))
        assert f"topic {topic} keeps the settings that it had" in replicas.brokers[1].output()
    finally:
        if damage is None:
            replicas.session.create(path, data)
        else:
            replicas.session.set(path, data)
    replicas.topic(1)  # all brokers read the topics again
    replicas.wait_in_sync(topic, 1, 2, 3)


def test_brokers_keep_the_logs_of_a_topic_whose_id_was_overwritten(replicas: ReplicatedCluster) -> None:
    """Such as by a copy of the node that is older than the topic. One that is made again has new nodes."""
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    path = znodes.topic(topic)
    data = replicas.session.get(path).data
    fields = json.loads(data)
    replicas.session.set(path, json.dumps(fields | {"topic_id": str(uuid4())}).encode())
    replicas.topic(1, 2, 3)  # all brokers read the topics again
    for broker in (1, 2, 3):
        replicas.wait_for("the broker names the node", partial(is_said, replicas, broker, f"{path}: its id"))
        assert replicas.on_disk(broker, topic) == held
    replicas.session.set(path, data)
    replicas.elect(topic, 2)
    replicas.produce(topic, "second")
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


@pytest.mark.parametrize("stopped", [(3,), (1, 2, 3)], ids=["one", "all"])
def test_brokers_that_start_while_a_topics_id_is_wrong_keep_its_logs(
    replicas: ReplicatedCluster, stopped: tuple[int, ...]
) -> None:
    """They moved them aside as an earlier topic's, and began empty ones."""
    topic = replicas.topic(1, 2, 3, min_insync_replicas="2")
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "first")
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    path = znodes.topic(topic)
    data = replicas.session.get(path).data
    for broker in stopped:
        replicas.brokers[broker].kill()
    replicas.session.set(path, json.dumps(json.loads(data) | {"topic_id": str(uuid4())}).encode())
    for broker in stopped:
        replicas.brokers[broker].start()
    for broker in stopped:
        assert (
            f"{topic}-0: the log is of topic id {json.loads(data)['topic_id']}"
            in replicas.brokers[broker].output()
        )
        assert replicas.on_disk(broker, topic) == held
        replicas.brokers[broker].kill()
    replicas.session.set(path, data)
    for broker in stopped:
        replicas.brokers[broker].start()
    replicas.topic(1, 2, 3)  # all brokers read the topics again
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "second")
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


def test_a_state_of_before_makes_nobody_a_leader_again(replicas: ReplicatedCluster) -> None:
    """Somebody puts back what a node held once: its leader lacks what was acknowledged since."""
    topic = replicas.topic(1, 2, 3, min_insync_replicas="2")
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.partition_state(topic, 0)
    data = replicas.session.get(path).data
    replicas.brokers[1].send_signal(signal.SIGSTOP)
    try:
        replicas.elect(topic, 2, in_sync=(2, 3))
        replicas.produce(topic, "second")
        held = replicas.wait_until_equal(topic, 2, 3)
        now = replicas.session.get(path).data
        replicas.session.set(path, data)
        touch(replicas, topic)
    finally:
        replicas.brokers[1].send_signal(signal.SIGCONT)
    replicas.topic(1, 2, 3)  # all brokers read the topics again
    for broker in (2, 3):
        says = f"{path}: its leader epoch was 1, and is 0 now"
        replicas.wait_for("the broker names the node", partial(is_said, replicas, broker, says))
    assert replicas.on_disk(2, topic) == replicas.on_disk(3, topic) == held
    replicas.session.set(path, now)
    touch(replicas, topic)
    replicas.topic(1, 2, 3)
    replicas.produce(topic, "third")
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


def test_a_new_controller_does_not_believe_a_state_of_before(replicas: ReplicatedCluster) -> None:
    """It read all topics once more when it was elected, as if it knew nothing of them."""
    replicas.wait_for("there is a controller", lambda: controller_of(replicas.session) > 0)
    first = controller_of(replicas.session)
    others = [broker for broker in (1, 2, 3) if broker != first]
    topic = replicas.topic(others[0], others[1], first)
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.partition_state(topic, 0)
    data = replicas.session.get(path).data
    replicas.elect(topic, others[1])
    replicas.produce(topic, "first")
    replicas.wait_until_equal(topic, 1, 2, 3)
    now = replicas.session.get(path).data
    replicas.session.set(path, data)
    touch(replicas, topic)
    replicas.topic(1, 2, 3)  # all brokers read the topics again
    for broker in others:
        says = f"{path}: its leader epoch was 1, and is 0 now"
        replicas.wait_for("the broker names the node", partial(is_said, replicas, broker, says))
    replicas.brokers[first].kill()
    try:
        replicas.wait_for("another one is elected", lambda: controller_of(replicas.session) in others)
        second = controller_of(replicas.session)
        replicas.wait_for("it acts", partial(is_said, replicas, second, " partitions changed in "))
        assert replicas.session.get(path).data == data, "what it decides by that is never written"
    finally:
        replicas.session.set(path, now)
        touch(replicas, topic)
        replicas.brokers[first].start()
    replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "second")


def test_no_move_begins_at_a_state_of_before(replicas: ReplicatedCluster) -> None:
    """It read the topic as if it knew nothing of it, and the leader of before led an epoch that was another
    leader's: brokers take the epochs that they know for what they were.
    """
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.partition_state(topic, 0)
    before = replicas.session.get(path).data
    replicas.elect(topic, 2)
    replicas.produce(topic, "first")
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    now = replicas.session.get(path).data
    replicas.session.set(path, before)
    with ReplicaAdmin(replicas.brokers.bootstrap) as admin:
        refused = admin.reassign({(topic, 0): (1, 3)})
        assert f"{path}: its leader epoch was 1, and is 0 now" in str(refused)
        assert replicas.session.get(path).data == before
        replicas.session.set(path, now)
        assert not admin.reassign({(topic, 0): (1, 3)})
    replicas.wait_in_sync(topic, 1, 3)
    assert replicas.wait_until_equal(topic, 1, 3) == held


def test_a_drain_ends_with_the_name_of_a_state_that_cannot_be_read(replicas: ReplicatedCluster) -> None:
    """It asked again and again until its time was up, and said nothing of why."""
    for name in replicas.registry.list():
        replicas.registry.delete(name)  # other tests' topics, which need all brokers
    topic = replicas.topic(1, 2)
    replicas.wait_in_sync(topic, 1, 2)
    path = znodes.partition_state(topic, 0)
    data = replicas.session.get(path).data
    with ReplicaAdmin(replicas.brokers.bootstrap) as admin:
        replicas.wait_for("the others are gone", lambda: admin.replicas().partitions.keys() == {(topic, 0)})
        replicas.session.set(path, b"{}")
        try:
            with pytest.raises(
                ReassignmentError, match=f"{topic}-0: UNKNOWN_SERVER_ERROR: {path}: "
            ) as raised:
                drain(admin, 2, timeout_s=20)
            assert not isinstance(raised.value, UnfinishedError)
        finally:
            replicas.session.set(path, data)
            undrain(admin, 2)


def test_a_leader_goes_on_when_its_state_is_there_again(replicas: ReplicatedCluster) -> None:
    """Its proposal, which had no place to go, was never repeated: acks=all waited for ever."""
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.partition_state(topic, 0)
    node = replicas.session.get(path)
    replicas.session.delete(path)
    replicas.brokers[3].send_signal(signal.SIGSTOP)
    try:
        says = f"{topic}-0: its in-sync replicas are not stored yet: {path}: the node is missing"
        replicas.wait_for("the leader tries", lambda: says in replicas.brokers[1].output())
        replicas.session.create(path, node.data)
        touch(replicas, topic)
        replicas.topic(1, 2)  # all brokers read the topics again
        replicas.wait_in_sync(topic, 1, 2)
        replicas.produce(topic, "second")
    finally:
        replicas.brokers[3].send_signal(signal.SIGCONT)
    replicas.wait_in_sync(topic, 1, 2, 3)


def test_a_leader_goes_on_when_a_state_of_before_is_gone_again(replicas: ReplicatedCluster) -> None:
    """It took that for another leader's, and waited to be told: acks=all waited for ever."""
    topic = replicas.topic(1, 2, 3)
    replicas.wait_in_sync(topic, 1, 2, 3)
    path = znodes.partition_state(topic, 0)
    before = replicas.session.get(path).data
    replicas.elect(topic, 2)
    replicas.produce(topic, "first")
    replicas.wait_until_equal(topic, 1, 2, 3)
    now = replicas.session.get(path).data
    replicas.session.set(path, before)
    replicas.brokers[3].send_signal(signal.SIGSTOP)
    try:
        says = f"{topic}-0: its in-sync replicas are not stored yet: ZooKeeper holds a state of before, "
        replicas.wait_for("the leader tries", partial(is_said, replicas, 2, says))
        replicas.session.set(path, now)
        touch(replicas, topic)
        replicas.topic(1, 2)  # all brokers read the topics again
        replicas.wait_in_sync(topic, 1, 2)
        replicas.produce(topic, "second")
    finally:
        replicas.brokers[3].send_signal(signal.SIGCONT)
    replicas.wait_in_sync(topic, 1, 2, 3)


def test_a_topic_that_lacks_a_node_is_corrupt_and_one_that_lacks_all_is_gone(
    zookeeper: ZooKeeperRoom,
) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        for name in ("settings", "state"):
            registry.create(name, uuid4(), {0: (1,), 1: (1,)})
        known = registry.list()
        for at, name in enumerate(("settings", "state")):
            path = removed(name)[at]
            session.delete(path)
            session.set(znodes.topic(name), session.get(znodes.topic(name)).data)
            with pytest.raises(CorruptNodeError, match=f"{path}: the node is missing"):
                registry.get(name)
        assert registry.list() == known
        assert TopicRegistry(session).list() == {}
        session.delete(znodes.topic("state"), recursive=True)
        with pytest.raises(TopicNotRegisteredError):
            registry.get("state")
        assert registry.list().keys() == {"settings"}


def test_no_epoch_gets_another_leader(zookeeper: ZooKeeperRoom) -> None:
    """Two leaders of one epoch would have other batches at the same addresses, and no follower could tell."""
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        created = registry.create("t", uuid4(), {0: (1, 2, 3)})
        state = replace(created.partitions[0], leader=2, leader_epoch=1)
        registry.set_partition_state("t", 0, state, expected=created.partitions[0])
        known = registry.list()
        session.set(znodes.partition_state("t", 0), state_document(replace(state, leader=3)))
        session.set(znodes.topic("t"), session.get(znodes.topic("t")).data)
        assert registry.list() == known
        with pytest.raises(CorruptNodeError, match="in leader epoch 1 its leader was 2, and is 3 now"):
            registry.get("t")
        registry.set_partition_state(
            "t", 0, replace(state, leader=3, leader_epoch=2), expected=replace(state, leader=3)
        )
        assert registry.get("t").partitions[0].leader == 3
