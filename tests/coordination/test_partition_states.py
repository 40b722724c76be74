"""A partition's state changes by compare-and-set alone, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination import partition_states, znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.errors import BadVersionError, CorruptNodeError, TopicNotRegisteredError
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.partition_states import (
    CHANGES_PER_TRANSACTION_MAX,
    REASSIGNED_PER_TRANSACTION_MAX,
    GuardError,
    PartitionChange,
    StaleBrokerError,
    StaleStateError,
    in_transactions,
)
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry, TopicState

REPLICAS = (1, 2, 3)


def create(session: ZooKeeperSession, name: str, count: int = 1) -> TopicState:
    return TopicRegistry(session).create(name, uuid4(), dict.fromkeys(range(count), REPLICAS))


def shrunk(state: PartitionState) -> PartitionState:
    return replace(state, isr=state.isr[:-1])


def test_the_whole_state_is_compared(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        first = create(session, "t").partitions[0]
        second = shrunk(first)
        registry.set_partition_state("t", 0, second, expected=first)
        third = replace(first, leader=2, leader_epoch=1)
        with pytest.raises(StaleStateError, match=r"t-0: its state is .*isr=.1, 2.") as stale:
            registry.set_partition_state("t", 0, third, expected=first)
        assert isinstance(stale.value, BadVersionError) and stale.value.found == second
        assert registry.get("t").partitions[0] == registry.list()["t"].partitions[0] == second
        with pytest.raises(TopicNotRegisteredError, match="no partition t-1"):
            registry.set_partition_state("t", 1, third, expected=second)
        with pytest.raises(ValueError, match="is the expected one"):
            registry.set_partition_state("t", 0, second, expected=second)


def test_one_stale_change_of_a_batch_does_not_keep_the_others(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        registry = TopicRegistry(session)
        states = {name: create(session, name, 2).partitions for name in ("a", "b", "bad")}
        session.set(znodes.partition_state("bad", 1), b"{")
        moved = replace(states["a"][1], leader=3, leader_epoch=7)
        registry.set_partition_state("a", 1, moved, expected=states["a"][1])
        changes = [
            PartitionChange(name, index, state, shrunk(state))
            for name in states
            for index, state in states[name].items()
        ]
        problems = registry.set_partition_states([*changes, replace(changes[0], topic="gone")])
        expected = [None, StaleStateError, None, None, None, CorruptNodeError, TopicNotRegisteredError]
        assert [problem and type(problem) for problem in problems] == expected
        now = registry.list()
        assert now["a"].partitions == {0: shrunk(states["a"][0]), 1: moved}
        assert now["b"].partitions == {index: shrunk(state) for index, state in states["b"].items()}
        with pytest.raises(ValueError, match="twice"):
            registry.set_partition_states([changes[0], changes[0]])


def test_leaders_of_one_topic_do_not_hinder_each_other(zookeeper: ZooKeeperRoom) -> None:
    """Each partition's leader changes its own in-sync set again and again, all at the same time."""
    with zookeeper.session() as one, zookeeper.session() as two, zookeeper.session() as three:
        start = create(one, "t", 3).partitions

        def shrink_and_expand(index: int) -> None:
            registry = TopicRegistry((one, two, three)[index])
            for _ in range(30):
                registry.set_partition_state("t", index, shrunk(start[index]), expected=start[index])
                registry.set_partition_state("t", index, start[index], expected=shrunk(start[index]))

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(shrink_and_expand, range(3)))
        assert TopicRegistry(one).get("t").partitions == start


