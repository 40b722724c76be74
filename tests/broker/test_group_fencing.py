"""A coordinator that was replaced stores and deletes nothing that it had accepted before: offsets do not go
back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fix_group_brokers import FIRST, GROUP, KEY, SECOND, GroupBroker
from fix_group_offsets import store_offsets
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.groups import fencing, offset_nodes
from headrace.broker.groups.deletion import NoGroupError
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.offset_nodes import Committed
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[ZooKeeperSession]:
    with zookeeper.session() as made:
        TopicRegistry(made).create("t", uuid.uuid4(), {0: (1,)})
        yield made


def another_registers_after_the_guard(session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a second broker register between the first look at the guard's nodes and the deletion."""
    others: list[GroupBroker] = []
    look = fencing.guard

    def hangs(*arguments: Any) -> Mapping[str, int]:
        found = look(*arguments)
        if not others:
            others.append(GroupBroker(session, SECOND))
        return found

    monkeypatch.setattr("headrace.broker.groups.deletion.guard", hangs)


def test_a_stopped_coordinator_stores_nothing_once_it_was_replaced(session: ZooKeeperSession) -> None:
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    late = first.commit(100)
    first.held.release()  # its session ends while it is stopped
    confirmed = second.commit(200)
    second.jobs.run()
    assert confirmed == [None]
    first.jobs.run()
    assert second.stored() == 200
    assert isinstance(late[0], NotCoordinatorError)


def test_a_coordinator_that_has_come_back_stores_nothing_of_before(session: ZooKeeperSession) -> None:
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    late = first.commit(100)
    first.held.release()
    second.commit(200)
    second.jobs.run()
    first.register()  # it is the coordinator again
    newest = first.commit(300)
    first.jobs.run()
    assert isinstance(late[0], NotCoordinatorError)
    first.jobs.run()
    assert newest == [None] and first.stored() == 300


def test_a_coordinator_whose_group_has_moved_to_a_new_broker_stores_nothing(
    session: ZooKeeperSession,
) -> None:
    second = GroupBroker(session, SECOND)
    late = second.commit(100)
    first = GroupBroker(session, FIRST)
    assert first.commit(200) == []
    first.jobs.run()
    second.jobs.run()
    assert isinstance(late[0], NotCoordinatorError) and first.stored() == 200


