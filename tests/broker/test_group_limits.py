"""Bounds of the group coordinator, and what its requests cost when it has many groups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_group_brokers import HeldGenerations
from headrace.broker.groups import coordinator as coordinator_module
from headrace.broker.groups import group as group_module
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.deadlines import OUTDATED_MAX, Deadlines
from headrace.broker.groups.group import Group
from headrace.broker.groups.types import (
    MEMBER_METADATA_MAX_BYTES,
    MEMBER_OVERHEAD_BYTES,
    PROTOCOLS_MAX,
    GroupLimits,
    Join,
    JoinReply,
    MemberProtocol,
    Sync,
    SyncReply,
)
from headrace.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
RANGE = (MemberProtocol("range", b"m"),)


class LimitsBench:
    """A coordinator with a clock; `join` returns the error that comes at once, or None."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        ids = itertools.count(1)
        self.now_ms = 1_000
        self.coordinator = GroupCoordinator(
            coordinates=lambda _: True,
            new_member_id=lambda _: f"m-{next(ids)}",
            store=HeldGenerations(lambda: self.now_ms).store,
            initial_delay_ms=0,
            limits=limits or GroupLimits(),
        )
        self.replies: list[JoinReply] = []

    def join(
        self,
        group_id: str,
        protocols: tuple[MemberProtocol, ...] = RANGE,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
        known: bool = False,
        protocol_type: str = "consumer",
        client_id: str = "c",
    ) -> ErrorCode | None:
        request = Join(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            client_id=client_id,
            client_host="127.0.0.1",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_member=known,
        )
        replies: list[JoinReply] = []
        self.coordinator.join(request, self.now_ms, replies.append)
        self.replies += replies
        return replies[0].error if replies else None

    def sync(
        self, group_id: str, member_id: str, assignment: bytes = b"", *, generation_id: int = 1
    ) -> ErrorCode:
        request = Sync(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=None,
            generation_id=generation_id,
            protocol_type=None,
            protocol_name=None,
            assignments={member_id: assignment},
        )
        replies: list[SyncReply] = []
        self.coordinator.sync(request, self.now_ms, replies.append)
        return replies[0].error

    def wait(self, ms: int) -> int:
        self.now_ms += ms
        return self.coordinator.expire_and_advance(self.now_ms)


def test_session_timeouts_are_within_the_settings() -> None:
    bench = LimitsBench(GroupLimits(6_000, 60_000))
    assert bench.join("g", session_ms=5_999) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert bench.join("g", session_ms=60_001) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert bench.join("g", session_ms=6_000) is ErrorCode.NONE


def test_a_group_has_at_most_group_max_size_members_and_a_static_one_may_restart() -> None:
    bench = LimitsBench(GroupLimits(members_max=3))
    assert bench.join("g", instance_id="a") is ErrorCode.NONE
    assert bench.join("g", instance_id="b") is None
    assert bench.join("g", known=True) is ErrorCode.MEMBER_ID_REQUIRED
    assert bench.join("g") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join("g", instance_id="c") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join("g", instance_id="b") is not ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join("other") is ErrorCode.NONE


def test_what_a_member_may_say_of_itself_is_bounded() -> None:
    bench = LimitsBench()
    many = tuple(MemberProtocol(f"p-{number}", b"") for number in range(PROTOCOLS_MAX + 1))
    assert bench.join("g", many) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join("g", many[:-1]) is ErrorCode.NONE
    large = (MemberProtocol("range", bytes(MEMBER_METADATA_MAX_BYTES)),)
    assert bench.join("g-2", large) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_metadata_of_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "GROUP_METADATA_MAX_BYTES", 100_000)
    bench = LimitsBench()
    large = (MemberProtocol("range", bytes(40_000)),)
    answers = [bench.join("g", large) for _ in range(4)]
    assert answers == [
        ErrorCode.NONE,
        None,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


@pytest.mark.parametrize("client_id", ["c", "c" * 30_000])
def test_members_that_say_nothing_of_themselves_take_memory_all_the_same(
    monkeypatch: pytest.MonkeyPatch, client_id: str
) -> None:
    """With an empty protocol without metadata they counted as nothing: 30,000 of them took a GB."""
    monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 100_000)
    bench = LimitsBench()
    silent = (MemberProtocol("", b""),)
    answers = [bench.join(f"g-{number}", silent, client_id=client_id) for number in range(200)]
    fitting = 100_000 // (MEMBER_OVERHEAD_BYTES + len(client_id))
    assert answers == [ErrorCode.NONE] * fitting + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * (200 - fitting)


