"""The next coordinator of a group knows its members: they go on without a rebalance, and nobody else does."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

from fix_group_brokers import FIRST, GROUP, KEY, SECOND
from fix_group_offsets import store_offsets
from fix_group_services import DELAY_MS, ServiceBroker
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.groups import recovery, store
from headrace.broker.groups.generations import KeptGeneration
from headrace.broker.groups.offset_nodes import Committed
from headrace.broker.groups.types import JoinReply
from headrace.coordination import znodes
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.wire.errors import ErrorCode

SESSION_MS = 10_000  # of `joining`


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[ZooKeeperSession]:
    with zookeeper.session() as made:
        TopicRegistry(made).create("t", uuid.uuid4(), {0: (1,)})
        yield made


@pytest.fixture
def first(session: ZooKeeperSession) -> ServiceBroker:
    return ServiceBroker(session, FIRST)


@pytest.fixture
def second(session: ZooKeeperSession, first: ServiceBroker) -> ServiceBroker:
    """Coordinates the group once `first` has gone."""
    made = ServiceBroker(session, SECOND)
    first.see()
    return made


def dies(broker: ServiceBroker, heir: ServiceBroker) -> None:
    broker.held.release()
    heir.see()


def committed(session: ZooKeeperSession) -> int:
    return int(session.get(znodes.offset(GROUP, *KEY)).data)


def test_members_go_on_at_the_next_coordinator(
    session: ZooKeeperSession, first: ServiceBroker, second: ServiceBroker
) -> None:
    member = first.joined()
    before = first.described()
    dies(first, second)
    assert second.heartbeat(member) is ErrorCode.NONE
    confirmed = second.commit(7, member)
    second.settle()
    assert confirmed == [ErrorCode.NONE] and committed(session) == 7
    (synced,) = second.sync(member)
    assert synced.assignment == b"all"
    assert second.described() == before
    assert before["group_state"] == "Stable"


@pytest.mark.parametrize("is_asked", [True, False])
def test_members_that_die_with_their_coordinator_are_missed(
    session: ZooKeeperSession, first: ServiceBroker, second: ServiceBroker, is_asked: bool
) -> None:
    first.joined()
    first.held.release()
    second.see()
    if is_asked:
        assert second.listed() == {GROUP: "Stable"}
    second.wait(SESSION_MS - 1)
    assert second.known() is not None
    second.wait(1)
    assert second.known() is None and second.listed() == {}
    assert session.exists(znodes.group(GROUP)) is None, "it has no offsets: nothing is kept of it"


def test_a_member_that_has_left_is_not_known_to_the_next_coordinator(
    first: ServiceBroker, second: ServiceBroker
) -> None:
    member = first.joined()
    assert first.leave(member) is ErrorCode.NONE
    first.settle()
    dies(first, second)
    assert second.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert second.listed() == {}


def test_a_static_member_that_restarts_keeps_its_new_id(first: ServiceBroker, second: ServiceBroker) -> None:
    """KIP-345. The next coordinator would fence the new process, and take the old one for alive."""
    _, before = first.together("one", "two")
    again = first.join("two")
    assert again == [], "it was told its id before that was stored"
    first.settle()
    (restarted,) = again
    dies(first, second)
    assert restarted.error is ErrorCode.NONE
    assert second.heartbeat(restarted, "two") is ErrorCode.NONE
    assert second.heartbeat(before, "two") is ErrorCode.FENCED_INSTANCE_ID


def test_no_member_gets_its_part_before_it_is_stored(session: ZooKeeperSession, first: ServiceBroker) -> None:
    replies = first.join()
    first.settle()
    first.wait(DELAY_MS)
    (member,) = replies
    synced = first.sync(member, {member.member_id: b"all"})
    assert synced == [] and session.exists(znodes.generation(GROUP)) is None
    first.settle()
    assert [each.assignment for each in synced] == [b"all"]
    assert session.exists(znodes.generation(GROUP)) is not None


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_coordinator_that_dies_before_it_answers_leaves_a_whole_generation(
    first: ServiceBroker, second: ServiceBroker, is_stored: bool
) -> None:
    """Either side of the write: the members have the next generation at the next coordinator, or none."""
    member = first.joined()
    (again,) = first.join(member_id=member.member_id)
    first.sync(again, {again.member_id: b"new"})
    ((write, _),) = first.jobs.jobs
    if is_stored:
        write()
    first.jobs.jobs.clear()
    dies(first, second)
    (synced,) = second.sync(again)
    if is_stored:
        assert synced.assignment == b"new"
        assert second.heartbeat(member) is ErrorCode.ILLEGAL_GENERATION
    else:
        assert synced.error is ErrorCode.ILLEGAL_GENERATION
        assert second.heartbeat(member) is ErrorCode.NONE


def test_a_generation_that_is_not_stored_is_no_generation(
    session: ZooKeeperSession, first: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper is away while the members rebalance: they are asked to come again, and go on then."""
    member = first.joined()
    rejoined = first.join(member_id=member.member_id)
    (again,) = rejoined
    synced = first.sync(again, {again.member_id: b"new"})
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise ZooKeeperUnavailableError("no server answers")

        patched.setattr(first.store._generations, "store", away)
        first.settle()
    assert [each.error for each in synced] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert first.heartbeat(again) is ErrorCode.ILLEGAL_GENERATION
    assert first.heartbeat(member) is ErrorCode.NONE, "the generation before was stored"
    (after,) = first.join(member_id=member.member_id)
    synced = first.sync(after, {after.member_id: b"newest"})
    first.settle()
    assert [each.assignment for each in synced] == [b"newest"]


