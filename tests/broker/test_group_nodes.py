"""What ZooKeeper keeps of a group's members, and what it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from fix_group_brokers import GROUP
from fix_group_services import ServiceBroker, dies
from headrace.broker.groups import store
from headrace.coordination import znodes
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.transaction import Transaction
from headrace.wire.errors import ErrorCode


def test_the_node_of_a_group_with_offsets_counts_on_when_it_is_empty(
    group_session: ZooKeeperSession, coordinator: ServiceBroker
) -> None:
    """A node that is made again has versions that were there before."""
    member = coordinator.joined()
    coordinator.commit(5, member)
    coordinator.settle()
    coordinator.leave(member)
    coordinator.settle()
    node = group_session.get(znodes.generation(GROUP))
    assert node.data == b"" and node.stat.version == 1
    coordinator.joined()
    assert group_session.get(znodes.generation(GROUP)).stat.version == 2


def test_a_deleted_group_leaves_nothing(group_session: ZooKeeperSession, coordinator: ServiceBroker) -> None:
    member = coordinator.joined()
    coordinator.commit(5, member)
    coordinator.leave(member)
    assert coordinator.delete() is ErrorCode.NONE
    assert group_session.exists(znodes.group(GROUP)) is None
    coordinator.joined()


@pytest.mark.parametrize("limit", ["DOCUMENT_MAX_BYTES", "ALL_DOCUMENTS_MAX_BYTES"])
def test_members_that_take_too_much_are_not_stored_and_said(
    group_session: ZooKeeperSession,
    coordinator: ServiceBroker,
    heir: ServiceBroker,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = coordinator.joined()
    if limit == "DOCUMENT_MAX_BYTES":
        monkeypatch.setattr("headrace.broker.groups.generations.DOCUMENT_MAX_BYTES", 10)
    else:
        monkeypatch.setattr(store, limit, 10)
    (again,) = coordinator.join(member_id=member.member_id)
    synced = coordinator.sync(again, {again.member_id: b"all"})
    with caplog.at_level(logging.WARNING):
        coordinator.settle()
    assert [each.assignment for each in synced] == [b"all"]
    assert group_session.exists(znodes.group(GROUP)) is None, (
        "members of before would be taken for present ones"
    )
    dies(coordinator, heir)
    assert heir.heartbeat(again) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "its 1 members are not stored" in caplog.text


@pytest.mark.parametrize("data", [b"rot", b'{"version":1}', b"\xff" * 100])
def test_members_that_cannot_be_read_join_again(
    group_session: ZooKeeperSession,
    coordinator: ServiceBroker,
    heir: ServiceBroker,
    data: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = coordinator.joined()
    group_session.set(znodes.generation(GROUP), data)
    dies(coordinator, heir)
    assert heir.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "its members join again" in caplog.text
    newest = heir.joined()
    coordinator.register()
    coordinator.see()
    assert coordinator.heartbeat(newest) is ErrorCode.NONE


def test_a_group_of_many_members_is_restored_whole(coordinator: ServiceBroker, heir: ServiceBroker) -> None:
    coordinator.together(*(f"instance-{number}" for number in range(200)))
    before = coordinator.known()
    dies(coordinator, heir)
    assert heir.known() == before and before is not None and len(before.members) == 200


def test_the_last_member_leaves_after_another_broker_has_registered(
    group_session: ZooKeeperSession, coordinator: ServiceBroker, heir: ServiceBroker
) -> None:
    """What it knew of the brokers was outdated: it gave up, and took those for members that had left."""
    member = coordinator.joined()
    heir.held.release()
    coordinator.see()
    heir.register()
    coordinator.see()
    assert coordinator.leave(member) is ErrorCode.NONE
    coordinator.settle()
    assert group_session.exists(znodes.group(GROUP)) is None
    assert coordinator.listed() == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_members_go_on_although_the_answer_to_their_storing_was_lost(
    group_session: ZooKeeperSession,
    coordinator: ServiceBroker,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were taken for another coordinator's, joined again, and read twice what was not committed."""
    group_session.ensure_path(znodes.group(GROUP))
    member = None if is_first else coordinator.joined()
    begin = group_session.transaction

    def run_twice(run: Callable[[], Any]) -> Any:
        monkeypatch.setattr(group_session, "transaction", begin)
        run()
        return group_session._call(run)

    def interrupted() -> Transaction:
        return Transaction(group_session._client.transaction, run_twice)

    monkeypatch.setattr(group_session, "transaction", interrupted)
    if member is None:
        member = coordinator.joined()
    else:
        (member,) = coordinator.join(member_id=member.member_id)
        coordinator.begin(member)
    assert coordinator.heartbeat(member) is ErrorCode.NONE
    codes = coordinator.commit(5, member)
    coordinator.settle()
    assert codes == [ErrorCode.NONE]
