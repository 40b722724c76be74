"""The group protocol's state machine: scenarios by hand, then members doing anything in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fix_group_brokers import HeldGenerations
from headrace.broker.groups.coordinator import GroupCoordinator, coordinator_for
from headrace.broker.groups.types import GroupState, Join, JoinReply, MemberProtocol, Sync, SyncReply
from headrace.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 200


@dataclass
class CoordinatorBench:
    """A coordinator, a clock, and the responses to each request."""

    now_ms: int = 1_000
    mine: bool = True
    coordinator: GroupCoordinator = field(init=False)
    generations: HeldGenerations = field(init=False)

    def __post_init__(self) -> None:
        ids = itertools.count(1)
        self.generations = HeldGenerations(lambda: self.now_ms)
        self.coordinator = GroupCoordinator(
            coordinates=lambda group_id: self.mine,
            new_member_id=lambda client_id: f"{client_id}-{next(ids)}",
            store=self.generations.store,
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
        session_ms: int = SESSION_MS,
        host: str = "/127.0.0.1",
    ) -> list[JoinReply]:
        responses: list[JoinReply] = []
        request = Join(
            group_id="g",
            member_id=member_id,
            group_instance_id=instance_id,
            client_id="c",
            client_host=host,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_member=known,
        )
        self.coordinator.join(request, self.now_ms, responses.append)
        return responses

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None
    ) -> list[SyncReply]:
        responses: list[SyncReply] = []
        request = Sync(
            group_id="g",
            member_id=member_id,
            group_instance_id=None,
            generation_id=generation_id,
            protocol_type=None,
            protocol_name=None,
            assignments=assignments or {},
        )
        self.coordinator.sync(request, self.now_ms, responses.append)
        return responses

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
    bench = CoordinatorBench()
    first, second = bench.join(), bench.join()
    assert first == second == []
    bench.wait(DELAY_MS - 1)
    assert first == []
    bench.wait(1)
    [leader], [follower] = first, second
    assert leader.generation_id == follower.generation_id == 1
    assert leader.leader_id == follower.leader_id == leader.member_id
    assert [m.member_id for m in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()


def test_clients_that_know_kip_394_get_a_member_id_before_they_join() -> None:
    bench = CoordinatorBench()
    [promise] = bench.join(known=True)
    assert promise.error is ErrorCode.MEMBER_ID_REQUIRED
    responses = bench.join(promise.member_id, known=True)
    bench.wait(DELAY_MS)
    assert [a.error for a in responses] == [ErrorCode.NONE]
    assert responses[0].member_id == promise.member_id


def test_an_unused_member_id_delays_the_group_only_until_it_expires() -> None:
    bench = CoordinatorBench()
    responses = bench.join()
    bench.join(known=True)
    bench.wait(DELAY_MS)
    assert responses == []
    bench.wait(SESSION_MS)
    assert [a.error for a in responses] == [ErrorCode.NONE]


def test_a_third_member_starts_a_new_generation() -> None:
    bench = CoordinatorBench()
    leader, follower = bench.stable_pair()
    newcomer = bench.join()
    assert newcomer == []
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = bench.join(leader.member_id), bench.join(follower.member_id)
    assert newcomer[0].generation_id == again[0][0].generation_id == again[1][0].generation_id == 2
    assert len(again[0][0].members) == 3


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    bench = CoordinatorBench()
    leader, follower = bench.stable_pair()
    bench.wait(SESSION_MS - 1)
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    bench.wait(1)
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    [alone] = bench.join(leader.member_id)
    assert [m.member_id for m in alone.members] == [leader.member_id]


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    bench = CoordinatorBench()
    leader, follower = bench.stable_pair()
    newcomer = bench.join()
    for _ in range(REBALANCE_MS // 5_000):
        bench.wait(5_000)
        bench.heartbeat(leader.member_id, 1)
        bench.heartbeat(follower.member_id, 1)
    [reply] = newcomer
    assert reply.leader_id == reply.member_id
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_syncs_loses_the_group() -> None:
    bench = CoordinatorBench()
    first, second = bench.join(), bench.join()
    bench.wait(DELAY_MS)
    leader, follower = first[0], second[0]
    waiting = bench.sync(follower.member_id, 1)
    bench.wait(SESSION_MS)
    assert [r.error for r in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    [alone] = bench.join(follower.member_id)
    assert alone.leader_id == follower.member_id


def test_leaving_rebalances_and_the_last_leave_empties_the_group() -> None:
    bench = CoordinatorBench()
    leader, follower = bench.stable_pair()
    assert bench.coordinator.leave("g", leader.member_id, None, bench.now_ms) is ErrorCode.NONE
    [alone] = bench.join(follower.member_id)
    assert alone.leader_id == follower.member_id
    assert bench.coordinator.leave("g", follower.member_id, None, bench.now_ms) is ErrorCode.NONE
    assert bench.coordinator.groups() == []
    assert bench.coordinator.refuse_delete("g") is ErrorCode.NONE


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    bench = CoordinatorBench()
    lead, follow = bench.join(instance_id="one"), bench.join(instance_id="two")
    bench.wait(DELAY_MS)
    leader, follower = lead[0], follow[0]
    bench.sync(follower.member_id, 1)
    bench.sync(leader.member_id, 1, {follower.member_id: b"F"})
    [back] = bench.join(instance_id="two")
    assert (back.error, back.generation_id) == (ErrorCode.NONE, 1)
    assert back.member_id != follower.member_id
    assert [r.assignment for r in bench.sync(back.member_id, 1)] == [b"F"]
    assert (
        bench.coordinator.heartbeat("g", follower.member_id, "two", 1, bench.now_ms)
        is ErrorCode.FENCED_INSTANCE_ID
    )


def test_a_restarted_static_member_brings_its_settings() -> None:
    """It was given a longer session; the group kept the old one, and removed it."""
    bench = CoordinatorBench()
    lead, follow = bench.join(instance_id="one", session_ms=90_000), bench.join(instance_id="two")
    bench.wait(DELAY_MS)
    bench.sync(follow[0].member_id, 1)
    bench.sync(lead[0].member_id, 1, {follow[0].member_id: b"F"})
    [back] = bench.join(instance_id="two", session_ms=60_000, host="/127.0.0.2")
    assert back.generation_id == 1
    assert bench.heartbeat(back.member_id, 1) is ErrorCode.NONE
    bench.wait(SESSION_MS + 1)
    assert bench.heartbeat(back.member_id, 1) is ErrorCode.NONE
    _, group = bench.coordinator.describe("g")
    assert group is not None
    assert [member.client_host for member in group.members] == ["/127.0.0.1", "/127.0.0.2"]


def test_a_leader_that_dies_before_it_assigns_takes_no_other_member_along() -> None:
    """Members send no heartbeats while they wait for their part: their sessions ended with the leader's."""
    bench = CoordinatorBench()
    first, second = bench.join(), bench.join(session_ms=SESSION_MS + 5)
    bench.wait(DELAY_MS)
    waiting = bench.sync(second[0].member_id, first[0].generation_id)
    bench.wait(SESSION_MS)
    assert [r.error for r in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS]
    bench.wait(100)  # a client pauses before it joins again
    [again] = bench.join(second[0].member_id)
    assert (again.error, again.generation_id, len(again.members)) == (ErrorCode.NONE, 2, 1)