def test_while_zookeeper_does_not_tell_of_members_clients_ask_again(
    first: ServiceBroker, second: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = first.joined()
    first.held.release()

    def away(*_: object) -> None:
        raise ZooKeeperUnavailableError("no server answers")

    with monkeypatch.context() as patched:
        patched.setattr(second.store._generations, "load", away)
        second.see()
        assert second.heartbeat(member) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert second.leave(member) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = second.commit(1, member)
        newcomer = second.join()
        second.settle()
        assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert [each.error for each in newcomer] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert second.described()["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert second.delete_offsets() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert second.heartbeat(member) is ErrorCode.NONE


# --- nobody else ---


def test_a_group_whose_coordinator_has_just_moved_is_not_empty(
    session: ZooKeeperSession, first: ServiceBroker, second: ServiceBroker
) -> None:
    member = first.joined()
    first.commit(5, member)
    first.settle()
    first.held.release()
    second._state.view = second._state.view.with_brokers(second._registry.live())
    second.service.coordinator.brokers_changed()  # and nothing was restored yet
    assert second.delete() is ErrorCode.NON_EMPTY_GROUP
    assert second.delete_offsets() is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    stranger = second.commit(1)
    second.settle()
    assert stranger == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert committed(session) == 5


def taken_over(first: ServiceBroker, second: ServiceBroker) -> JoinReply:
    """Returns the member of `second` that has replaced the silent one of `first`, and has committed 9."""
    first.held.release()
    second.see()
    waiting = second.join()
    second.wait(SESSION_MS)
    (newcomer,) = waiting
    second.begin(newcomer)
    confirmed = second.commit(9, newcomer)
    second.settle()
    assert confirmed == [ErrorCode.NONE]
    return newcomer


def comes_back_unseen(first: ServiceBroker, second: ServiceBroker) -> None:
    """The first one's watches have told of nothing, but that it has registered."""
    second.held.release()
    first.register()
    first._state.view = first._state.view.with_brokers(first._registry.live())


def test_a_coordinator_that_was_replaced_unseen_stores_nothing(
    session: ZooKeeperSession, first: ServiceBroker, second: ServiceBroker
) -> None:
    stale = first.joined()
    first.commit(5, stale)
    first.settle()
    newcomer = taken_over(first, second)
    comes_back_unseen(first, second)
    assert first.heartbeat(stale) is ErrorCode.NONE, "it knows no better"
    late = first.commit(6, stale)
    first.settle()
    assert late == [ErrorCode.NOT_COORDINATOR] and committed(session) == 9
    assert first.heartbeat(stale) is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.heartbeat(newcomer) is ErrorCode.NONE


@pytest.mark.parametrize("does", ["syncs", "empties", "deletes offsets"])
def test_nor_does_it_store_or_delete_by_what_it_knows_of_its_members(
    session: ZooKeeperSession, first: ServiceBroker, second: ServiceBroker, does: str
) -> None:
    stale = first.joined()
    newcomer = taken_over(first, second)
    comes_back_unseen(first, second)
    if does == "syncs":
        (again,) = first.join(member_id=stale.member_id)
        synced = first.sync(again, {again.member_id: b"mine"})
        first.settle()
        assert [each.error for each in synced] == [ErrorCode.NOT_COORDINATOR]
    elif does == "empties":
        assert first.leave(stale) is ErrorCode.NONE
        first.settle()
    else:
        first.service.coordinator.disband(GROUP, ErrorCode.NOT_COORDINATOR)
        first.service._recovery._absent.add(GROUP)  # it takes the group for empty
        assert first.delete_offsets() is ErrorCode.NOT_COORDINATOR
        assert first.delete() is ErrorCode.NON_EMPTY_GROUP
    assert first.heartbeat(newcomer) is ErrorCode.NONE
    assert committed(session) == 9


def test_a_broker_that_has_registered_again_reads_its_groups_again(
    first: ServiceBroker, second: ServiceBroker
) -> None:
    """Its session had ended, and another broker coordinated the group until it came back: it sees both at
    once. A member that noticed nothing would commit what others have read on from since.
    """
    stale = first.joined()
    newcomer = taken_over(first, second)
    first.register()
    first.see()
    assert first.heartbeat(stale) is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.heartbeat(newcomer) is ErrorCode.NONE


# --- what is stored ---


def test_the_node_of_a_group_with_offsets_counts_on_when_it_is_empty(
    session: ZooKeeperSession, first: ServiceBroker
) -> None:
    """A node that is made again has versions that were there before."""
    member = first.joined()
    first.commit(5, member)
    first.settle()
    first.leave(member)
    first.settle()
    node = session.get(znodes.generation(GROUP))
    assert node.data == b"" and node.stat.version == 1
    first.joined()
    assert session.get(znodes.generation(GROUP)).stat.version == 2


def test_a_deleted_group_leaves_nothing(session: ZooKeeperSession, first: ServiceBroker) -> None:
    member = first.joined()
    first.commit(5, member)
    first.leave(member)
    assert first.delete() is ErrorCode.NONE
    assert session.exists(znodes.group(GROUP)) is None
    first.joined()


@pytest.mark.parametrize("limit", ["DOCUMENT_MAX_BYTES", "ALL_DOCUMENTS_MAX_BYTES"])
def test_members_that_take_too_much_are_not_stored_and_said(
    session: ZooKeeperSession,
    first: ServiceBroker,
    second: ServiceBroker,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = first.joined()
    if limit == "DOCUMENT_MAX_BYTES":
        monkeypatch.setattr("headrace.broker.groups.generations.DOCUMENT_MAX_BYTES", 10)
    else:
        monkeypatch.setattr(store, limit, 10)
    (again,) = first.join(member_id=member.member_id)
    synced = first.sync(again, {again.member_id: b"all"})
    with caplog.at_level(logging.WARNING):
        first.settle()
    assert [each.assignment for each in synced] == [b"all"]
    assert session.exists(znodes.group(GROUP)) is None, "members of before would be taken for present ones"
    dies(first, second)
    assert second.heartbeat(again) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "its 1 members are not stored" in caplog.text


@pytest.mark.parametrize("data", [b"rot", b'{"version":1}', b"\xff" * 100])
def test_members_that_cannot_be_read_join_again(
    session: ZooKeeperSession,
    first: ServiceBroker,
    second: ServiceBroker,
    data: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = first.joined()
    session.set(znodes.generation(GROUP), data)
    dies(first, second)
    assert second.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "its members join again" in caplog.text
    newest = second.joined()
    first.register()
    first.see()
    assert first.heartbeat(newest) is ErrorCode.NONE


def test_a_group_of_many_members_is_restored_whole(first: ServiceBroker, second: ServiceBroker) -> None:
    first.together(*(f"instance-{number}" for number in range(200)))
    before = first.known()
    dies(first, second)
    assert second.known() == before and before is not None and len(before.members) == 200


def test_groups_without_members_are_known_after_one_look(
    session: ZooKeeperSession, first: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of thousands of groups that have offsets alone does not read each of them."""
    names = [f"group-{number}" for number in range(recovery.AT_ONCE_MAX * 3)]
    for name in names:
        store_offsets(session, name, {KEY: Committed(7)})
    first.joined()
    monkeypatch.setattr(recovery, "LOOKED_AT_MAX", 7)
    loads: list[str] = []
    monkeypatch.setattr(first.store._generations, "load", loads.append)
    first.see()
    assert loads == []
    assert first.listed() == {**dict.fromkeys(names, "Empty"), GROUP: "Stable"}
    monkeypatch.setattr(recovery, "ABSENT_MAX_BYTES", 1)  # nothing is remembered
    first.see()
    assert first.listed() == {**dict.fromkeys(names, "Empty"), GROUP: "Stable"}


def test_what_is_asked_of_a_group_while_it_is_read_waits(
    first: ServiceBroker, second: ServiceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = first.joined()
    first.held.release()
    loads: list[str] = []
    load = second.store._generations.load

    def counted(group: str) -> KeptGeneration | None:
        loads.append(group)
        return load(group)

    monkeypatch.setattr(second.store._generations, "load", counted)
    second._state.view = second._state.view.with_brokers(second._registry.live())
    second.service.coordinator.brokers_changed()
    confirmed = [second.commit(number, member) for number in range(3)]
    assert confirmed == [[], [], []]
    second.settle()
    assert confirmed == [[ErrorCode.NONE]] * 3 and loads == [GROUP]
