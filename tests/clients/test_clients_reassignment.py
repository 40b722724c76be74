"""Apache Kafka's own kafka-reassign-partitions and kafka-leader-election against three real brokers."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_java import KafkaTool
from headrace.client import Admin
from headrace.coordination.broker_configs import BrokerConfigRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.wire.records import Record, encode_batch

pytestmark = pytest.mark.real_client

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
WAIT_MAX_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    return module_clusters(count=3)


@pytest.fixture
def session(cluster: BrokerCluster) -> Iterator[ZooKeeperSession]:
    with cluster.zookeeper.session() as session:
        yield session


def moves(tmp_path: Path, topic: str, *replicas: int) -> str:
    file = tmp_path / "moves.json"
    partitions = [{"topic": topic, "partition": 0, "replicas": list(replicas)}]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(file)


def test_a_partition_moves_to_other_brokers(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    registry = TopicRegistry(session)
    registry.create("moved", uuid4(), {0: (1, 2)})
    server = ("--bootstrap-server", cluster.bootstrap)
    data = encode_batch([Record(0, 1_000, None, b"here")])
    with RawClient(cluster[1].address) as client:
        wait_for(lambda: client.produce("moved", 0, data).error_code == 0)
        stored = client.read_all("moved", 0)
    file = ("--reassignment-json-file", moves(tmp_path, "moved", 3, 2))
    said = kafka_tool(REASSIGN, *server, *file, "--execute").decode()
    assert "Successfully started partition reassignment for moved-0" in said
    # The leader leaves: another replica leads, with all that was stored.
    wait_for(lambda: registry.get("moved").partitions[0].replicas == (3, 2))
    state = registry.get("moved").partitions[0]
    assert set(state.isr) == {2, 3} and state.leader in {2, 3} and state.leader_epoch >= 1
    assert "moved-0 is completed" in kafka_tool(REASSIGN, *server, *file, "--verify").decode()
    with RawClient(cluster[state.leader].address) as client:
        wait_for(lambda: client.produce("moved", 0, data).error_code == 0)
        assert client.read_all("moved", 0).startswith(stored)


def test_a_request_may_forbid_to_change_the_replication_factor(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    """KIP-860: a plan of before the topic grew would shrink it again."""
    registry = TopicRegistry(session)
    registry.create("fixed", uuid4(), {0: (1, 2)})
    server = ("--bootstrap-server", cluster.bootstrap)
    fixed = "--disallow-replication-factor-change"
    file = ("--reassignment-json-file", moves(tmp_path, "fixed", 1))
    with pytest.raises(
        AssertionError, match=r"replicas \[1\] are not 2, and the request forbids to change that"
    ):
        kafka_tool(REASSIGN, *server, *file, fixed, "--execute")
    assert registry.get("fixed").partitions[0].replicas == (1, 2)
    file = ("--reassignment-json-file", moves(tmp_path, "fixed", 2, 3))
    assert "Successfully started" in kafka_tool(REASSIGN, *server, *file, fixed, "--execute").decode()
    wait_for(lambda: registry.get("fixed").partitions[0].replicas == (2, 3))


def test_topics_are_described_with_the_replicas_that_are_eligible_to_lead(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool
) -> None:
    registry = TopicRegistry(session)
    registry.create("told", uuid4(), {0: (1, 9)}, {"min.insync.replicas": "2"})  # there is no broker 9
    wait_for(lambda: registry.get("told").partitions[0] == PartitionState(1, 0, (1, 9), (1,), elr=(9,)))
    server = ("--bootstrap-server", cluster.bootstrap)
    said = kafka_tool(TOPICS, *server, "--describe", "--topic", "told").decode()
    assert re.search(r"Leader: 1\s+Replicas: 1,9\s+Isr: 1\s+Elr: 9", said), said


def test_a_throttled_move_takes_its_time_and_holds_up_nobody_in_sync(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    registry, configs = TopicRegistry(session), BrokerConfigRegistry(session)
    registry.create("slow", uuid4(), {0: (1, 2)})
    server = ("--bootstrap-server", cluster.bootstrap)
    with RawClient(cluster[1].address) as client:
        data = encode_batch([Record(0, 1_000, None, bytes(40_000))])
        wait_for(lambda: client.produce("slow", 0, data).error_code == 0)
        for _ in range(29):
            assert client.produce("slow", 0, data).error_code == 0
        size_bytes = len(client.read_all("slow", 0))
        file = ("--reassignment-json-file", moves(tmp_path, "slow", 1, 2, 3))
        began_s = time.monotonic()
        said = kafka_tool(REASSIGN, *server, *file, "--execute", "--throttle", "200000").decode()
        assert "The inter-broker throttle limit was set to 200000 B/s" in said
        assert configs.all()[1]["leader.replication.throttled.rate"] == "200000"
        config = registry.get("slow").config
        assert set(config["leader.replication.throttled.replicas"].split(",")) == {"0:1", "0:2"}
        assert config["follower.replication.throttled.replicas"] == "0:3"
        assert 3 not in registry.get("slow").partitions[0].isr
        small = encode_batch([Record(0, 1_000, None, b"x")])
        asked_s = time.monotonic()
        assert client.produce("slow", 0, small).error_code == 0
        assert time.monotonic() - asked_s < 1, "acks=all waits for replicas in sync, which are not throttled"
        wait_for(lambda: 3 in registry.get("slow").partitions[0].isr)
        # The first second's worth goes at once, and the tool itself needs a while.
        assert time.monotonic() - began_s > (size_bytes - 200_000) / 200_000 * 0.8
    wait_for(lambda: not registry.get("slow").partitions[0].adding)
    said = kafka_tool(REASSIGN, *server, *file, "--verify").decode()
    assert "Clearing broker-level throttles on brokers 1,2,3" in said
    assert "Clearing topic-level throttles on topic slow" in said
    assert not registry.get("slow").config and not configs.all()


def test_a_move_to_a_dead_broker_waits_is_listed_and_can_be_called_off(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    with Admin(cluster.bootstrap) as admin:
        controller = admin.describe_cluster().controller_id
    # Not the controller: the tool asks the one that it knows until its minute is over, whoever comes next.
    dead = next(number for number in (3, 2) if number != controller)
    one, other = (number for number in (1, 2, 3) if number != dead)
    registry = TopicRegistry(session)
    registry.create("waits", uuid4(), {0: (one, other)})
    wait_for(lambda: "waits-0: open" in cluster[one].output())
    cluster[dead].send_signal(signal.SIGSTOP)
    try:
        server = ("--bootstrap-server", cluster[one].address)
        file = ("--reassignment-json-file", moves(tmp_path, "waits", dead, one))
        kafka_tool(REASSIGN, *server, *file, "--execute")
        wait_for(lambda: registry.get("waits").partitions[0].adding == (dead,))
        assert registry.get("waits").partitions[0].replicas == (dead, one, other)
        listed = kafka_tool(REASSIGN, *server, "--list").decode()
        assert f"waits-0: replicas: {dead},{one},{other}. adding: {dead}. removing: {other}." in listed
        # Without this option it also asks the dead broker, which hangs.
        kafka_tool(REASSIGN, *server, *file, "--cancel", "--preserve-throttles")
        state = registry.get("waits").partitions[0]
        assert set(state.replicas) == {one, other} and state.adding == state.removing == ()
    finally:
        cluster[dead].send_signal(signal.SIGCONT)


def test_log_dirs_lists_every_replica_on_each_broker(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool
) -> None:
    registry = TopicRegistry(session)
    registry.create("stored", uuid4(), {0: (1, 2, 3), 1: (2, 3)})
    data = encode_batch([Record(0, 1_000, None, b"here")])
    for partition in (0, 1):

        def stored(partition: int = partition) -> bool:
            # On a busy machine a broker's session may end, and another one leads.
            leader = registry.get("stored").partitions[partition].leader
            if leader < 0:
                return False
            with RawClient(cluster[leader].address) as client:
                return client.produce("stored", partition, data).error_code == 0

        wait_for(stored)
    said = kafka_tool(
        LOG_DIRS, "--bootstrap-server", cluster.bootstrap, "--describe", "--topic-list", "stored"
    ).decode()
    described = json.loads(said.splitlines()[-1])
    found = {
        (broker["broker"], part["partition"]): (part["size"], part["offsetLag"], part["isFuture"])
        for broker in described["brokers"]
        for folder in broker["logDirs"]
        for part in folder["partitions"]
    }
    expected = [(1, "stored-0"), (2, "stored-0"), (3, "stored-0"), (2, "stored-1"), (3, "stored-1")]
    assert found == dict.fromkeys(expected, (len(data), 0, False))


def test_a_preferred_leader_is_elected_on_request(
    cluster: BrokerCluster, session: ZooKeeperSession, kafka_tool: KafkaTool
) -> None:
    registry = TopicRegistry(session)
    made = registry.create("back", uuid4(), {0: (1, 2)}).partitions[0]
    wait_for(lambda: "back-0" in cluster[2].output())
    registry.set_partition_state("back", 0, PartitionState(2, 1, (1, 2), (1, 2)), expected=made)
    where = ("--bootstrap-server", cluster.bootstrap, "--topic", "back", "--partition", "0")
    said = kafka_tool(ELECT, *where, "--election-type", "preferred").decode()
    assert "Successfully completed leader election (PREFERRED) for partitions back-0" in said
    state = registry.get("back").partitions[0]
    assert (state.leader, state.leader_epoch) == (1, 2)
    said = kafka_tool(ELECT, *where, "--election-type", "preferred").decode()
    assert "Valid replica already elected for partitions back-0" in said
