"""Two commands that throttle replicas of one topic at the same time: each one's replicas are throttled."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import pytest

from fix_balancer import wait_until
from fix_broker import BrokerCluster
from headrace.client.replica_admin import ReplicaAdmin
from headrace.reassignment.model import Move
from headrace.reassignment.throttling import FOLLOWER_REPLICAS, LEADER_REPLICAS, Throttle


def test_neither_command_overwrites_what_the_other_throttles(
    broker_cluster: Callable[..., BrokerCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = broker_cluster(count=2)
    one, two = (broker.broker_id for broker in cluster.brokers)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    first, second = (Move((topic, partition), (one,), (one, two), 0) for partition in (0, 1))
    with ReplicaAdmin(cluster.bootstrap) as admin, ReplicaAdmin(cluster.bootstrap) as other:
        admin.create_topic(topic, 2, replication_factor=1)
        read = admin.topic_settings

        def meanwhile(topics: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
            present = read(topics, names)
            Throttle(other, 1_000_000).begin([second])
            return present

        monkeypatch.setattr(admin, "topic_settings", meanwhile)
        throttle = Throttle(admin, 1_000_000)
        throttle.begin([first])

        def settings() -> list[set[str]]:
            found = read([topic], (LEADER_REPLICAS, FOLLOWER_REPLICAS))[topic]
            return [{*found[name].split(",")} - {""} for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]

        # The broker that is asked may hear of a change later than the one that made it.
        both = [{f"0:{one}", f"1:{one}"}, {f"0:{two}", f"1:{two}"}]
        wait_until(lambda: settings() == both, "the throttle of both commands")
        throttle.end()
        wait_until(lambda: settings() == [set(), set()], "the end of both throttles")


def test_moves_without_a_bound_change_no_topics_settings(
    one_broker: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each drain removed, one after another, settings that no topic of it had."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    changed: list[str] = []
    with ReplicaAdmin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        monkeypatch.setattr(admin, "alter_configs", lambda topic, changes: changed.append(topic))
        throttle = Throttle(admin, None)
        throttle.begin([Move((topic, 0), (1,), (1, 2), 0)])
        throttle.end()
    assert topic not in changed