def test_of_writers_with_the_same_expectation_one_wins(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:
        state = create(one, "t").partitions[0]
        for epoch in range(1, 20):

            def claim(
                leader: int, epoch: int = epoch, state: PartitionState = state
            ) -> PartitionState | None:
                new = replace(state, leader=leader, leader_epoch=epoch)
                try:
                    TopicRegistry((one, two)[leader % 2]).set_partition_state("t", 0, new, expected=state)
                except StaleStateError as stale:
                    assert stale.found.leader_epoch == epoch
                    return None
                return new

            with ThreadPoolExecutor(4) as threads:
                (state,) = [new for new in threads.map(claim, (1, 2, 3, 1)) if new is not None][:1]
            assert TopicRegistry(two).get("t").partitions[0] == state


def test_a_change_between_reading_and_writing_is_noticed(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zookeeper.session() as session, zookeeper.session() as other:
        states = create(session, "t", 2).partitions
        elected = replace(states[0], leader=2, leader_epoch=1)
        store = partition_states._Present.store

        def late(present: Any, changes: Sequence[PartitionChange]) -> None:
            monkeypatch.setattr(partition_states._Present, "store", store)
            TopicRegistry(other).set_partition_state("t", 0, elected, expected=states[0])
            store(present, changes)

        monkeypatch.setattr(partition_states._Present, "store", late)
        problems = TopicRegistry(session).set_partition_states(
            [PartitionChange("t", index, state, shrunk(state)) for index, state in states.items()]
        )
        assert isinstance(problems[0], StaleStateError) and problems[0].found == elected
        assert problems[1] is None
        assert TopicRegistry(other).get("t").partitions == {0: elected, 1: shrunk(states[1])}


def test_a_write_whose_answer_was_lost_counts_as_done(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zookeeper.session() as session:
        state = create(session, "t").partitions[0]
        store = partition_states._Present.store

        def answer_lost(present: Any, changes: Sequence[PartitionChange]) -> None:
            """The session repeats a call that lost its connection: the repeated one finds a later version."""
            store(present, changes)
            store(present, changes)

        monkeypatch.setattr(partition_states._Present, "store", answer_lost)
        TopicRegistry(session).set_partition_state("t", 0, shrunk(state), expected=state)
        assert TopicRegistry(session).get("t").partitions[0] == shrunk(state)


def test_a_broker_that_has_registered_again_does_not_join(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-903: its disk may be another one."""
    with zookeeper.session() as leader, zookeeper.session() as follower:
        registry = TopicRegistry(leader)
        full = create(leader, "t").partitions[0]
        small = shrunk(full)
        registry.set_partition_state("t", 0, small, expected=full)
        brokers = BrokerRegistry(follower)
        held = brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
        (seen,) = brokers.live()
        join = PartitionChange("t", 0, small, full, joining={3: seen.epoch})
        store = partition_states._Present.store

        def bounced(present: Any, changes: Sequence[PartitionChange]) -> None:
            monkeypatch.setattr(partition_states._Present, "store", store)
            held.release()
            brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
            store(present, changes)

        monkeypatch.setattr(partition_states._Present, "store", bounced)
        (problem,) = registry.set_partition_states([join])
        assert isinstance(problem, StaleBrokerError) and "broker 3 is registered in" in str(problem)
        (problem,) = registry.set_partition_states([replace(join, joining={4: 1})])
        assert isinstance(problem, StaleBrokerError) and "broker 4 is not registered" in str(problem)
        assert registry.get("t").partitions[0] == small
        (now,) = brokers.live()
        assert registry.set_partition_states([replace(join, joining={3: now.epoch})]) == [None]
        assert registry.get("t").partitions[0] == full


def test_a_broker_that_stops_does_not_join(zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-841: also if it says so between the look and the write, and whatever the leader's watches tell."""
    with zookeeper.session() as leader, zookeeper.session() as follower:
        registry, brokers = TopicRegistry(leader), BrokerRegistry(follower)
        full = create(leader, "t").partitions[0]
        small = shrunk(full)
        registry.set_partition_state("t", 0, small, expected=full)
        brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
        join = PartitionChange("t", 0, small, full, joining={3: brokers.live()[0].epoch})
        store = partition_states._Present.store

        def stops(present: Any, changes: Sequence[PartitionChange]) -> None:
            monkeypatch.setattr(partition_states._Present, "store", store)
            brokers.announce_stop(3)
            store(present, changes)

        monkeypatch.setattr(partition_states._Present, "store", stops)
        for _ in range(2):
            (problem,) = registry.set_partition_states([join])
            assert isinstance(problem, StaleBrokerError) and problem.broker_id == 3
            assert "broker 3 stops" in str(problem)
        assert registry.get("t").partitions[0] == small
        elected = replace(full, leader=3, leader_epoch=1)
        assert registry.set_partition_states([replace(join, new=elected)]) == [None], "nobody else can lead"
        again = replace(elected, leader=1, leader_epoch=2)
        change = PartitionChange("t", 0, elected, again, joining=join.joining)
        assert registry.set_partition_states([change]) == [None], "it was in sync before"


def test_what_the_session_of_another_says_keeps_no_broker_out(zookeeper: ZooKeeperRoom) -> None:
    """A predecessor of the broker died while it stopped, and its session lives on; or a stranger says it."""
    with zookeeper.session() as leader, zookeeper.session() as before, zookeeper.session() as now:
        registry, brokers = TopicRegistry(leader), BrokerRegistry(now)
        full = create(leader, "t").partitions[0]
        small = shrunk(full)
        registry.set_partition_state("t", 0, small, expected=full)
        BrokerRegistry(before).announce_stop(3)
        brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
        (seen,) = brokers.live()
        assert not seen.is_stopping
        join = PartitionChange("t", 0, small, full, joining={3: seen.epoch})
        assert registry.set_partition_states([join]) == [None]


def test_a_broker_leads_only_once_a_controller_has_handled_its_registration(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that it may have an empty disk, and be in the in-sync set of its predecessor."""
    with zookeeper.session() as writer, zookeeper.session() as other:
        registry, brokers, handled = TopicRegistry(writer), BrokerRegistry(other), HandledBrokers(other)
        before = create(writer, "t").partitions[0]
        after = replace(before, leader=3, leader_epoch=before.leader_epoch + 1)
        change = PartitionChange("t", 0, before, after, handled_only=True)
        (problem,) = registry.set_partition_states([change])
        assert isinstance(problem, StaleBrokerError) and problem.broker_id == 3
        held = brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
        (problem,) = registry.set_partition_states([change])
        assert isinstance(problem, StaleBrokerError) and "no controller has seen that" in str(problem)
        handled.note(brokers.live(), {})
        store = partition_states._Present.store

        def bounced(present: Any, changes: Sequence[PartitionChange]) -> None:
            monkeypatch.setattr(partition_states._Present, "store", store)
            held.release()
            brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
            store(present, changes)

        monkeypatch.setattr(partition_states._Present, "store", bounced)
        (problem,) = registry.set_partition_states([change])
        assert isinstance(problem, StaleBrokerError), "it has registered again since it was looked at"
        assert registry.get("t").partitions[0] == before
        handled.note(brokers.live(), {})
        assert registry.set_partition_states([change]) == [None]
        assert registry.get("t").partitions[0] == after


def test_a_leader_that_stays_has_to_be_handled_where_its_epoch_is_a_new_one(
    zookeeper: ZooKeeperRoom,
) -> None:
    """Its followers cut their logs to its own, which may be empty since it came back."""
    with zookeeper.session() as writer, zookeeper.session() as other:
        registry, brokers, handled = TopicRegistry(writer), BrokerRegistry(other), HandledBrokers(other)
        before = create(writer, "t").partitions[0]
        assert before.leader == 1
        fewer = replace(before, replicas=(1, 2), isr=(1, 2), leader_epoch=before.leader_epoch + 1)
        change = PartitionChange("t", 0, before, fewer, handled_only=True)
        first = brokers.register(BrokerRegistration(1, "127.1.0.11", 9092, "east"))
        handled.note(brokers.live(), {})
        first.release()
        brokers.register(BrokerRegistration(1, "127.1.0.11", 9092, "east"))
        (problem,) = registry.set_partition_states([change])
        assert isinstance(problem, StaleBrokerError) and "no controller has seen that" in str(problem)
        handled.note(brokers.live(), {})
        assert registry.set_partition_states([change]) == [None]


def test_no_replica_is_given_up_for_one_that_may_have_come_back_empty(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as writer, zookeeper.session() as other:
        registry, brokers, handled = TopicRegistry(writer), BrokerRegistry(other), HandledBrokers(other)
        before = create(writer, "t").partitions[0]
        brokers.register(BrokerRegistration(1, "127.1.0.11", 9092, "east"))
        handled.note(brokers.live(), {})
        fewer = replace(before, replicas=(1, 3), isr=(1, 3), leader_epoch=before.leader_epoch + 1)
        change = PartitionChange("t", 0, before, fewer, handled_only=True)
        brokers.register(BrokerRegistration(3, "127.1.0.13", 9092, "east"))
        (problem,) = registry.set_partition_states([change])
        assert isinstance(problem, StaleBrokerError) and problem.broker_id == 3
        handled.note(brokers.live(), {})
        assert registry.set_partition_states([change]) == [None]


def test_who_lost_what_guards_its_writes_writes_nothing(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        state = create(session, "t").partitions[0]
        change = PartitionChange("t", 0, state, shrunk(state))
        registry = TopicRegistry(session)
        with pytest.raises(GuardError, match="/lease is gone"):
            registry.set_partition_states([change], guard={"/lease": -1})
        session.create("/lease")
        with pytest.raises(GuardError, match="/lease is no longer the same"):
            registry.set_partition_states([change], guard={"/lease": 4})
        assert registry.get("t").partitions[0] == state
        assert registry.set_partition_states([change], guard={"/lease": 0}) == [None]


def test_a_reassignment_changes_the_list_of_replicas_with_the_state(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session, zookeeper.session() as other:
        registry, watching = TopicRegistry(session), TopicRegistry(other)
        states = create(session, "t", 2).partitions
        assert watching.list()["t"].partitions == states
        moving = replace(states[0], replicas=(4, 1, 2, 3), adding=(4,), removing=(3,))
        registry.set_partition_state("t", 0, moving, expected=states[0])
        assert watching.list()["t"].partitions == {0: moving, 1: states[1]}
        with pytest.raises(StaleStateError):
            registry.set_partition_state("t", 0, shrunk(states[0]), expected=states[0])
        moved = replace(moving, replicas=(4, 1, 2), isr=(1, 2, 4), adding=(), removing=())
        registry.set_partition_state("t", 0, moved, expected=moving)
        assert watching.list()["t"].partitions == {0: moved, 1: states[1]}


def test_two_thousand_partitions_are_written_in_bounded_transactions(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        states = create(session, "t" * 60, 2000).partitions
        registry = TopicRegistry(session)
        changes = [PartitionChange("t" * 60, at, state, shrunk(state)) for at, state in states.items()]
        assert set(registry.set_partition_states(changes)) == {None}
        assert {state.isr for state in registry.get("t" * 60).partitions.values()} == {(1, 2)}


def test_groups_of_changes_fit_a_transaction() -> None:
    state = PartitionState(1, 0, REPLICAS, REPLICAS)
    small = [PartitionChange("t", at, state, shrunk(state)) for at in range(CHANGES_PER_TRANSACTION_MAX + 1)]
    assert [len(group) for group in in_transactions(small)] == [CHANGES_PER_TRANSACTION_MAX, 1]
    large = [
        PartitionChange("t", at, state, replace(state, replicas=(1, 2)))
        for at in range(REASSIGNED_PER_TRANSACTION_MAX + 1)
    ]
    assert [len(group) for group in in_transactions(large)] == [REASSIGNED_PER_TRANSACTION_MAX, 1]
    assert [change for group in in_transactions([*small, *large]) for change in group] == [*small, *large]
