"""A leader that its followers do not reach, though all are registered, gives them its partition: when, to
whom, and when not.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from fix_replica_manager import ME, ReplicaManagerBench
from headrace.broker.partition import Partition
from headrace.broker.replicas.cut_off import CHECK_MS, PAUSE_MAX_MS, UNREACHED, UNREACHED_MORE_MS, CutOff
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import PartitionName

ID = uuid4()
NAME = PartitionName("t", 0)
ALL = PartitionState(ME, 4, (ME, 2, 3), (ME, 2, 3))
UNREACHED_MS = 10_000.0 + UNREACHED_MORE_MS
"""The default of zookeeper.session.timeout.ms, and more."""


class Site:
    """Broker 1 leads t-0, of which two replicas must be in sync; brokers 2 and 3 follow. Time is `now_ms`."""

    def __init__(self, bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.is_connected = True
        self.bench = bench
        self.asking: tuple[int, ...] = ()
        monkeypatch.setattr(bench.state, "monotonic_ms", lambda: self.now_ms)
        give = bench.manager.resigning.hand_over
        self.check = CutOff(
            bench.state, bench.fetchers, bench.followed, lambda: self.is_connected, give
        ).check
        self.see(ALL)

    def see(self, state: PartitionState, min_in_sync: int = 2) -> None:
        config = {"min.insync.replicas": str(min_in_sync)}
        self.bench.apply(TopicState("t", ID, {0: state}, config))
        self.bench.workers.run()
        self.register(ME, 2, 3)

    def register(self, *brokers: int, epoch: int = 7) -> None:
        registered = [replace(each, epoch=epoch) for each in self.bench.brokers(*brokers)]
        self.bench.state.view = self.bench.state.view.with_brokers(registered)

    def passes(self, duration_ms: float) -> list[PartitionChange]:
        """Lets time pass; returns what was to be written."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + CHECK_MS)
            for follower in self.asking:
                replicas = self.led.replicas
                assert replicas is not None
                replicas.asked(follower, 0, self.led.log.end_address, self.now_ms, 7)
            self.check()
            self.bench.workers.run()
        return self.written()

    def written(self) -> list[PartitionChange]:
        changes, self.bench.registry.changes = self.bench.registry.changes, []
        return changes

    @property
    def led(self) -> Partition:
        found = self.bench.state.partitions.get(*NAME)
        assert found is not None
        return found


@pytest.fixture
def site(bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(bench, monkeypatch)


def test_it_is_given_to_a_follower_once_a_session_would_have_ended(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert not site.passes(UNREACHED_MS)
    change = site.passes(2 * CHECK_MS)[0]
    assert change.new == PartitionState(2, 5, (ME, 2, 3), (2, 3))
    assert change.handled_only, "not to a process that the controller does not know yet"
    site.passes(4 * CHECK_MS)
    assert caplog.text.count(UNREACHED) == 1


def test_one_follower_that_asks_is_enough(site: Site) -> None:
    site.asking = (3,)
    assert not site.passes(3 * UNREACHED_MS)


def test_one_that_asks_and_is_not_in_sync_yet_is_enough(site: Site) -> None:
    site.see(PartitionState(ME, 4, (ME, 2, 3), (ME, 2)))
    session = SimpleNamespace(asked_ms=0.0)
    site.bench.state.follower_sessions[3] = cast(Any, session)
    for _ in range(10):
        session.asked_ms = site.now_ms
        assert not site.passes(UNREACHED_MS / 2)
    assert site.passes(UNREACHED_MS)[0].new.leader == 2, "now it does not"


@pytest.mark.parametrize("alive", [(ME,), (ME, 2)])
def test_it_stays_while_too_few_of_the_others_live(site: Site, alive: tuple[int, ...]) -> None:
    site.register(*alive)
    assert not site.passes(3 * UNREACHED_MS)


def test_a_process_that_is_new_gets_its_time(site: Site) -> None:
    site.passes(UNREACHED_MS - CHECK_MS)
    site.register(ME, 2, 3, epoch=8)
    assert not site.passes(UNREACHED_MS)
    assert site.passes(2 * CHECK_MS)


def test_without_zookeeper_nobody_knows_who_lives(site: Site) -> None:
    site.is_connected = False
    assert not site.passes(3 * UNREACHED_MS)
    site.is_connected = True
    assert not site.passes(UNREACHED_MS)
    assert site.passes(2 * CHECK_MS)


def test_a_leader_that_was_stopped_itself_waits_again(site: Site) -> None:
    site.passes(UNREACHED_MS / 2)
    site.now_ms += UNREACHED_MS + PAUSE_MAX_MS
    assert not site.passes(UNREACHED_MS)
    assert site.passes(2 * CHECK_MS)


@pytest.mark.parametrize(
    ("state", "min_in_sync"),
    [
        (ALL, 1),  # it is enough by itself, once the others have left the in-sync set
        (PartitionState(ME, 4, (ME, 2), (ME, 2)), 2),  # the other one would be too few, too
        (PartitionState(ME, 4, (ME, 2, 3), (ME,)), 2),  # nobody else has everything
    ],
)
def test_it_stays_where_another_leader_could_do_no_more(
    site: Site, state: PartitionState, min_in_sync: int
) -> None:
    site.see(state, min_in_sync)
    assert not site.passes(3 * UNREACHED_MS)


def test_an_eligible_follower_leads_where_none_is_in_sync(site: Site) -> None:
    site.see(PartitionState(ME, 4, (ME, 2, 3), (ME,), elr=(3,)))
    change = site.passes(UNREACHED_MS + 2 * CHECK_MS)[0]
    assert (change.new.leader, change.new.isr) == (3, (3,))


def test_a_follower_whose_log_is_offline_counts_as_none(site: Site) -> None:
    site.bench.state.see_offline(frozenset({(2, *NAME)}))
    assert not site.passes(3 * UNREACHED_MS)


def test_one_that_stops_does_not_get_it(site: Site) -> None:
    brokers = [replace(each, is_stopping=each.broker_id == 2) for each in site.bench.brokers(ME, 2, 3)]
    site.bench.state.view = site.bench.state.view.with_brokers(brokers)
    assert site.passes(UNREACHED_MS + 2 * CHECK_MS)[0].new.leader == 3


def test_a_refusal_is_tried_again_only_as_long_as_nobody_asks(site: Site) -> None:
    site.bench.registry.problem = StaleBrokerError(2, "has registered again")
    assert site.passes(UNREACHED_MS + 2 * CHECK_MS)[0].new.leader == 2
    site.bench.timers.pop()()
    site.bench.workers.run()
    assert site.written()[0].new.leader == 3, "the other one"
    site.asking = (2,)
    site.passes(CHECK_MS)
    site.bench.timers.pop()()
    site.bench.workers.run()
    assert not site.written()