def test_a_coordinator_that_hangs_before_its_write_stores_nothing_of_a_group_that_moved(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the brokers, and lives; then a new broker registers, and takes the group over."""
    second = GroupBroker(session, SECOND)
    late = second.commit(100)
    taken_over: list[GroupBroker] = []
    look = fencing.registrations

    def hangs(*arguments: Any) -> fencing.Registrations:
        found = look(*arguments)
        if not taken_over:
            taken_over.append(GroupBroker(session, FIRST))
            confirmed = taken_over[0].commit(200)
            taken_over[0].jobs.run()
            assert confirmed == [None]
        return found

    monkeypatch.setattr("headrace.broker.groups.fencing.registrations", hangs)
    second.jobs.run()
    assert isinstance(late[0], NotCoordinatorError) and taken_over[0].stored() == 200


def test_a_broker_that_registers_meanwhile_costs_another_coordinator_no_commit(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GroupBroker(session, FIRST)
    confirmed = first.commit(100)
    others: list[GroupBroker] = []
    look = fencing.registrations

    def hangs(*arguments: Any) -> fencing.Registrations:
        found = look(*arguments)
        if not others:
            others.append(GroupBroker(session, SECOND))
        return found

    monkeypatch.setattr("headrace.broker.groups.fencing.registrations", hangs)
    first.jobs.run()
    assert confirmed == [None] and first.stored() == 100


def test_what_a_coordinator_knows_of_the_brokers_stores_nothing_of_a_group_that_moved(
    session: ZooKeeperSession,
) -> None:
    second = GroupBroker(session, SECOND)
    early = second.commit(50)
    second.jobs.run()
    late = second.commit(100)
    first = GroupBroker(session, FIRST)
    confirmed = first.commit(200)
    first.jobs.run()
    second.jobs.run()
    assert early == confirmed == [None]
    assert isinstance(late[0], NotCoordinatorError) and first.stored() == 200


def test_brokers_are_read_once_and_again_when_a_group_comes_from_a_dead_one(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    first.commit(1)  # makes the nodes, and knows the brokers
    first.jobs.run()
    reads: list[int] = []
    look = fencing.registrations

    def counted(*arguments: Any) -> fencing.Registrations:
        reads.append(arguments[2].broker_id)
        return look(*arguments)

    monkeypatch.setattr("headrace.broker.groups.fencing.registrations", counted)
    for offset in range(2, 5):
        confirmed = first.commit(offset)
        first.jobs.run()
        assert confirmed == [None]
    refused = second.commit(10)
    second.jobs.run()
    assert reads == [SECOND] and isinstance(refused[0], NotCoordinatorError)
    first.held.release()
    for offset in range(20, 23):
        confirmed = second.commit(offset)
        second.jobs.run()
        assert confirmed == [None]
    assert reads == [SECOND, SECOND] and second.stored() == 22


def takes_over_for_a_while(session: ZooKeeperSession, other: GroupBroker) -> None:
    """Another broker registers, coordinates the group, stores an offset, and is gone; `other` sees it."""
    first = GroupBroker(session, FIRST)
    other.store.brokers_changed(lambda _: False)
    confirmed = first.commit(200)
    first.jobs.run()
    assert confirmed == [None]
    first.held.release()
    other.store.brokers_changed(lambda _: True)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_commit_of_before_a_group_went_and_came_back_is_not_stored(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """It waits for a thread, or hangs before its write: the other broker has stored a newer one since."""
    second = GroupBroker(session, SECOND)
    second.commit(50)
    second.jobs.run()
    late = second.commit(100)
    if has_begun:
        write = offset_nodes._write
        taken: list[bool] = []

        def hangs(*arguments: Any) -> Mapping[str, int]:
            if not taken:
                taken.append(True)
                takes_over_for_a_while(session, second)
            return write(*arguments)

        monkeypatch.setattr(offset_nodes, "_write", hangs)
        second.jobs.run()
    else:
        takes_over_for_a_while(session, second)
    newer = second.commit(300)
    while not newer:
        second.jobs.run()
    assert isinstance(late[0], NotCoordinatorError)
    assert newer == [None] and second.stored() == 300


def test_a_deletion_of_before_a_group_went_and_came_back_is_not_made(session: ZooKeeperSession) -> None:
    second = GroupBroker(session, SECOND)
    second.commit(50)
    second.jobs.run()
    late = second.delete()
    takes_over_for_a_while(session, second)
    second.jobs.run()
    assert isinstance(late[0], NotCoordinatorError) and second.stored() == 200


def test_a_stopped_coordinator_deletes_nothing_once_it_was_replaced(session: ZooKeeperSession) -> None:
    """It found that the group had no members; its successor has some, and what they have read."""
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    late = first.delete()
    first.held.release()
    confirmed = second.commit(200)
    second.jobs.run()
    first.jobs.run()
    assert confirmed == [None] and second.stored() == 200
    assert isinstance(late[0], NotCoordinatorError)


def test_what_is_stored_after_a_group_was_to_be_deleted_stays(session: ZooKeeperSession) -> None:
    """Another client's thread may be faster: a member joins and commits before the deletion begins."""
    broker = GroupBroker(session, FIRST)
    broker.commit(100)
    broker.jobs.run()
    deleted, confirmed = broker.delete(), broker.commit(200)
    while not confirmed:
        broker.jobs.run_last()
    broker.jobs.run()
    assert deleted == [True] and confirmed == [None] and broker.stored() == 200


def test_a_deletion_comes_after_what_was_to_be_stored_before(session: ZooKeeperSession) -> None:
    broker = GroupBroker(session, FIRST)
    confirmed, deleted = broker.commit(100), broker.delete()
    while not deleted:
        broker.jobs.run_last()
    broker.jobs.run()
    assert confirmed == [None] and deleted == [True]
    assert session.exists(znodes.group(GROUP)) is None


def test_a_broker_that_registers_meanwhile_does_not_keep_a_group_from_being_deleted(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GroupBroker(session, FIRST)
    first.commit(100)
    first.jobs.run()
    another_registers_after_the_guard(session, monkeypatch)
    deleted = first.delete()
    first.jobs.run()
    assert deleted == [True] and session.exists(znodes.group(GROUP)) is None


def test_a_group_of_the_papers_consumers_is_deleted_only_without_members(session: ZooKeeperSession) -> None:
    broker, registry = GroupBroker(session, FIRST), ConsumerRegistry(session, GROUP)
    registry.commit("t", 0, 5)
    member = registry.join("m", {"t": 1})
    refused = broker.delete()
    broker.jobs.run()
    assert isinstance(refused[0], CoordinationError) and registry.offsets([KEY]) == {KEY: 5}
    member.release()
    deleted = broker.delete()
    broker.jobs.run()
    assert deleted == [True] and session.exists(znodes.group(GROUP)) is None


# --- some offsets ---


def test_a_stopped_coordinator_deletes_no_offset_once_it_was_replaced(session: ZooKeeperSession) -> None:
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    late = first.delete_offsets({KEY})
    first.held.release()
    second.commit(200)
    second.jobs.run()
    first.jobs.run()
    assert isinstance(late[0], NotCoordinatorError) and second.stored() == 200


def test_offsets_are_deleted_between_the_commits_before_and_after(session: ZooKeeperSession) -> None:
    broker = GroupBroker(session, FIRST)
    confirmed, deleted = broker.commit(100), broker.delete_offsets({KEY})
    after = broker.commit(50)
    while not after:
        broker.jobs.run_last()
    assert (confirmed, deleted, after) == ([None], [frozenset()], [None])
    assert broker.stored() == 50


def test_an_offset_is_deleted_with_its_metadata_and_others_stay(session: ZooKeeperSession) -> None:
    broker = GroupBroker(session, FIRST)
    store_offsets(session, GROUP, {KEY: Committed(5, "words"), ("t", 1): Committed(6, "more")})
    deleted = broker.delete_offsets({KEY, ("t", 7), ("u", 0)})
    broker.jobs.run()
    assert deleted == [frozenset()]
    assert offset_nodes.read(session, GROUP, None) == {("t", 1): Committed(6, "more")}
    assert session.exists(znodes.offset(GROUP, *KEY)) is None
    broker.delete_offsets({("t", 1)})
    broker.jobs.run()
    assert session.exists(znodes.offsets(GROUP, "t")) is None


def test_a_broker_that_registers_meanwhile_does_not_keep_an_offset_from_being_deleted(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GroupBroker(session, FIRST)
    first.commit(100)
    first.jobs.run()
    another_registers_after_the_guard(session, monkeypatch)
    deleted = first.delete_offsets({KEY})
    first.jobs.run()
    assert deleted == [frozenset()] and session.exists(znodes.offset(GROUP, *KEY)) is None


def test_offsets_that_the_papers_consumers_read_stay(session: ZooKeeperSession) -> None:
    broker, registry = GroupBroker(session, FIRST), ConsumerRegistry(session, GROUP)
    registry.commit("t", 0, 5)
    registry.commit("u", 0, 7)
    member = registry.join("m", {"t": 1})
    deleted = broker.delete_offsets({KEY, ("u", 0)})
    broker.jobs.run()
    assert deleted == [{"t"}] and registry.all_offsets() == {KEY: 5}
    member.release()
    deleted = broker.delete_offsets({KEY})
    broker.jobs.run()
    assert deleted == [frozenset()] and registry.all_offsets() == {}


def test_of_a_group_that_has_stored_nothing_no_offset_is_deleted(session: ZooKeeperSession) -> None:
    broker = GroupBroker(session, FIRST)
    deleted = broker.delete_offsets({KEY})
    broker.jobs.run()
    assert isinstance(deleted[0], NoGroupError)