def test_a_member_of_a_full_table_may_join_again_but_not_under_a_longer_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = LimitsBench()
    assert bench.join("g", instance_id="a") is ErrorCode.NONE
    bench.sync("g", bench.replies[0].member_id, bytes(10_000))
    monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 1_000)
    assert bench.join("g", instance_id="a", client_id="c" * 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.join("g", instance_id="a") is not ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_memory_of_all_groups_is_bounded_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 100_000)
    bench = LimitsBench()
    large = (MemberProtocol("range", bytes(30_000)),)
    answers = [bench.join(f"g-{number}", large) for number in range(5)]
    assert answers == [ErrorCode.NONE] * 3 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    first = bench.replies[0].member_id
    assert bench.sync("g-0", first, bytes(30_000)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.coordinator.leave("g-1", bench.replies[1].member_id, None, bench.now_ms)
    assert bench.sync("g-0", first, bytes(20_000)) is ErrorCode.NONE
    assert bench.join("g-6", large) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.wait(REBALANCE_MS + SESSION_MS)
    assert bench.coordinator.groups() == []
    assert bench.join("g-7", large) is ErrorCode.NONE


def test_names_of_members_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of static members took 3 MB each, without a bound."""
    monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 100_000)
    bench = LimitsBench()
    assert bench.join("g", instance_id="x" * MEMBER_METADATA_MAX_BYTES) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.join("g", protocol_type="x" * 256) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join("g-1", instance_id="x" * 60_000) is ErrorCode.NONE
    assert bench.join("g-2", instance_id="x" * 60_000) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.wait(REBALANCE_MS + SESSION_MS)
    assert bench.join("g-2", instance_id="x" * 60_000) is ErrorCode.NONE


@pytest.mark.parametrize("of", ["a group", "all groups"])
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_members_that_ask_for_no_more_than_they_have_join_again_at_the_bound(
    monkeypatch: pytest.MonkeyPatch, of: str, instance_id: str | None
) -> None:
    """Each was counted as a newcomer besides: a full group lost all its members with the next rebalance."""
    if of == "a group":
        monkeypatch.setattr(group_module, "GROUP_METADATA_MAX_BYTES", 100_000)
    else:
        monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 100_000)
    bench = LimitsBench()
    large = (MemberProtocol("range", bytes(40_000)),)
    assert bench.join("g", large, instance_id=instance_id) is ErrorCode.NONE
    member = bench.replies[0].member_id
    assert bench.sync("g", member, bytes(40_000)) is ErrorCode.NONE
    assert bench.join("g", large) in (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert bench.join("g", large, member_id=member, instance_id=instance_id) is ErrorCode.NONE
    assert bench.sync("g", member, bytes(40_000), generation_id=2) is ErrorCode.NONE
    if instance_id is not None:
        assert bench.join("g", large, instance_id=instance_id) is ErrorCode.NONE


def test_ids_of_members_that_never_join_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "ALL_METADATA_MAX_BYTES", 10_000)
    bench = LimitsBench()
    answers = [bench.join(f"g-{number}", known=True) for number in range(100)]
    assert answers.count(ErrorCode.MEMBER_ID_REQUIRED) < 25
    bench.wait(SESSION_MS)
    assert bench.coordinator.groups() == []


@pytest.mark.parametrize("groups", [10, 1_000])
def test_a_request_looks_at_its_own_group_alone(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LimitsBench()
    for number in range(groups):
        assert bench.join(f"g-{number}") is ErrorCode.NONE
    looked_at: list[str] = []
    look = Group.next_deadline_ms

    def counted(group: Group) -> int | None:
        looked_at.append(group.group_id)
        return look(group)

    monkeypatch.setattr(Group, "next_deadline_ms", counted)
    member = bench.replies[3].member_id
    assert bench.sync("g-3", member) is ErrorCode.NONE
    for _ in range(20):
        bench.coordinator.heartbeat("g-3", member, None, 1, bench.now_ms)
        bench.coordinator.next_deadline_ms()
    assert set(looked_at) == {"g-3"}
    assert len(looked_at) == 2, "a heartbeat only puts off the group's deadline"


def test_only_groups_whose_deadline_was_reached_are_looked_at() -> None:
    bench = LimitsBench()
    for number in range(1_000):
        bench.join(f"g-{number}", session_ms=SESSION_MS + number)
        assert bench.sync(f"g-{number}", bench.replies[number].member_id) is ErrorCode.NONE
    assert bench.wait(SESSION_MS - 1) == 0
    assert bench.wait(1 + 9) == 10
    assert len(bench.coordinator.groups()) == 990
    kept = bench.replies[500].member_id
    assert bench.coordinator.heartbeat("g-500", kept, None, 1, bench.now_ms) is ErrorCode.NONE
    assert bench.wait(REBALANCE_MS) >= 990
    bench.wait(0)
    assert bench.coordinator.groups() == []


# --- deadlines ---


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 100), st.booleans()), max_size=200))
def test_deadlines_come_up_no_later_than_the_earliest_that_was_put(
    puts: list[tuple[str, int, bool]],
) -> None:
    deadlines = Deadlines()
    model: dict[str, int] = {}
    for group_id, deadline_ms, removes in puts:
        if removes:
            deadlines.remove(group_id)
            model.pop(group_id, None)
        else:
            deadlines.put(group_id, deadline_ms)
            model[group_id] = min(deadline_ms, model.get(group_id, deadline_ms))
        assert deadlines.first_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
    due = deadlines.take_due(50)
    assert sorted(due) == sorted(group_id for group_id, ms in model.items() if ms <= 50)
    assert deadlines.take_due(50) == []


def test_outdated_entries_do_not_pile_up() -> None:
    deadlines = Deadlines()
    deadlines.put("first", 0)
    for number in range(50_000):
        deadlines.put("g", 1_000_000 - number)
    assert len(deadlines._heap) <= 2 + OUTDATED_MAX
    assert deadlines.first_ms() == 0
