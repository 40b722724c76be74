"""The election of the controller on a real ZooKeeper: one at a time, and none that was deposed writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination import znodes
from headrace.coordination.election import NOBODY, ControllerElection, Reign, controller_of
from headrace.coordination.partition_states import GuardError, PartitionChange
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry

BEFORE = PartitionState(1, 0, (1, 2), (1, 2))
AFTER = PartitionState(2, 1, (1, 2), (2,))


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


class Candidate:
    def __init__(self, session: ZooKeeperSession, broker_id: int) -> None:
        self.seen: list[Reign | None] = []
        self.session = session
        self.election = ControllerElection(session, broker_id, self.seen.append)
        self.election.start()

    @property
    def reign(self) -> Reign | None:
        return self.seen[-1] if self.seen else None

    @property
    def leads(self) -> bool:
        return self.reign is not None and self.reign.is_own

    def write(self, reign: Reign) -> None:
        registry = TopicRegistry(self.session)
        registry.set_partition_states([PartitionChange("t", 0, BEFORE, AFTER)], guard=reign.guard)


def test_the_next_one_is_elected_and_the_one_before_writes_nothing(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session(timeout_s=2) as one, zookeeper.session() as two:
        TopicRegistry(two).create("t", uuid4(), {0: (1, 2)})
        assert controller_of(one) == NOBODY
        first = Candidate(one, 1)
        wait_for(lambda: first.leads)
        second = Candidate(two, 2)
        wait_for(lambda: second.reign is not None)
        assert second.reign == Reign(1, 0, {}) and controller_of(two) == 1
        old = first.reign
        assert old is not None and old.epoch == 1
        zookeeper.expire(one)
        wait_for(lambda: second.leads)
        wait_for(lambda: first.reign == Reign(2, 0, {}))
        assert second.reign is not None and second.reign.epoch == 2
        with pytest.raises(GuardError):
            first.write(old)
        assert TopicRegistry(two).get("t").partitions[0] == BEFORE
        second.write(second.reign)
        assert TopicRegistry(two).get("t").partitions[0] == AFTER
        second.election.close()
        wait_for(lambda: first.leads)
        assert first.reign is not None and first.reign.epoch == 3
        with pytest.raises(GuardError, match=znodes.CONTROLLER_EPOCH):
            first.write(old)


def test_one_of_many_is_elected_each_time(zookeeper: ZooKeeperRoom) -> None:
    sessions = [zookeeper.session() for _ in range(5)]
    try:
        candidates = [Candidate(session, at) for at, session in enumerate(sessions)]
        for epoch in range(1, 5):
            wait_for(lambda: sum(each.leads for each in candidates) == 1)
            (leader,) = (each for each in candidates if each.leads)
            assert leader.reign is not None and leader.reign.epoch == epoch
            candidates.remove(leader)
            leader.election.close()
    finally:
        for session in sessions:
            session.close()


def test_a_controller_that_only_lost_its_connection_reigns_on(private_zookeeper: ZooKeeperRoom) -> None:
    # The longest timeout that the server grants: a JVM on a busy machine may take half a minute to start.
    with private_zookeeper.session(timeout_s=60) as session:
        candidate = Candidate(session, 1)
        wait_for(lambda: candidate.leads)
        private_zookeeper.server.kill()
        private_zookeeper.server.start()
        session.wait_connected(60)
        TopicRegistry(session).create("t", uuid4(), {0: (1, 2)})
        assert candidate.reign is not None and candidate.reign.epoch == 1
        candidate.write(candidate.reign)
        assert TopicRegistry(session).get("t").partitions[0] == AFTER


def test_damaged_nodes_keep_nobody_from_being_elected(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        session.create(znodes.CONTROLLER_EPOCH, b"\xff")
        session.create(znodes.CONTROLLER, b"{")
        candidate = Candidate(session, 1)
        wait_for(lambda: candidate.reign == Reign(NOBODY, 0, {}) or candidate.leads)
        session.delete(znodes.CONTROLLER)
        wait_for(lambda: candidate.leads)
