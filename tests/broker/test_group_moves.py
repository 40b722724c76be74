"""The next coordinator of a group knows its members: they go on without a rebalance, and nobody else does."""

from __future__ import annotations

import pytest

from fix_group_brokers import GROUP, KEY
from fix_group_offsets import store_offsets
from fix_group_services import DELAY_MS, ServiceBroker, dies
from headrace.broker.groups import recovery
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.offset_nodes import Committed
from headrace.broker.groups.types import JoinReply
from headrace.coordination import znodes
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.errors import ErrorCode

SESSION_MS = 10_000  # of `joining`


def committed(group_session: ZooKeeperSession) -> int:
    return int(group_session.get(znodes.offset(GROUP, *KEY)).data)


def test_members_go_on_at_the_next_coordinator(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    member = coordinator.joined()
    before = coordinator.described()
    dies(coordinator, heir)
    assert heir.heartbeat(member) is ErrorCode.NONE
    confirmed = heir.commit(7, member)
    heir.settle()
    assert confirmed == [ErrorCode.NONE] and committed(group_session) == 7
    (synced,) = heir.sync(member)
    assert synced.assignment == b"all"
    assert heir.described() == before
    assert before["group_state"] == "Stable"


@pytest.mark.parametrize("is_asked", [True, False])
def test_members_that_die_with_their_coordinator_are_missed(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker, is_asked: bool
) -> None:
    coordinator.joined()
    coordinator.held.release()
    heir.see()
    if is_asked:
        assert heir.listed() == {GROUP: "Stable"}
    heir.wait(SESSION_MS - 1)
    assert heir.known() is not None
    heir.wait(1)
    assert heir.known() is None and heir.listed() == {}
    assert group_session.exists(znodes.group(GROUP)) is None, "it has no offsets: nothing is kept of it"


def test_a_member_that_has_left_is_not_known_to_the_next_coordinator(
    coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    member = coordinator.joined()
    assert coordinator.leave(member) is ErrorCode.NONE
    coordinator.settle()
    dies(coordinator, heir)
    assert heir.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert heir.listed() == {}


def test_a_static_member_that_restarts_keeps_its_new_id(
    coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    """KIP-345. The next coordinator would fence the new process, and take the old one for alive."""
    _, before = coordinator.together("one", "two")
    again = coordinator.join("two")
    assert again == [], "it was told its id before that was stored"
    coordinator.settle()
    (restarted,) = again
    dies(coordinator, heir)
    assert restarted.error is ErrorCode.NONE
    assert heir.heartbeat(restarted, "two") is ErrorCode.NONE
    assert heir.heartbeat(before, "two") is ErrorCode.FENCED_INSTANCE_ID


def test_no_member_gets_its_part_before_it_is_stored(
    group_session: ZooKeeperSession, coordinator: ServiceBroker
) -> None:
    replies = coordinator.join()
    coordinator.settle()
    coordinator.wait(DELAY_MS)
    (member,) = replies
    synced = coordinator.sync(member, {member.member_id: b"all"})
    assert synced == [] and group_session.exists(znodes.generation(GROUP)) is None
    coordinator.settle()
    assert [each.assignment for each in synced] == [b"all"]
    assert group_session.exists(znodes.generation(GROUP)) is not None


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_coordinator_that_dies_before_it_answers_leaves_a_whole_generation(
    coordinator: ServiceBroker, heir: ServiceBroker, is_stored: bool
) -> None:
    """Either side of the write: the members have the next generation at the next coordinator, or none."""
    member = coordinator.joined()
    (again,) = coordinator.join(member_id=member.member_id)
    coordinator.sync(again, {again.member_id: b"new"})
    ((write, _),) = coordinator.jobs.jobs
    if is_stored:
        write()
    coordinator.jobs.jobs.clear()
    dies(coordinator, heir)
    (synced,) = heir.sync(again)
    if is_stored:
        assert synced.assignment == b"new"
        assert heir.heartbeat(member) is ErrorCode.ILLEGAL_GENERATION
    else:
        assert synced.error is ErrorCode.ILLEGAL_GENERATION
        assert heir.heartbeat(member) is ErrorCode.NONE


def test_a_generation_that_is_not_stored_is_no_generation(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper is away while the members rebalance: they are asked to come again, and go on then."""
    member = coordinator.joined()
    rejoined = coordinator.join(member_id=member.member_id)
    (again,) = rejoined
    synced = coordinator.sync(again, {again.member_id: b"new"})
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise ZooKeeperUnavailableError("no server answers")

        patched.setattr(coordinator.store._generations, "store", away)
        coordinator.settle()
    assert [each.error for each in synced] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert coordinator.heartbeat(again) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.heartbeat(member) is ErrorCode.NONE, "the generation before was stored"
    (after,) = coordinator.join(member_id=member.member_id)
    synced = coordinator.sync(after, {after.member_id: b"newest"})
    coordinator.settle()
    assert [each.assignment for each in synced] == [b"newest"]


def test_while_zookeeper_does_not_tell_of_members_clients_ask_again(
    coordinator: ServiceBroker, heir: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = coordinator.joined()
    coordinator.held.release()

    def away(*_: object) -> None:
        raise ZooKeeperUnavailableError("no server answers")

    with monkeypatch.context() as patched:
        patched.setattr(heir.store._generations, "load", away)
        heir.see()
        assert heir.heartbeat(member) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert heir.leave(member) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = heir.commit(1, member)
        newcomer = heir.join()
        heir.settle()
        assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert [each.error for each in newcomer] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert heir.described()["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert heir.delete_offsets() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert heir.heartbeat(member) is ErrorCode.NONE


# --- nobody else ---


def test_a_group_whose_coordinator_has_just_moved_is_not_empty(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    member = coordinator.joined()
    coordinator.commit(5, member)
    coordinator.settle()
    coordinator.held.release()
    heir._state.view = heir._state.view.with_brokers(heir._registry.live())
    heir.service.coordinator.brokers_changed()  # and nothing was restored yet
    assert heir.delete() is ErrorCode.NON_EMPTY_GROUP
    assert heir.delete_offsets() is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    stranger = heir.commit(1)
    heir.settle()
    assert stranger == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert committed(group_session) == 5


def taken_over(coordinator: ServiceBroker, heir: ServiceBroker) -> JoinReply:
    """Returns the member of `second` that has replaced the silent one of `first`, and has committed 9."""
    coordinator.held.release()
    heir.see()
    waiting = heir.join()
    heir.wait(SESSION_MS)
    (newcomer,) = waiting
    heir.begin(newcomer)
    confirmed = heir.commit(9, newcomer)
    heir.settle()
    assert confirmed == [ErrorCode.NONE]
    return newcomer


def comes_back_unseen(coordinator: ServiceBroker, heir: ServiceBroker) -> None:
    """The first one's watches have told of nothing, but that it has registered."""
    heir.held.release()
    coordinator.register()
    coordinator._state.view = coordinator._state.view.with_brokers(coordinator._registry.live())


def test_a_coordinator_that_was_replaced_unseen_stores_nothing(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    stale = coordinator.joined()
    coordinator.commit(5, stale)
    coordinator.settle()
    newcomer = taken_over(coordinator, heir)
    comes_back_unseen(coordinator, heir)
    assert coordinator.heartbeat(stale) is ErrorCode.NONE, "it knows no better"
    late = coordinator.commit(6, stale)
    coordinator.settle()
    assert late == [ErrorCode.NOT_COORDINATOR] and committed(group_session) == 9
    assert coordinator.heartbeat(stale) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(newcomer) is ErrorCode.NONE


@pytest.mark.parametrize("does", ["syncs", "empties", "deletes offsets"])
def test_nor_does_it_store_or_delete_by_what_it_knows_of_its_members(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker, does: str
) -> None:
    stale = coordinator.joined()
    newcomer = taken_over(coordinator, heir)
    comes_back_unseen(coordinator, heir)
    if does == "syncs":
        (again,) = coordinator.join(member_id=stale.member_id)
        synced = coordinator.sync(again, {again.member_id: b"mine"})
        coordinator.settle()
        assert [each.error for each in synced] == [ErrorCode.NOT_COORDINATOR]
    elif does == "empties":
        assert coordinator.leave(stale) is ErrorCode.NONE
        coordinator.settle()
    else:
        coordinator.service.coordinator.disband(GROUP, ErrorCode.NOT_COORDINATOR)
        coordinator.service._recovery._absent.add(GROUP)  # it takes the group for empty
        assert coordinator.delete_offsets() is ErrorCode.NOT_COORDINATOR
        assert coordinator.delete() is ErrorCode.NON_EMPTY_GROUP
    assert coordinator.heartbeat(newcomer) is ErrorCode.NONE
    assert committed(group_session) == 9


def test_a_broker_that_has_registered_again_reads_its_groups_again(
    coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    """Its session had ended, and another broker coordinated the group until it came back: it sees both at
    once. A member that noticed nothing would commit what others have read on from since.
    """
    stale = coordinator.joined()
    newcomer = taken_over(coordinator, heir)
    coordinator.register()
    coordinator.see()
    assert coordinator.heartbeat(stale) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(newcomer) is ErrorCode.NONE


def test_groups_without_members_are_known_after_one_look(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of thousands of groups that have offsets alone does not read each of them."""
    names = [f"group-{number}" for number in range(recovery.AT_ONCE_MAX * 3)]
    for name in names:
        store_offsets(group_session, name, {KEY: Committed(7)})
    coordinator.joined()
    monkeypatch.setattr(recovery, "LOOKED_AT_MAX", 7)
    loads: list[str] = []
    monkeypatch.setattr(coordinator.store._generations, "load", loads.append)
    coordinator.see()
    assert loads == []
    assert coordinator.listed() == {**dict.fromkeys(names, "Empty"), GROUP: "Stable"}
    monkeypatch.setattr(recovery, "ABSENT_MAX_BYTES", 1)  # nothing is remembered
    coordinator.see()
    assert coordinator.listed() == {**dict.fromkeys(names, "Empty"), GROUP: "Stable"}


def test_one_clients_failure_keeps_no_other_one_from_its_group(
    coordinator: ServiceBroker, heir: ServiceBroker, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.joined()
    coordinator.held.release()
    heir._state.view = heir._state.view.with_brokers(heir._registry.live())
    heir.service.coordinator.brokers_changed()

    def fails(_: ErrorCode) -> None:
        raise ZeroDivisionError

    told: list[ErrorCode] = []
    heir.service.when_known(GROUP, fails)
    heir.service.when_known(GROUP, told.append)
    heir.settle()
    assert told == [ErrorCode.NONE]
    assert "ZeroDivisionError" in caplog.text


def test_what_is_asked_of_a_group_while_it_is_read_waits(
    coordinator: ServiceBroker, heir: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = coordinator.joined()
    coordinator.held.release()
    loads: list[str] = []
    load = heir.store._generations.load

    def counted(group: str) -> StoredGeneration | None:
        loads.append(group)
        return load(group)

    monkeypatch.setattr(heir.store._generations, "load", counted)
    heir._state.view = heir._state.view.with_brokers(heir._registry.live())
    heir.service.coordinator.brokers_changed()
    confirmed = [heir.commit(number, member) for number in range(3)]
    assert confirmed == [[], [], []]
    heir.settle()
    assert confirmed == [[ErrorCode.NONE]] * 3 and loads == [GROUP]
