"""What the controller decides: for any state and any brokers, by Hypothesis; and the cases of the book."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fix_leadership import IDS, MINIMA, NONE, SETS, at, below, brokers, decided, states
from headrace.broker.leadership.controller import leaderless_warnings
from headrace.broker.leadership.decisions import (
    Brokers,
    cancel,
    complete,
    elect,
    is_unclean,
    prefer,
    reassign,
    without,
)
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.topics import NO_LEADER, ElrBelow, PartitionState


def check(before: PartitionState, after: PartitionState) -> None:
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert set(after.isr) <= set(after.replicas)
    assert set(after.elr) <= set(after.replicas) - set(after.isr)
    assert set(after.elr) <= {*before.isr, *before.elr}, "nobody is eligible that was not in sync before"
    assert after.leader_epoch >= before.leader_epoch
    if not set(before.replicas) <= set(after.replicas):
        assert after.leader_epoch > before.leader_epoch, "what the leader knows of it is void"
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch


@given(states(), brokers(), MINIMA, st.booleans())
def test_an_election_keeps_what_must_hold_in_every_state(
    state: PartitionState, known: Brokers, minimum: ElrBelow, unclean: bool
) -> None:
    after = elect(state, known, minimum, unclean=unclean)
    check(state, after)
    if state.replicas == (state.leader,):
        assert after == state, "nobody else can lead it: it waits for its broker without an election"
        return
    assert after.replicas == state.replicas
    assert after.leader == NO_LEADER or after.leader in known.alive
    assert after.isr, "somebody keeps what was acknowledged"
    have_all = {*state.isr, *state.elr}
    if not is_unclean(state, after, known):
        assert set(after.isr) <= have_all, "an election makes nobody in sync"
        assert set(after.isr) <= set(state.isr) or not set(state.isr) & known.alive
    else:
        assert unclean and not have_all & known.alive and not after.elr
    if have_all & known.alive or (unclean and set(state.replicas) & known.alive):
        assert after.leader != NO_LEADER
    if state.leader in known.bounced:
        assert after.leader_epoch > state.leader_epoch, "its old self must not go on"
    if after.leader != NO_LEADER:
        assert set(after.isr) <= known.alive
    once_more = replace(known, bounced=frozenset())
    assert elect(after, once_more, minimum, unclean=unclean) == after, "nothing changes twice"


def test_the_log_says_what_gives_a_partition_a_leader_again() -> None:
    def lost(number: int, isr: tuple[int, ...]) -> PartitionChange:
        before = PartitionState(1, 4, (1, 2), (1,))
        return PartitionChange("t", number, before, replace(before, leader=NO_LEADER, isr=isr), {})

    assert leaderless_warnings([]) == []
    assert leaderless_warnings([lost(number, (1,)) for number in range(12)]) == [
        "without a leader until a replica returns that was in sync, or is eligible: "
        + ", ".join(f"t-{number}" for number in range(10))
        + " and 2 more"
    ]
    first, second = leaderless_warnings([lost(0, ()), lost(1, (1,))])
    assert first.endswith("is eligible: t-1")
    assert "disks of all in-sync replicas are gone: t-0; bring one of these disks back" in second


@given(states(), st.lists(brokers(), max_size=6), MINIMA)
def test_whatever_happens_the_last_in_sync_stay_known(
    state: PartitionState, history: list[Brokers], minimum: ElrBelow
) -> None:
    """Without unclean elections, a replica in sync was in sync before, or eligible: it has all that was
    acknowledged."""
    first = {*state.isr, *state.elr}
    for known in history:
        state = elect(state, known, minimum, unclean=False)
        assert {*state.isr, *state.elr} <= first


@given(states(), st.sampled_from(IDS), SETS, MINIMA)
def test_a_broker_leaves_only_what_others_can_take(
    state: PartitionState, leaver: int, alive: frozenset[int], minimum: ElrBelow
) -> None:
    after = without(state, leaver, alive, minimum)
    check(state, after)
    assert without(after, leaver, alive, minimum) == after
    in_sync, eligible = (set(each) & alive - {leaver} for each in (state.isr, state.elr))
    if leaver in state.isr and in_sync:
        assert set(after.isr) == set(state.isr) - {leaver} and after.leader != leaver
        assert after.leader in in_sync if state.leader == leaver else after.leader == state.leader
    elif leaver == state.leader and eligible:
        assert after.isr == (after.leader,) and after.leader in eligible, "nobody in sync is alive"
    else:
        assert after == state, "it is waited for"


@given(states(), SETS)
def test_a_preferred_leader_leads_once_it_is_in_sync(state: PartitionState, alive: frozenset[int]) -> None:
    after = prefer(state, alive)
    check(state, after)
    preferred = state.replicas[0]
    assert (after.leader == preferred) == (state.leader == preferred or preferred in set(state.isr) & alive)
    assert prefer(after, alive) == after and after.isr == state.isr


@given(states(), st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True), SETS)
def test_a_reassignment_ends_with_its_targets_or_as_it_was(
    state: PartitionState, targets: list[int], alive: frozenset[int]
) -> None:
    moving = reassign(state, tuple(targets))
    check(state, moving)
    assert (moving.leader, moving.isr) == (state.leader, state.isr)
    assert moving.leader_epoch == state.leader_epoch, "nobody has gone yet"
    assert set(moving.replicas) == set(targets) | set(state.replicas)
    assert reassign(moving, tuple(targets)) == moving
    called_off = cancel(moving, alive)
    check(moving, called_off)
    assert set(called_off.replicas) == set(state.replicas) and called_off.isr == state.isr
    instead = reassign(moving, (*state.replicas[:1], max(IDS) + 1))
    assert set(cancel(instead, alive).replicas) in (set(state.replicas), set(instead.replicas))
    done = complete(moving, alive)
    check(moving, done)
    if not set(targets) <= set(moving.isr):
        assert done == moving, "nobody leaves before all targets are in sync"
    caught_up = moving.with_isr(tuple(dict.fromkeys((*moving.isr, *targets))), NONE)
    settled = complete(caught_up, alive | set(targets))
    check(caught_up, settled)
    assert settled.replicas == tuple(targets) and not settled.adding and not settled.removing
    assert set(settled.isr) == set(targets)
    assert complete(settled, alive) == settled


def test_a_replaced_reassignment_that_is_called_off_leaves_nothing_that_it_added() -> None:
    state = PartitionState(leader=1, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2, 3))
    moving = reassign(state, (1, 2, 4)).with_isr((1, 2, 3, 4), NONE)
    replaced = reassign(moving, (1, 2, 5))
    assert set(replaced.replicas) == {1, 2, 3, 4, 5} and replaced.settled_count == 3
    called_off = cancel(replaced, frozenset({1, 2, 3, 4, 5}))
    assert (set(called_off.replicas), called_off.isr) == ({1, 2, 3}, (1, 2, 3))
    assert called_off.leader_epoch > replaced.leader_epoch


@given(
    states(),
    st.lists(st.sampled_from(IDS), min_size=1, unique=True),
    st.lists(st.sampled_from(IDS), min_size=1, unique=True),
)
def test_a_reassignment_replaces_an_earlier_one(
    state: PartitionState, first: list[int], second: list[int]
) -> None:
    moving = reassign(reassign(state, tuple(first)), tuple(second))
    check(state, moving)
    assert moving.replicas[: len(second)] == tuple(second)
    assert set(moving.isr) <= set(moving.replicas)


def test_the_cases_of_the_book() -> None:
    def after(
        state: PartitionState, alive: set[int], bounced: frozenset[int] = frozenset()
    ) -> PartitionState:
        return elect(state, Brokers(alive, bounced), NONE, unclean=False)

    full = at(1, 4, (1, 2, 3))
    assert after(full, {2, 3}) == at(2, 5, (2, 3)), "a dead leader"
    assert after(full, {1, 3}) == at(1, 4, (1, 3)), (
        "a dead follower: no new epoch, clients need not look again"
    )
    assert after(full, {3}) == at(3, 5, (3,))
    assert after(full, set()) == at(NO_LEADER, 5, (1, 2, 3)), "all at once: each has what was acknowledged"
    assert after(at(2, 5, (2,)), {1, 3}) == at(NO_LEADER, 6, (2,)), "the last one is waited for"
    assert after(at(NO_LEADER, 6, (2,)), {1, 2, 3}) == at(2, 7, (2,)), "and leads when it is back"
    assert after(full, {1, 2, 3}, frozenset({1})) == at(2, 5, (2, 3)), "died and returned, unseen"
    assert after(at(1, 4, (1,)), {1}, frozenset({1})) == at(1, 5, (1,)), "alone: its old self is fenced"


def test_an_unclean_election_is_a_choice() -> None:
    state = at(1, 4, (1,))
    known = Brokers({2, 3})
    assert elect(state, known, NONE, unclean=False) == at(NO_LEADER, 5, (1,))
    elected = elect(state, known, NONE, unclean=True)
    assert elected == at(2, 5, (2,)) and is_unclean(state, elected, known)
    assert not is_unclean(at(1, 4, (1, 2)), at(2, 5, (2,)), known)
    nobody_else = Brokers({1}, {1}, {1: 70})
    elected = elect(state, nobody_else, NONE, unclean=True)
    assert elected == at(1, 5, (1,)) and is_unclean(state, elected, nobody_else), "with an empty disk"


def test_an_unclean_election_prefers_who_had_the_partition() -> None:
    """Who is being added comes first among the replicas, and may have copied nothing yet."""
    state = PartitionState(1, 4, (3, 4, 1, 2), (1,), adding=(3, 4), removing=(1, 2))
    elected = elect(state, Brokers({2, 3, 4}), NONE, unclean=True)
    assert (elected.leader, elected.isr) == (2, (2,))
    assert elect(state, Brokers({3, 4}), NONE, unclean=True).leader == 3, "nobody else is there"
    assert elect(state, Brokers({2, 3}, other_disks={2: 70}), NONE, unclean=True).leader == 3, (
        "an empty disk is worse"
    )


def test_a_broker_with_an_empty_disk_is_not_in_sync() -> None:
    """KIP-903: not even as the last one. A partition with one replica has no other choice."""
    known = Brokers({1, 2}, bounced={1}, other_disks={1: 70})
    assert elect(at(1, 4, (1, 2)), known, NONE, unclean=False) == at(2, 5, (2,))
    assert elect(at(NO_LEADER, 4, (1,)), known, NONE, unclean=False) == at(NO_LEADER, 4, ())
    assert elect(at(NO_LEADER, 4, (1,)), known, NONE, unclean=True) == at(2, 5, (2,))
    assert elect(at(1, 4, (1,), (1,)), known, NONE, unclean=False) == at(1, 4, (1,), (1,))


def test_a_partition_that_was_created_since_is_on_the_present_disk() -> None:
    """Simulated world 920342: alone with its new disk a broker led a new topic before there was a controller.
    The next one took it out of the in-sync set, as the last member: nobody could lead any more.
    """
    known = Brokers({1, 2}, bounced={1}, other_disks={1: 70})
    older, newer = (replace(at(1, 0, (1,)), created_zxid=zxid) for zxid in (69, 71))
    assert elect(older, known, NONE, unclean=False) == at(NO_LEADER, 1, ())
    assert elect(newer, known, NONE, unclean=False) == at(1, 1, (1,))
    assert elect(replace(newer, isr=(1, 2, 3)), known, NONE, unclean=False) == at(2, 1, (2,))
    assert not is_unclean(newer, at(1, 1, (1,)), known) and is_unclean(older, at(1, 1, (1,)), known)


def test_those_that_left_last_are_eligible_until_enough_are_in_sync_again() -> None:
    """KIP-966; simulated world 1601063. All crash. Two are back and count as bounced, while the third seems
    to have stayed up; then it comes back with another disk."""
    two = below(2)
    crashed = Brokers({1, 2, 3}, bounced={2, 3})
    alone = elect(at(3, 4, (2, 3, 1)), crashed, two, unclean=False)
    assert alone == replace(at(1, 5, (1,)), elr=(2, 3))
    other_disk = Brokers({1, 2, 3}, bounced={1}, other_disks={1: 70})
    led = elect(alone, other_disk, two, unclean=False)
    assert led == replace(at(2, 6, (2,)), elr=(3,)) and not is_unclean(alone, led, other_disk)
    assert elect(alone, other_disk, NONE, unclean=False).leader == 2, "they were eligible when they left"
    assert elect(at(3, 4, (2, 3, 1)), crashed, NONE, unclean=False) == at(1, 5, (1,)), "with unflushed acks"
    assert led.with_isr((2, 3), two) == at(2, 6, (2, 3)), "enough are in sync: nobody else is eligible"


def test_an_eligible_replica_is_waited_for_and_leads_when_it_is_back() -> None:
    two = below(2)
    alone = replace(at(1, 5, (1,)), elr=(2,))
    gone = elect(alone, Brokers({3}), two, unclean=False)
    assert gone == replace(at(NO_LEADER, 6, (1,)), elr=(2,)), "broker 3 lacks what was acknowledged"
    led = elect(gone, Brokers({2, 3}, bounced={2}), two, unclean=False)
    assert led == replace(at(2, 7, (2,)), elr=(1,)), "so is the one that was in sync alone"
    no_disk = Brokers({3}, other_disks={2: 70})
    assert elect(gone, no_disk, two, unclean=False) == at(NO_LEADER, 6, (1,)), "an empty disk is not"
    elected = elect(gone, Brokers({3}), two, unclean=True)
    assert elected == at(3, 7, (3,)) and is_unclean(gone, elected, Brokers({3}))


def test_an_eligible_replica_whose_log_is_offline_is_waited_for() -> None:
    two = below(2)
    alone = replace(at(1, 5, (1,)), elr=(2,))
    gone = elect(alone, Brokers({2, 3}), two, unclean=False, offline={2})
    assert gone == replace(at(NO_LEADER, 6, (1,)), elr=(2,))
    assert elect(gone, Brokers({2, 3}), two, unclean=True, offline={2}) == at(3, 7, (3,))
    assert elect(gone, Brokers({1, 2}), two, unclean=False, offline={2}) == replace(at(1, 7, (1,)), elr=(2,))
    assert without(alone, 1, {3}, two) == alone, "its log may be opened again"
    assert without(alone, 1, {2, 3}, two) == replace(at(2, 6, (2,)), elr=(1,))


def test_replicas_of_a_reassignment_stay_eligible_only_while_they_are_replicas() -> None:
    state = replace(at(1, 5, (1,)), elr=(2, 3))
    moving = reassign(state, (1, 2, 4))
    assert moving.elr == (2, 3) and moving.removing == (3,)
    assert reassign(replace(at(1, 5, (1,), (1, 4)), adding=(4,), elr=(4,)), (1, 6)).removing == (4,), (
        "one that was being added, and has everything, is not forgotten"
    )
    assert reassign(moving, (1, 2)).elr == (2, 3), "one that is to go is a replica until then"
    caught_up = moving.with_isr((1, 2, 4), below(3))
    assert complete(caught_up, {1, 2, 4}) == PartitionState(1, 6, (1, 2, 4), (1, 2, 4))
    adding = replace(reassign(at(1, 5, (1,), (1, 2)), (1, 2, 3)), elr=(3,))
    assert cancel(adding, {1}).elr == ()


def test_a_replica_that_was_taken_away_and_given_back_must_prove_itself_again() -> None:
    """Simulated world 2020420: the replica of broker 3 was moved away and back, while it was cut off from
    the leader. The leader knew how far it had been before it deleted its log, and took it for in sync."""
    full = at(1, 1, (1, 2, 3))
    away = complete(reassign(full, (2, 1)), {1, 2, 3})
    assert away == PartitionState(1, 2, (2, 1), (1, 2))
    back = reassign(away, (1, 2, 3))
    assert (back.leader_epoch, back.isr, back.adding) == (2, (1, 2), (3,))


def test_an_in_sync_replica_whose_log_is_offline_leads_only_if_no_other_can() -> None:
    state = PartitionState(3, 5, (3, 2, 1), (3, 2, 1))
    known = Brokers(frozenset({1, 2}))
    assert elect(state, known, NONE, unclean=False, offline={2}).leader == 1
    assert elect(state, known, NONE, unclean=False, offline={1, 2}).leader == 2


def test_a_leader_that_is_elected_again_must_still_be_registered_as_it_was() -> None:
    """It bounced, was elected, and bounced once more with an empty disk before that was written."""
    state = PartitionState(1, 5, (1, 2, 3), (1,), elr=(2, 3))
    (change,) = decided(state, Brokers(frozenset({1, 2, 3}), bounced=frozenset({1})))
    assert (change.new.leader, change.new.leader_epoch, change.joining) == (1, 6, {1: 101})


def test_a_preferred_leader_whose_log_is_offline_is_not_preferred() -> None:
    state = PartitionState(2, 5, (1, 2), (1, 2))
    alive = Brokers(frozenset({1, 2}))
    assert [change.new.leader for change in decided(state, alive)] == [1]
    assert decided(state, alive, offline=1) == []