def test_a_member_named_by_nothing_keeps_its_place_when_another_one_leaves() -> None:
    """The empty instance id is one, too. It was forgotten with any member that has none."""
    bench = CoordinatorBench()
    named, other = bench.join(instance_id=""), bench.join()
    bench.wait(DELAY_MS)
    bench.coordinator.leave("g", other[0].member_id, None, bench.now_ms)
    [alone] = bench.join(named[0].member_id)
    assert bench.heartbeat(alone.member_id, alone.generation_id) is ErrorCode.NONE
    [back] = bench.join(instance_id="")
    assert len(back.members) == 1


def test_a_static_member_that_is_away_for_longer_than_a_rebalance_keeps_its_place() -> None:
    """It was removed with the rebalance timeout, although its session was not over: all rebalanced again."""
    bench = CoordinatorBench()
    lead, away = bench.join(), bench.join(instance_id="away", session_ms=10 * REBALANCE_MS)
    bench.wait(DELAY_MS)
    leader, absent = lead[0], away[0]
    bench.sync(leader.member_id, 1, {absent.member_id: b"A"})
    again = bench.join(leader.member_id)
    bench.wait(REBALANCE_MS)
    [second] = again
    assert (second.generation_id, len(second.members)) == (2, 2)
    bench.sync(leader.member_id, 2, {absent.member_id: b"A"})
    assert bench.heartbeat(absent.member_id, 1) is ErrorCode.ILLEGAL_GENERATION
    [back] = bench.join(instance_id="away", session_ms=10 * REBALANCE_MS)
    assert (back.error, back.generation_id) == (ErrorCode.NONE, 2)
    assert [r.assignment for r in bench.sync(back.member_id, 2)] == [b"A"]


