"""Three brokers, three replicas: what was acknowledged is on all that are in sync, byte for byte."""

from __future__ import annotations

from fix_replicas import ReplicatedCluster
from headrace.wire.errors import ErrorCode


def test_acks_all_is_stored_on_every_replica_byte_for_byte(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    for number in range(20):
        replicas.produce(topic, f"record {number}")
        leader = replicas.on_disk(1, topic)
        assert replicas.on_disk(2, topic) == replicas.on_disk(3, topic) == leader, "before it was answered"
    assert replicas.read(topic) == leader
    assert replicas.answer(2, topic) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replicas.state(topic).isr == (1, 2, 3)


def test_another_leader_goes_on_and_followers_agree_with_it(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3)
    replicas.produce(topic, "in epoch 0")
    replicas.elect(topic, 2)
    replicas.produce(topic, "in epoch 1")
    replicas.elect(topic, 3)
    replicas.produce(topic, "in epoch 2")
    assert replicas.wait_until_equal(topic, 1, 2, 3) == replicas.read(topic)
    assert replicas.answer(1, topic) is ErrorCode.NOT_LEADER_OR_FOLLOWER
