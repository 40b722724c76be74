"""Plans that are out of date: another command, or a broker's death, changed what they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from headrace.client.cluster import BrokerAddress, PartitionInfo
from headrace.client.errors import BrokerError
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import BrokerStanding, Reassignment, ReplicaSurvey
from headrace.reassignment.model import Key
from headrace.reassignment.moving import GONE_MAX_S, UnfinishedError
from headrace.reassignment.operations import balance, drain, plan_of_balance, undrain_gone
from headrace.reassignment.throttling import LEADER_RATE
from headrace.wire.errors import ErrorCode


class Cluster:
    """Moves arrive one look after they were asked for, if their new brokers are alive, and not `slow`."""

    def __init__(self, partitions: Mapping[Key, tuple[int, ...]], brokers: set[int]) -> None:
        self.partitions = dict(partitions)
        self.brokers = set(brokers)
        self.slow: set[int] = set()
        self.moving: dict[Key, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.drained: set[int] = set()
        self.asked: list[Mapping[Key, Any]] = []
        self.refusals: list[dict[Key, BrokerError]] = []
        self.now_s = 0.0
        self.rates: set[int] = set()
        self.rates_at_reassign: list[set[int]] = []
        self.settings: dict[str, dict[str, str]] = {}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def replicas(self) -> ReplicaSurvey:
        for key, (old, new) in list(self.moving.items()):
            if all(each in self.brokers - self.slow for each in new if each not in old):
                self.partitions[key] = new
                del self.moving[key]
        told: dict[Key, PartitionInfo] = {}
        moving: dict[Key, Reassignment] = {}
        for key, replicas in self.partitions.items():
            full = replicas
            if key in self.moving:
                old, new = self.moving[key]
                removing = tuple(each for each in old if each not in new)
                moving[key] = Reassignment(tuple(each for each in new if each not in old), removing)
                full = (*new, *removing)
            in_sync = tuple(each for each in replicas if each in self.brokers)
            told[key] = PartitionInfo(key[1], in_sync[0] if in_sync else -1, 0, full, in_sync)
        drained = frozenset(self.drained)
        standing = {n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in self.brokers}
        return ReplicaSurvey(standing, told, moving, frozenset(), {}, drained, drained, ())

    def reassign(self, targets: Mapping[Key, Any]) -> dict[Key, Any]:
        self.asked.append(dict(targets))
        self.rates_at_reassign.append(set(self.rates))
        refused = self.refusals.pop(0) if self.refusals else {}
        for key in targets.keys() - refused.keys():
            old = self.moving[key][0] if key in self.moving else self.partitions[key]
            self.moving[key] = (old, tuple(targets[key]))
        return refused

    def topic_settings(self, topics: Any, names: Any) -> dict[str, dict[str, str]]:
        return {
            topic: {name: self.settings.get(topic, {}).get(name, "") for name in names} for topic in topics
        }

    def alter_broker_configs(self, broker_id: int, changes: Mapping[str, str | None]) -> None:
        if "headrace.drained" in changes:
            (self.drained.add if changes["headrace.drained"] else self.drained.discard)(broker_id)
        if LEADER_RATE in changes:
            (self.rates.add if changes[LEADER_RATE] else self.rates.discard)(broker_id)

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        known: dict[str, Any] = {**self.settings.get(topic, {}), **changes}
        self.settings[topic] = {name: value for name, value in known.items() if value is not None}

    def append_configs(self, topic: str, words: Mapping[str, str]) -> None:
        settings = self.settings.setdefault(topic, {})
        for name, added in words.items():
            settings[name] = ",".join(filter(None, [settings.get(name), added]))

    def elect_preferred(self, _keys: Any) -> dict[Key, Any]:
        return {}

    @property
    def admin(self) -> ReplicaAdmin:
        return cast(ReplicaAdmin, self)

    def drain(self, broker_id: int) -> None:
        drain(self.admin, broker_id, clock=self.clock, sleep=self.sleep)


def test_a_balance_gives_nothing_to_a_broker_that_was_drained_meanwhile() -> None:
    """The drain says that it is empty, and whoever asked for it takes the broker away."""
    cluster = Cluster({("t", number): ((1, 2, 3)[number % 3],) for number in range(240)}, {1, 2, 3, 4})
    plan = plan_of_balance(cluster.replicas())
    assert len(plan.moves) > 40
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            cluster.drain(4)
            assert not [key for key, replicas in cluster.partitions.items() if 4 in replicas]

    _, refused = balance(cluster.admin, plan, clock=cluster.clock, sleep=sleep)
    assert not [key for key, replicas in cluster.partitions.items() if 4 in replicas]
    assert "broker 4, to which it was to move, is drained" in " ".join(refused.values())


def test_a_plan_of_replicas_that_are_others_by_now_is_given_up() -> None:
    cluster = Cluster({("t", number): (1,) for number in range(60)}, {1, 2})
    plan = plan_of_balance(cluster.replicas())
    late = plan.moves[-1].key

    def sleep(_: float) -> None:
        cluster.partitions[late] = (2, 1)

    _, refused = balance(cluster.admin, plan, clock=cluster.clock, sleep=sleep)
    assert cluster.partitions[late] == (2, 1), "its topic has two replicas now"
    assert "others moved it to [2, 1] meanwhile" in refused[late]


def test_a_drain_plans_anew_what_goes_to_a_broker_that_died() -> None:
    cluster = Cluster({("t", number): (1, 2, 3) for number in range(5)}, {1, 2, 3, 4, 5})
    cluster.slow = {4, 5}
    sleep = cluster.sleep

    def dies(seconds: float) -> None:
        sleep(seconds)
        if cluster.now_s == 1.0:
            cluster.brokers.discard(4)
            cluster.slow = set()

    cluster.sleep = dies  # type: ignore[method-assign]
    cluster.drain(1)
    assert cluster.now_s < GONE_MAX_S + 10
    assert not [key for key, replicas in cluster.partitions.items() if 1 in replicas or 4 in replicas]


def test_a_broker_that_restarts_keeps_its_moves() -> None:
    cluster = Cluster({("t", 0): (1, 2, 3)}, {1, 2, 3, 4})
    cluster.slow = {4}
    sleep = cluster.sleep

    def restarts(seconds: float) -> None:
        sleep(seconds)
        if cluster.now_s == 1.0:
            cluster.brokers.discard(4)
        if cluster.now_s == GONE_MAX_S - 5:
            cluster.brokers.add(4)
            cluster.slow = set()

    cluster.sleep = restarts  # type: ignore[method-assign]
    cluster.drain(1)
    assert cluster.partitions["t", 0] == (4, 2, 3)


@pytest.mark.parametrize("former", [(1, 2, 3), (1, 2)])
def test_a_dead_broker_to_which_partitions_move_can_be_drained(former: tuple[int, ...]) -> None:
    """A balance gave it its share, and its host died before it had copied anything."""
    cluster = Cluster({("t", 0): former}, {1, 2, 3, 5})
    cluster.moving["t", 0] = (former, (1, 2, 4))
    cluster.drain(4)
    assert cluster.now_s < 60 and not cluster.moving
    assert cluster.partitions["t", 0] == former


def test_a_refusal_that_asks_to_retry_is_asked_again() -> None:
    cluster = Cluster({("t", 0): (1, 2, 3)}, {1, 2, 3, 4})
    busy = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "its state changes all the time; retry")
    cluster.refusals = [{("t", 0): busy}]
    cluster.drain(1)
    assert cluster.partitions["t", 0] == (4, 2, 3) and len(cluster.asked) == 2


def test_a_throttle_that_another_command_has_taken_away_is_set_again() -> None:
    cluster = Cluster({("t", number): (1, 2) for number in range(45)}, {1, 2, 3})
    drain(
        cluster.admin,
        1,
        throttle_bytes_per_s=1_000,
        clock=cluster.clock,
        sleep=lambda _: cluster.rates.clear(),
    )
    assert all(rates == {1, 2, 3} for rates in cluster.rates_at_reassign), cluster.rates_at_reassign
    assert len(cluster.rates_at_reassign) >= 3


def test_throttles_of_topics_that_another_command_moved_are_removed_in_the_end() -> None:
    cluster = Cluster({("x", 0): (1, 2), ("y", 0): (2, 3)}, {1, 2, 3, 4})
    cluster.settings["y"] = {"leader.replication.throttled.replicas": "0:2"}
    balance(cluster.admin, plan_of_balance(cluster.replicas()), clock=cluster.clock, sleep=cluster.sleep)
    assert cluster.settings["y"] == {}


@pytest.mark.parametrize("ends_s", [0.0, 9.0, 10_000.0])
def test_a_broker_that_runs_on_stays_marked_as_drained(ends_s: float) -> None:
    """Its host does not answer whoever destroys it: without the mark it would get replicas again."""
    cluster = Cluster({("t", 0): (2, 3)}, {1, 2, 3})
    cluster.drained = {1}
    sleep = cluster.sleep

    def ends(seconds: float) -> None:
        sleep(seconds)
        if cluster.now_s >= ends_s:
            cluster.brokers.discard(1)

    if not ends_s:
        cluster.brokers.discard(1)
    is_gone = undrain_gone(cluster.admin, 1, clock=cluster.clock, sleep=ends)
    assert is_gone == (ends_s < 20) and cluster.drained == (set() if is_gone else {1})


def test_moves_that_are_refused_again_and_again_end_with_the_last_cause() -> None:
    cluster = Cluster({("t", 0): (1, 2)}, {1, 2, 3})
    refused = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "t-0", "broker 3 has registered again")
    cluster.refusals = [{("t", 0): refused} for _ in range(100)]
    with pytest.raises(UnfinishedError, match="t-0: REQUEST_TIMED_OUT: broker 3 has registered again"):
        drain(cluster.admin, 2, timeout_s=60, clock=cluster.clock, sleep=cluster.sleep)