def test_a_static_leader_that_is_away_leads_no_more_and_leaves_with_its_session() -> None:
    bench = CoordinatorBench()
    away, follow = bench.join(instance_id="away", session_ms=2 * REBALANCE_MS), bench.join()
    bench.wait(DELAY_MS)
    bench.sync(away[0].member_id, 1, {})
    again = bench.join(follow[0].member_id, protocols=(MemberProtocol("range", b"changed"),))
    bench.wait(REBALANCE_MS)
    [leader] = again
    assert leader.leader_id == leader.member_id == follow[0].member_id
    bench.sync(leader.member_id, 2, {})
    bench.coordinator.leave("g", leader.member_id, None, bench.now_ms)
    bench.wait(REBALANCE_MS - 1 - DELAY_MS)
    [group] = bench.coordinator.groups()
    assert group.state is GroupState.PREPARING_REBALANCE
    bench.wait(2 * DELAY_MS)
    assert bench.coordinator.groups() == []


def test_the_protocol_with_most_votes_wins_and_unknown_protocols_are_refused() -> None:
    bench = CoordinatorBench()
    sticky_first = (MemberProtocol("sticky", b""), MemberProtocol("range", b""))
    range_first = (MemberProtocol("range", b""), MemberProtocol("sticky", b""))
    responses = [bench.join(protocols=p) for p in (sticky_first, sticky_first, range_first)]
    bench.wait(DELAY_MS)
    assert {a[0].protocol_name for a in responses} == {"sticky"}
    [refused] = bench.join(protocols=(MemberProtocol("own", b""),))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    [refused] = bench.join(protocol_type="connect")
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_only_the_present_generation_may_commit() -> None:
    bench = CoordinatorBench()
    assert bench.coordinator.check_commit("g", "", None, -1) is ErrorCode.NONE
    leader, _ = bench.stable_pair()
    assert bench.coordinator.check_commit("g", leader.member_id, None, 1) is ErrorCode.NONE
    assert bench.coordinator.check_commit("g", leader.member_id, None, 0) is ErrorCode.ILLEGAL_GENERATION
    assert bench.coordinator.check_commit("g", "nobody", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.coordinator.check_commit("g", "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.coordinator.refuse_delete("g") is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_moves_to_another_broker_answers_all_parked_requests() -> None:
    bench = CoordinatorBench()
    leader, follower = bench.stable_pair()
    newcomer = bench.join()
    bench.mine = False
    bench.coordinator.brokers_changed()
    assert [r.error for r in newcomer] == [ErrorCode.NOT_COORDINATOR]
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.NOT_COORDINATOR
    bench.mine = True
    assert bench.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


@given(st.sets(st.integers(0, 50), min_size=1, max_size=8), st.text(min_size=1, max_size=20))
def test_a_group_moves_only_when_its_own_broker_leaves(brokers: set[int], group_id: str) -> None:
    home = coordinator_for(group_id, brokers)
    assert home in brokers
    for other in brokers - {home}:
        assert coordinator_for(group_id, brokers - {other}) == home
    assert coordinator_for(group_id, []) is None


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["join", "sync", "beat", "leave", "wait", "hold", "release"]),
        st.integers(0, 4),
        st.integers(1, 12_000),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_under_random_member_actions_every_request_ends_and_every_member_expires(
    actions: list[tuple[str, int, int]],
) -> None:
    bench = CoordinatorBench()
    joins: list[list[JoinReply]] = []
    syncs: list[list[SyncReply]] = []
    latest: dict[int, JoinReply] = {}
    pending: dict[int, list[JoinReply]] = {}
    for action, member, ms in actions:
        if pending.get(member):
            latest[member] = pending.pop(member)[0]
        known = latest.get(member)
        if action == "wait":
            bench.wait(ms)
        elif action == "hold":
            bench.generations.is_held = True
        elif action == "release":
            bench.generations.is_held = False
            bench.generations.release()
        elif action == "join" and member not in pending:
            alive = known is not None and known.error is ErrorCode.NONE
            pending[member] = bench.join(known.member_id if known is not None and alive else "")
            joins.append(pending[member])
        elif known is not None and action == "sync":
            parts = {m.member_id: m.member_id.encode() for m in known.members}
            syncs.append(bench.sync(known.member_id, known.generation_id, parts))
        elif known is not None and action == "beat":
            bench.heartbeat(known.member_id, known.generation_id)
        elif known is not None and action == "leave":
            bench.coordinator.leave("g", known.member_id, None, bench.now_ms)
        for group in bench.coordinator.groups():
            if group.state is GroupState.STABLE:
                _, described = bench.coordinator.describe(group.group_id)
                assert described is not None and described.members
    bench.generations.is_held = False
    bench.generations.release()
    for _ in range(3):
        bench.wait(REBALANCE_MS + SESSION_MS)
    assert bench.generations.stored.get("g") is None
    assert all(len(responses) == 1 for responses in joins)
    assert all(len(responses) == 1 for responses in syncs)
    assert bench.coordinator.groups() == []
