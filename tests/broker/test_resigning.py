"""A broker whose log is offline gives its partition away: when, to whom, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from fix_replica_manager import ME, ReplicaManagerBench
from headrace.broker.leadership.resigning import GIVE_AGAIN_MS, Resigning
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import PartitionName

ID = UUID(int=7)
NAME = PartitionName("t", 0)
ALONE = PartitionState(ME, 5, (ME, 2, 3), (ME,), elr=(2,))
TWO = {"min.insync.replicas": "2"}


class Site:
    """Broker `ME`, whose log of the partition is offline."""

    def __init__(self, folder: Path) -> None:
        self.bench = ReplicaManagerBench(folder)
        self.resigning: Resigning = self.bench.manager.resigning
        self.now_ms = 0
        self.bench.state.monotonic_ms = lambda: self.now_ms
        self.bench.state.unopened[NAME] = "it is damaged"
        self.alive(ME, 2, 3)
        self.see(ALONE)

    def alive(self, *brokers: int) -> None:
        self.bench.state.view = self.bench.state.view.with_brokers(self.bench.brokers(*brokers))

    def see(self, state: PartitionState) -> None:
        self.bench.state.view = self.bench.state.view.with_topics({"t": TopicState("t", ID, {0: state}, TWO)})

    def written(self) -> list[PartitionChange]:
        """Runs what waits for ZooKeeper, then all timers; returns what was to be written."""
        self.bench.workers.run()
        timers, self.bench.timers[:] = list(self.bench.timers), []
        for timer in timers:
            timer()
        self.bench.workers.run()
        changes, self.bench.registry.changes = self.bench.registry.changes, []
        return changes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)


def test_it_goes_to_an_eligible_broker_once_a_controller_has_seen_that_one(site: Site) -> None:
    """Nothing in ZooKeeper tells this broker when the controller has handled the other one's return."""
    site.bench.registry.problem = StaleBrokerError(2, "has registered again")
    site.resigning.resign(NAME)
    assert [change.new.leader for change in site.written()] == [2]
    assert not site.written(), "the only one that could take it is refused"
    site.resigning.check()
    assert [change.new.leader for change in site.written()] == [2], "it is tried again, and refused again"
    site.bench.registry.problem = None
    site.resigning.check()
    (change,) = site.written()
    assert change.new == PartitionState(2, 6, (ME, 2, 3), (2,), elr=(ME,)) and change.handled_only


def test_it_goes_to_who_stops_only_if_nobody_else_can_lead(site: Site) -> None:
    both = replace(ALONE, isr=(ME, 2, 3), elr=())
    brokers_now = site.bench.brokers(ME, 2, 3)
    for stopping, leader in (({2}, 3), ({2, 3}, 2)):
        live = [replace(each, is_stopping=each.broker_id in stopping) for each in brokers_now]
        site.bench.state.view = site.bench.state.view.with_brokers(live)
        site.see(both)
        site.resigning.resign(NAME)
        assert [change.new.leader for change in site.written()] == [leader]


def test_nothing_is_written_twice_at_once(site: Site) -> None:
    site.resigning.resign(NAME)
    site.resigning.check()
    site.resigning.resign(NAME)
    assert len(site.written()) == 1


def test_two_brokers_do_not_give_it_to_each_other_all_the_time(site: Site) -> None:
    site.resigning.resign(NAME)
    assert len(site.written()) == 1
    site.see(replace(ALONE, leader_epoch=7))  # broker 2 could not serve it, either
    site.resigning.check()
    assert not site.written()
    site.see(replace(ALONE, leader_epoch=7, isr=(ME, 3)))
    site.resigning.check()
    assert [change.new.leader for change in site.written()] == [3], "one that is in sync gets it at once"
    site.see(replace(ALONE, leader_epoch=9))
    site.now_ms += int(GIVE_AGAIN_MS)
    site.resigning.check()
    assert [change.new.leader for change in site.written()] == [2]


def test_brokers_that_cannot_serve_it_are_left_out(site: Site) -> None:
    site.alive(ME, 3)
    site.resigning.check()
    assert not site.written()
    site.alive(ME, 2, 3)
    site.bench.state.see_offline(frozenset({(2, "t", 0)}))
    site.resigning.check()
    assert not site.written()
    site.bench.state.see_offline(frozenset())
    site.resigning.check()
    assert [change.new.leader for change in site.written()] == [2]


def test_a_damaged_log_is_not_eligible_any_more(site: Site) -> None:
    site.bench.state.damaged.add(NAME)
    site.resigning.check()
    assert [change.new for change in site.written()] == [PartitionState(2, 6, (ME, 2, 3), (2,))]
    site.see(PartitionState(2, 6, (ME, 2, 3), (2,), elr=(ME, 3)))
    site.resigning.check()
    assert [change.new.elr for change in site.written()] == [(3,)]
    site.see(PartitionState(2, 6, (ME, 2, 3), (2,), elr=(3,)))
    site.resigning.check()
    assert not site.written()
