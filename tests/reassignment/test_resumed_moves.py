"""Moves that an interrupted command has begun, when the next one finds them: they go on, if they can end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import pytest

from headrace.client.cluster import BrokerAddress, PartitionInfo
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import BrokerStanding, Reassignment, ReplicaSurvey
from headrace.reassignment.model import Key
from headrace.reassignment.moving import AT_ONCE_MAX, UnfinishedError
from headrace.reassignment.operations import drain, plan_of_drain
from headrace.reassignment.resizing import resize
from headrace.reassignment.throttling import FOLLOWER_REPLICAS, LEADER_REPLICAS

WAITING: Final = 5
BEGUN: Final = {("t", number) for number in range(WAITING, WAITING + AT_ONCE_MAX)}


class Cluster:
    """Three brokers. Most partitions of a topic are on their way from 1 and 2 to 1 and 3; none arrives."""

    def __init__(self, waiting: tuple[int, ...]) -> None:
        self._waiting = waiting
        self.asked: list[Mapping[Key, Any]] = []
        self.settings: dict[str, str | None] = {}

    def replicas(self) -> ReplicaSurvey:
        part = PartitionInfo(0, 1, 0, self._waiting, self._waiting)
        waiting = {("t", number): replace(part, partition=number) for number in range(WAITING)}
        begun = {key: PartitionInfo(key[1], 1, 0, (1, 3, 2), (1, 2)) for key in BEGUN}
        return ReplicaSurvey(
            brokers={n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in (1, 2, 3)},
            partitions=waiting | begun,
            reassignments=dict.fromkeys(BEGUN, Reassignment((3,), (2,))),
            unsettled=frozenset(),
            stored={},
            drained=frozenset(),
            drained_for_all=frozenset(),
            silent=(),
        )

    def reassign(self, targets: Mapping[Key, Any]) -> dict[Key, Any]:
        self.asked.append(targets)
        return {}

    def topic_settings(self, topics: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {topic: {name: self.settings.get(name) or "" for name in names} for topic in topics}

    def alter_broker_configs(self, _broker_id: int, _changes: Mapping[str, str | None]) -> None: ...

    def alter_configs(self, _topic: str, changes: Mapping[str, str | None]) -> None:
        self.settings.update(changes)

    def append_configs(self, _topic: str, words: Mapping[str, str]) -> None:
        for name, added in words.items():
            self.settings[name] = ",".join(filter(None, [self.settings.get(name), added]))


def drained(admin: ReplicaAdmin) -> None:
    drain(admin, 2, timeout_s=0.0, throttle_bytes_per_s=1_000)


def resized(admin: ReplicaAdmin) -> None:
    resize(admin, "t", 2, timeout_s=0.0, throttle_bytes_per_s=1_000)


@pytest.mark.parametrize(("command", "waiting"), [(drained, (1, 2)), (resized, (1,))])
def test_what_was_begun_is_throttled_on_and_is_some_of_those_at_once(
    command: Callable[[ReplicaAdmin], None], waiting: tuple[int, ...]
) -> None:
    cluster = Cluster(waiting)
    with pytest.raises(UnfinishedError):
        command(cast(ReplicaAdmin, cluster))
    assert set(cluster.asked[0]) == BEGUN, "no more move at the same time than before"
    assert cluster.settings[FOLLOWER_REPLICAS] == ",".join(f"{number}:3" for _, number in sorted(BEGUN))
    assert f"{WAITING}:1,{WAITING}:2" in (cluster.settings[LEADER_REPLICAS] or "")


@pytest.mark.parametrize(("before", "after"), [("", ""), ("77:2", "77:2,"), ("*", "*")])
def test_what_another_command_throttles_stays_throttled(before: str, after: str) -> None:
    cluster = Cluster((1, 2))
    cluster.settings[FOLLOWER_REPLICAS] = before
    with pytest.raises(UnfinishedError):
        drained(cast(ReplicaAdmin, cluster))
    own = "" if after == "*" else ",".join(f"{number}:3" for _, number in sorted(BEGUN))
    assert cluster.settings[FOLLOWER_REPLICAS] == after + own


def test_a_move_to_a_broker_that_has_died_is_planned_anew() -> None:
    """Else the drain would wait for that broker, however many others there are."""
    survey = Cluster((1, 2)).replicas()
    brokers = {n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in (1, 2, 4)}
    plan = plan_of_drain(replace(survey, brokers=brokers), 2)
    assert {move.key: (move.before, move.after) for move in plan.moves} == dict.fromkeys(
        survey.partitions, ((1, 2), (1, 4))
    )
