"""What is decided about brokers that say that they stop (KIP-841)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from fix_leadership import MINIMA, NONE, SETS, at, brokers, decided, states
from fix_replica_manager import ME, ReplicaManagerBench
from headrace.broker.leadership.decisions import Brokers, elect
from headrace.broker.replicas.in_sync_changes import InSyncChanges
from headrace.coordination.topics import NO_LEADER, ElrBelow, PartitionState, TopicState


@given(states(), brokers(), MINIMA, SETS, st.booleans())
def test_who_stops_is_elected_only_if_nobody_else_can_be(
    state: PartitionState, known: Brokers, minimum: ElrBelow, offline: frozenset[int], unclean: bool
) -> None:
    after = elect(state, known, minimum, unclean=unclean, offline=offline)
    if_nobody_stopped = elect(
        state, replace(known, stopping=frozenset()), minimum, unclean=unclean, offline=offline
    )
    assert (after.leader == NO_LEADER) == (if_nobody_stopped.leader == NO_LEADER)
    if after.leader in known.stopping and after.leader_epoch != state.leader_epoch:
        lasting = known.alive - known.stopping - offline
        assert not lasting & {*after.isr}
        if after.leader not in state.isr and after.leader in state.elr:
            assert not lasting - known.bounced & {*state.elr}


def test_the_order_of_those_that_could_lead() -> None:
    def leads(
        state: PartitionState,
        *,
        stopping: set[int],
        bounced: frozenset[int] = frozenset(),
        offline: frozenset[int] = frozenset(),
    ) -> int:
        brokers_now = Brokers({2, 3}, bounced, stopping=stopping)
        return elect(state, brokers_now, NONE, unclean=True, offline=offline).leader

    full = at(1, 4, (1, 2, 3))
    assert leads(full, stopping=set()) == 2
    assert leads(full, stopping={2}) == 3
    assert leads(full, stopping={2, 3}) == 2, "the partition is not left without a leader"
    assert leads(full, stopping={2}, offline=frozenset({3})) == 2, (
        "it serves for seconds, the other one not at all"
    )
    eligible = PartitionState(1, 4, (1, 2, 3), (1,), elr=(2, 3))
    assert leads(eligible, stopping={2}) == 3
    assert leads(eligible, stopping={2}, bounced=frozenset({3})) == 2, "which has not come back just now"
    assert leads(at(1, 4, (1,)), stopping={2}) == 3
    leading = elect(full, Brokers({1, 2, 3}, stopping={1}), NONE, unclean=False)
    assert leading == full, "a leader that stops gives its partitions away itself"


def test_a_preferred_leader_that_stops_is_not_preferred_and_does_not_end_a_reassignment() -> None:
    away = PartitionState(2, 5, (1, 2), (1, 2))
    stopping = Brokers(frozenset({1, 2}), stopping=frozenset({1}))
    assert decided(away, stopping) == []
    moving = PartitionState(3, 5, (1, 3), (1, 3), adding=(1,), removing=(3,))
    alive = frozenset({1, 3})
    assert decided(moving, Brokers(alive, stopping=frozenset({1}))) == [], "broker 3 leads until it is back"
    assert [change.new.leader for change in decided(moving, Brokers(alive))] == [1]


def test_a_follower_that_stops_is_not_proposed_however_often_it_asks(bench: ReplicaManagerBench) -> None:
    """ZooKeeper would refuse each proposal, and be asked for each fetch."""
    state, registry = bench.state, bench.registry
    InSyncChanges(state, cast(Any, registry), cast(Any, bench.workers), 30_000)
    bench.apply(TopicState("t", UUID(int=7), {0: PartitionState(ME, 3, (1, 2), (ME,))}))
    bench.workers.run()
    led = state.partitions.get("t", 0)
    assert led is not None and led.replicas is not None
    for stopping in (True, False):
        state.view = state.view.with_brokers(
            [replace(each, is_stopping=stopping) for each in bench.brokers(1, 2)]
        )
        led.replicas.asked(2, 0, 0, state.monotonic_ms(), 7)
        state.follower_asked(led, 2)
        bench.workers.run()
        assert bool(registry.changes) is not stopping
    assert [change.new.isr for change in registry.changes] == [(1, 2)]
