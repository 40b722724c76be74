"""A topic's number of replicas by the real terraform, on three real brokers: changed in place, drift seen."""

import re
import time
from collections.abc import Callable

import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_terraform import Workspace
from headrace.client.producer import Producer
from headrace.client.replica_admin import ReplicaAdmin
from headrace.reassignment.throttling import FOLLOWER_RATE, FOLLOWER_REPLICAS

Make = Callable[[str], Workspace]
PARTITIONS = 2
WAIT_MAX_S = 60.0
# More than a throttle of one byte a second lets through within its first window.
VALUE = bytes(200_000)


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    return module_clusters(count=3)


def topic(cluster: BrokerCluster, factor: int, more: str = "") -> str:
    servers = ", ".join(f'"{broker.address}"' for broker in cluster.brokers)
    return f"""
provider "headrace" {{}}
resource "headrace_topic" "clicks" {{
  bootstrap_servers  = [{servers}]
  name               = "clicks"
  partitions         = {PARTITIONS}
  replication_factor = {factor}
  {more}
}}
"""


def counts(admin: ReplicaAdmin) -> list[tuple[int, int]]:
    """Returns how many replicas each partition has, and how many of them are in sync."""
    partitions = admin.topic("clicks").partitions.values()
    return [(len(each.replicas), len(each.isr)) for each in partitions]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def publish(cluster: BrokerCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            for _ in range(5):
                producer.send("clicks", VALUE, partition=partition)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_topics_factor_changes_in_place(workspace: Make, cluster: BrokerCluster) -> None:
    folder = workspace(topic(cluster, 1))
    assert "1 added" in folder.apply()
    publish(cluster)
    with ReplicaAdmin(cluster.bootstrap) as admin:
        identity, ends = admin.topic("clicks").topic_id, admin.list_offsets("clicks")
        assert counts(admin) == [(1, 1)] * PARTITIONS

        # It is bounded: what is not copied in time is drift, and the next apply continues.
        slow = "replication_throttle = 1\n  replication_timeout_s = 2"
        folder.write(topic(cluster, 3, slow))
        output = folder.plan()
        assert re.search(r"~ replication_factor += 1 -> 3", output) and "0 to destroy" in output
        output = " ".join(folder.apply(code=1).split())
        assert "Topic clicks has not 3 replicas yet" in output and "(replication_timeout_s)" in output
        assert re.search(r"on main\.tf line \d+, .*: replication_factor = 3", output)

        folder.write(topic(cluster, 3, "min_insync_replicas = 2"))
        assert re.search(r"~ replication_factor += 1 -> 3", folder.plan())
        assert "0 added, 1 changed, 0 destroyed" in folder.apply()
        assert counts(admin) == [(3, 3)] * PARTITIONS
        assert admin.describe_configs("clicks")["min.insync.replicas"].value == "2"
        assert (admin.topic("clicks").topic_id, admin.list_offsets("clicks")) == (identity, ends)
        assert not admin.describe_configs("clicks")[FOLLOWER_REPLICAS].is_own
        assert not admin.describe_broker_configs(1)[FOLLOWER_RATE].is_own
        folder.plan(code=0)

        # Somebody takes the other replicas of one partition away: the plan finds it.
        leader = admin.topic("clicks").partitions[1].leader
        assert admin.reassign({("clicks", 1): [leader]}) == {}
        wait_for(lambda: counts(admin) == [(3, 3), (1, 1)])
        assert re.search(r"~ replication_factor += 1 -> 3", folder.plan())
        folder.apply()
        assert counts(admin) == [(3, 3)] * PARTITIONS
        folder.plan(code=0)

        folder.write(topic(cluster, 2, "min_insync_replicas = 1"))
        output = folder.apply()
        assert "0 added, 1 changed, 0 destroyed" in output
        assert counts(admin) == [(2, 2)] * PARTITIONS
        assert admin.list_offsets("clicks") == ends
        folder.plan(code=0)

    folder.write(topic(cluster, 4))
    output = " ".join(folder.plan(code=1).split())
    assert "Topic clicks cannot have 4 replicas" in output
    assert "clicks-0: it needs 4 brokers that are alive and not drained, and 3 are (1, 2, 3)" in output
    assert re.search(r"on main\.tf line \d+, .*: replication_factor = 4", output)
