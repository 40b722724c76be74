"""Partitions that lack a replica or a leader, as brokers tell them by figures: the rule, and real brokers."""

from __future__ import annotations

import re
import urllib.request
from uuid import UUID

from fix_broker import StartCluster
from fix_one_broker import wait_until
from fix_ports import free_ports
from headrace.broker.cluster import ClusterView
from headrace.client.admin import Admin
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import NO_LEADER, PartitionState, TopicState

PREFIX = "headrace_broker_partitions_"


def test_what_counts() -> None:
    states = (
        PartitionState(1, 0, (1, 2), (1, 2)),
        PartitionState(1, 0, (1, 2), (1,)),
        PartitionState(1, 0, (1, 3), (1,), adding=(3,)),  # a reassignment brings it
        PartitionState(2, 0, (1, 2), (2,)),  # its leader tells of it
        PartitionState(NO_LEADER, 0, (2, 3), ()),
        PartitionState(3, 0, (3,), (3,)),  # that broker is dead
    )
    topic = TopicState("t", UUID(int=1), dict(enumerate(states)))
    brokers = [BrokerRegistration(each, f"host-{each}", 9092, "test") for each in (1, 2)]
    view = ClusterView().with_brokers(brokers).with_topics({"t": topic})
    assert [view.lacking(each)["under_replicated"] for each in (1, 2)] == [1, 1]
    assert view.lacking(1)["leaderless"] == 2


def test_a_broker_that_dies_shows_in_the_figures_of_the_others(broker_cluster: StartCluster) -> None:
    ports = free_ports(2)
    cluster = broker_cluster(2, arguments=lambda each: ["--status", f"127.0.0.1:{ports[each - 1]}"])
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("both", 2, 2)
        admin.create_topic("alone", 2, 1)

    def figures(broker_id: int) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[broker_id - 1]}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {name: int(value) for name, value in re.findall(rf"^{PREFIX}(\w+) (\d+)$", text, re.MULTILINE)}

    def sound() -> bool:
        found = [figures(each) for each in (1, 2)]
        return all(each["under_replicated"] == each["leaderless"] == 0 for each in found) and (
            sum(each["led"] for each in found) == 4
        )

    wait_until(sound)
    cluster[2].kill()
    wait_until(lambda: (figures(1)["under_replicated"], figures(1)["leaderless"]) == (2, 1))
    cluster[2].start()
    wait_until(sound)
