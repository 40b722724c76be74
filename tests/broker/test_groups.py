"""The group protocol's state machine: scenarios by hand, then members doing anything in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.groups.coordinator import GroupCoordinator, coordinator_for
from headrace.broker.groups.types import GroupState, Join, JoinReply, MemberProtocol, Sync, SyncReply
from headrace.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 200


@dataclass
class Room:
    """A coordinator, a clock, and the responses to each request."""

    now_ms: int = 1_000
    mine: bool = True
    coordinator: GroupCoordinator = field(init=False)

    def __post_init__(self) -> None:
        ids = itertools.count(1)
        self.coordinator = GroupCoordinator(
            coordinates=lambda group_id: self.mine,
            new_member_id=lambda client_id: f"{client_id}-{next(ids)}",
            initial_delay_ms=DELAY_MS,
        )

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[MemberProtocol, ...] = (MemberProtocol("range", b"m"),),
        known: bool = False,
        protocol_type: str = "consumer",
    ) -> list[JoinReply]:
        answers: list[JoinReply] = []
        request = Join(
            group_id="g",
            member_id=member_id,
            group_instance_id=instance_id,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_member=known,
        )
        self.coordinator.join(request, self.now_ms, answers.append)
        return answers

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None
    ) -> list[SyncReply]:
        answers: list[SyncReply] = []
        request = Sync(
            group_id="g",
            member_id=member_id,
            group_instance_id=None,
            generation_id=generation_id,
            protocol_type=None,
            protocol_name=None,
            assignments=assignments or {},
        )
        self.coordinator.sync(request, self.now_ms, answers.append)
        return answers

    def heartbeat(self, member_id: str, generation_id: int) -> ErrorCode:
        return self.coordinator.heartbeat("g", member_id, None, generation_id, self.now_ms)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.coordinator.expire_and_advance(self.now_ms)

    def stable_pair(self) -> tuple[JoinReply, JoinReply]:
        """Two members in a stable group: (leader, follower)."""
        first, second = self.join(), self.join()
        self.wait(DELAY_MS)
        [leader], [follower] = first, second
        waiting = self.sync(follower.member_id, leader.generation_id)
        assignments = {leader.member_id: b"L", follower.member_id: b"F"}
        assert [r.assignment for r in self.sync(leader.member_id, leader.generation_id, assignments)] == [
            b"L"
        ]
        assert [r.assignment for r in waiting] == [b"F"]
        return leader, follower


def test_an_empty_group_waits_for_members_and_then_names_one_leader() -> None:
    room = Room()
    first, second = room.join(), room.join()
    assert first == second == []
    room.wait(DELAY_MS - 1)
    assert first == []
    room.wait(1)
    [leader], [follower] = first, second
    assert leader.generation_id == follower.generation_id == 1
    assert leader.leader_id == follower.leader_id == leader.member_id
    assert [m.member_id for m in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()


def test_clients_that_know_kip_394_get_a_member_id_before_they_join() -> None:
    room = Room()
    [promise] = room.join(known=True)
    assert promise.error is ErrorCode.MEMBER_ID_REQUIRED
    answers = room.join(promise.member_id, known=True)
    room.wait(DELAY_MS)
    assert [a.error for a in answers] == [ErrorCode.NONE]
    assert answers[0].member_id == promise.member_id


def test_an_unused_member_id_delays_the_group_only_until_it_expires() -> None:
    room = Room()
    answers = room.join()
    room.join(known=True)
    room.wait(DELAY_MS)
    assert answers == []
    room.wait(SESSION_MS)
    assert [a.error for a in answers] == [ErrorCode.NONE]


def test_a_third_member_starts_a_new_generation() -> None:
    room = Room()
    leader, follower = room.stable_pair()
    newcomer = room.join()
    assert newcomer == []
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = room.join(leader.member_id), room.join(follower.member_id)
    assert newcomer[0].generation_id == again[0][0].generation_id == again[1][0].generation_id == 2
    assert len(again[0][0].members) == 3


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    room = Room()
    leader, follower = room.stable_pair()
    room.wait(SESSION_MS - 1)
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    room.wait(1)
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert room.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    [alone] = room.join(leader.member_id)
    assert [m.member_id for m in alone.members] == [leader.member_id]


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    room = Room()
    leader, follower = room.stable_pair()
    newcomer = room.join()
    for _ in range(REBALANCE_MS // 5_000):
        room.wait(5_000)
        room.heartbeat(leader.member_id, 1)
        room.heartbeat(follower.member_id, 1)
    [reply] = newcomer
    assert reply.leader_id == reply.member_id
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_syncs_loses_the_group() -> None:
    room = Room()
    first, second = room.join(), room.join()
    room.wait(DELAY_MS)
    leader, follower = first[0], second[0]
    waiting = room.sync(follower.member_id, 1)
    room.wait(SESSION_MS)
    assert [r.error for r in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    [alone] = room.join(follower.member_id)
    assert alone.leader_id == follower.member_id


def test_leaving_rebalances_and_the_last_leave_empties_the_group() -> None:
    room = Room()
    leader, follower = room.stable_pair()
    assert room.coordinator.leave("g", leader.member_id, None, room.now_ms) is ErrorCode.NONE
    [alone] = room.join(follower.member_id)
    assert alone.leader_id == follower.member_id
    assert room.coordinator.leave("g", follower.member_id, None, room.now_ms) is ErrorCode.NONE
    assert room.coordinator.groups() == []
    assert room.coordinator.refuse_delete("g") is ErrorCode.NONE


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    room = Room()
    lead, follow = room.join(instance_id="one"), room.join(instance_id="two")
    room.wait(DELAY_MS)
    leader, follower = lead[0], follow[0]
    room.sync(follower.member_id, 1)
    room.sync(leader.member_id, 1, {follower.member_id: b"F"})
    [back] = room.join(instance_id="two")
    assert (back.error, back.generation_id) == (ErrorCode.NONE, 1)
    assert back.member_id != follower.member_id
    assert [r.assignment for r in room.sync(back.member_id, 1)] == [b"F"]
    assert (
        room.coordinator.heartbeat("g", follower.member_id, "two", 1, room.now_ms)
        is ErrorCode.FENCED_INSTANCE_ID
    )


def test_the_protocol_with_most_votes_wins_and_unknown_protocols_are_refused() -> None:
    room = Room()
    sticky_first = (MemberProtocol("sticky", b""), MemberProtocol("range", b""))
    range_first = (MemberProtocol("range", b""), MemberProtocol("sticky", b""))
    answers = [room.join(protocols=p) for p in (sticky_first, sticky_first, range_first)]
    room.wait(DELAY_MS)
    assert {a[0].protocol_name for a in answers} == {"sticky"}
    [refused] = room.join(protocols=(MemberProtocol("own", b""),))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    [refused] = room.join(protocol_type="connect")
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_only_the_present_generation_may_commit() -> None:
    room = Room()
    assert room.coordinator.refuse_commit("g", "", None, -1) is ErrorCode.NONE
    leader, _ = room.stable_pair()
    assert room.coordinator.refuse_commit("g", leader.member_id, None, 1) is ErrorCode.NONE
    assert room.coordinator.refuse_commit("g", leader.member_id, None, 0) is ErrorCode.ILLEGAL_GENERATION
    assert room.coordinator.refuse_commit("g", "nobody", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert room.coordinator.refuse_commit("g", "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert room.coordinator.refuse_delete("g") is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_moves_to_another_broker_answers_all_parked_requests() -> None:
    room = Room()
    leader, follower = room.stable_pair()
    newcomer = room.join()
    room.mine = False
    room.coordinator.brokers_changed()
    assert [r.error for r in newcomer] == [ErrorCode.NOT_COORDINATOR]
    assert room.heartbeat(leader.member_id, 1) is ErrorCode.NOT_COORDINATOR
    room.mine = True
    assert room.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


@given(st.sets(st.integers(0, 50), min_size=1, max_size=8), st.text(min_size=1, max_size=20))
def test_a_group_moves_only_when_its_own_broker_leaves(brokers: set[int], group_id: str) -> None:
    home = coordinator_for(group_id, brokers)
    assert home in brokers
    for other in brokers - {home}:
        assert coordinator_for(group_id, brokers - {other}) == home
    assert coordinator_for(group_id, []) is None


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["join", "sync", "beat", "leave", "wait"]), st.integers(0, 4), st.integers(1, 12_000)
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_under_random_member_actions_every_request_ends_and_every_member_expires(
    actions: list[tuple[str, int, int]],
) -> None:
    room = Room()
    joins: list[list[JoinReply]] = []
    syncs: list[list[SyncReply]] = []
    latest: dict[int, JoinReply] = {}
    pending: dict[int, list[JoinReply]] = {}
    for action, member, ms in actions:
        if pending.get(member):
            latest[member] = pending.pop(member)[0]
        known = latest.get(member)
        if action == "wait":
            room.wait(ms)
        elif action == "join" and member not in pending:
            alive = known is not None and known.error is ErrorCode.NONE
            pending[member] = room.join(known.member_id if known is not None and alive else "")
            joins.append(pending[member])
        elif known is not None and action == "sync":
            parts = {m.member_id: m.member_id.encode() for m in known.members}
            syncs.append(room.sync(known.member_id, known.generation_id, parts))
        elif known is not None and action == "beat":
            room.heartbeat(known.member_id, known.generation_id)
        elif known is not None and action == "leave":
            room.coordinator.leave("g", known.member_id, None, room.now_ms)
        for group in room.coordinator.groups():
            if group.state is GroupState.STABLE:
                assert group.members
    for _ in range(3):
        room.wait(REBALANCE_MS + SESSION_MS)
    assert all(len(answers) == 1 for answers in joins)
    assert all(len(answers) == 1 for answers in syncs)
    assert room.coordinator.groups() == []
