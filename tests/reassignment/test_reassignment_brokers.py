"""Draining and balancing three real brokers, by the functions that commands and Terraform call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_cli import command_runner
from headrace.client.admin import Admin
from headrace.client.errors import BrokerError
from headrace.client.replica_admin import ReplicaAdmin
from headrace.coordination.broker_configs import BrokerConfigRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.reassignment.moving import Progress, UnfinishedError
from headrace.reassignment.operations import (
    CannotDrainError,
    UnknownBrokerError,
    balance,
    drain,
    plan_of_balance,
    undrain,
)
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 60.0
RACKS = {1: "a", 2: "b", 3: "c", 4: "c"}


@pytest.fixture(scope="module")
def cluster(module_clusters: StartCluster) -> BrokerCluster:
    """Four brokers, 3 and 4 on one rack."""
    return module_clusters(count=4, arguments=lambda broker_id: ["--set", f"broker.rack={RACKS[broker_id]}"])


@pytest.fixture
def admin(cluster: BrokerCluster) -> Iterator[ReplicaAdmin]:
    with ReplicaAdmin(cluster.bootstrap) as admin:
        yield admin
        # A broker that a test held up for longer than its session comes back first.
        wait_for(lambda: len(admin.replicas().brokers) == 4)
        for broker_id in (1, 2, 3, 4):
            undrain(admin, broker_id)


@pytest.fixture
def registry(cluster: BrokerCluster) -> Iterator[TopicRegistry]:
    with cluster.zookeeper.session() as session:
        made = TopicRegistry(session)
        yield made
        for name in made.list():
            made.delete(name)
        with Admin(cluster.bootstrap) as admin:
            wait_for(lambda: not admin.topics())


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def fill(cluster: BrokerCluster, registry: TopicRegistry, topic: str) -> dict[int, bytes]:
    """Produces one batch to each partition; returns what is stored."""
    stored = {}
    for number in registry.get(topic).partitions:
        data = encode_batch([Record(0, 1_000, None, b"%d" % number * 5_000)])

        def produced(number: int = number, data: bytes = data) -> bool:
            leader = registry.get(topic).partitions[number].leader
            with RawClient(cluster[leader].address) as client:
                return client.produce(topic, number, data).error_code == 0

        wait_for(produced)
        with RawClient(cluster[registry.get(topic).partitions[number].leader].address) as client:
            stored[number] = client.read_all(topic, number)
    return stored


def states(registry: TopicRegistry, topic: str) -> dict[int, PartitionState]:
    return registry.get(topic).partitions


def folders(cluster: BrokerCluster, broker_id: int, topic: str) -> list[str]:
    return sorted(each.name for each in cluster[broker_id].data_dir.glob(f"{topic}-*"))


def test_a_drained_broker_has_nothing_and_gets_nothing(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry
) -> None:
    placed = {0: (1, 2), 1: (2, 3), 2: (3, 1), 3: (3,), 4: (4, 1)}
    for name in ("t", "_audit"):
        registry.create(name, uuid4(), placed)
    stored = {name: fill(cluster, registry, name) for name in ("t", "_audit")}
    seen: list[Progress] = []
    moved = drain(admin, 3, timeout_s=WAIT_MAX_S, report=seen.append)
    assert moved.partitions == 6 and moved.copied_bytes > 6 * 5_000
    assert seen[-1].partitions_left == 0 and seen[-1].copied_bytes == seen[-1].total_bytes > 0
    for name in ("t", "_audit"):
        after = states(registry, name)
        for number, state in after.items():
            kept = [each for each in placed[number] if each != 3]
            assert set(kept) <= set(state.replicas) and len(state.replicas) == len(placed[number])
            assert len({RACKS[each] for each in state.replicas}) == len(state.replicas)
            assert 3 not in state.isr and not state.adding and not state.removing
            with RawClient(cluster[state.leader].address) as client:
                wait_for(lambda: client.read_all(name, number) == stored[name][number])  # noqa: B023
    wait_for(lambda: folders(cluster, 3, "t") == folders(cluster, 3, "_audit") == [])
    # New partitions go elsewhere, wherever they are asked for.
    for broker in cluster.brokers:
        with Admin(broker.address) as other:
            other.create_topic(f"new-{broker.broker_id}", 4, 3)
        assert all(3 not in each.replicas for each in states(registry, f"new-{broker.broker_id}").values())
    with pytest.raises(BrokerError) as refused:
        admin.create_topic("too-many", 1, 4)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "drained, and left out: [3]" in str(refused.value)
    assert drain(admin, 3, timeout_s=WAIT_MAX_S).partitions == 0, "it is drained already"
    assert undrain(admin, 3) and not undrain(admin, 3)


def test_a_throttled_drain_copies_at_its_rate_and_leaves_no_throttle(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry, session: ZooKeeperSession
) -> None:
    registry.create("slow", uuid4(), {0: (1, 2), 1: (2, 1)})
    fill(cluster, registry, "slow")
    with RawClient(cluster[1].address) as client:
        data = encode_batch([Record(0, 1_000, None, bytes(20_000))])
        for _ in range(30):
            assert client.produce("slow", 0, data).error_code == 0
    configs, seen = BrokerConfigRegistry(session), list[dict[str, str]]()
    began_s = time.monotonic()
    report: Callable[[Progress], None] = lambda _: seen.append(configs.all().get(1, {}))  # noqa: E731
    moved = drain(admin, 2, timeout_s=WAIT_MAX_S, throttle_bytes_per_s=150_000, report=report)
    took_s = time.monotonic() - began_s
    assert moved.partitions == 2 and took_s > (moved.copied_bytes - 2 * 150_000) / 150_000 * 0.8
    assert seen[0]["leader.replication.throttled.rate"] == "150000"
    assert configs.all() == {2: {"headrace.drained": "true"}}
    assert not registry.get("slow").config


def test_a_factor_that_cannot_be_kept_is_refused_before_anything_is_changed(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry
) -> None:
    registry.create("wide", uuid4(), {0: (1, 2, 3, 4), 1: (1, 2)})
    fill(cluster, registry, "wide")
    with pytest.raises(CannotDrainError, match="wide-0: its 4 replicas need 1 other broker that") as refused:
        drain(admin, 2, timeout_s=WAIT_MAX_S)
    assert len(refused.value.stuck) == 1 and "add a broker" in str(refused.value)
    assert not admin.replicas().drained
    assert states(registry, "wide")[1].replicas == (1, 2)
    with pytest.raises(UnknownBrokerError, match="known are 1, 2, 3, 4"):
        drain(admin, 9)


def test_a_drain_that_was_interrupted_goes_on(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry
) -> None:
    registry.create("half", uuid4(), dict.fromkeys(range(6), (4, 1)))
    fill(cluster, registry, "half")
    cluster[2].send_signal(19)
    try:
        with pytest.raises(UnfinishedError, match="the same command continues"):
            drain(admin, 4, timeout_s=0.1)
    finally:
        cluster[2].send_signal(18)
    drain(admin, 4, timeout_s=WAIT_MAX_S)
    assert all(4 not in each.replicas for each in states(registry, "half").values())


def test_a_dead_broker_is_drained(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry
) -> None:
    registry.create("dead", uuid4(), {0: (1, 2), 1: (2, 3)})
    stored = fill(cluster, registry, "dead")
    cluster[2].stop()
    try:
        drain(admin, 2, timeout_s=WAIT_MAX_S)
        for number, state in states(registry, "dead").items():
            assert 2 not in state.replicas and len(state.isr) == 2
            with RawClient(cluster[state.leader].address) as client:
                wait_for(lambda: client.read_all("dead", number) == stored[number])  # noqa: B023
    finally:
        cluster[2].start()
    # It comes back without any of it, and gets nothing until it is taken back.
    survey = admin.replicas()
    assert survey.drained == {2} and not [key for key in survey.stored if key[0] == 2]


def test_a_balance_gives_an_empty_broker_its_share(
    cluster: BrokerCluster, admin: ReplicaAdmin, registry: TopicRegistry, session: ZooKeeperSession
) -> None:
    registry.create("b", uuid4(), {n: (1, 2) if n % 2 else (2, 1) for n in range(8)})
    stored = fill(cluster, registry, "b")
    plan = plan_of_balance(admin.replicas())
    moved, refused = balance(admin, plan, timeout_s=WAIT_MAX_S)
    assert not refused and moved.partitions == len(plan.moves) > 0
    assert [load.replicas for load in plan.after.values()] == [4, 4, 4, 4]
    after = admin.replicas()
    for number in range(8):
        part = after.partitions["b", number]
        assert part.leader == part.replicas[0]
        with RawClient(cluster[part.leader].address) as client:
            wait_for(lambda: client.read_all("b", number) == stored[number])  # noqa: B023
    assert plan_of_balance(after).moves == ()


def test_the_commands(
    cluster: BrokerCluster,
    admin: ReplicaAdmin,
    registry: TopicRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, where = command_runner(monkeypatch, capsys), ("-b", cluster.bootstrap)
    registry.create("c", uuid4(), {0: (1, 2), 1: (2, 1), 2: (1, 4), 3: (1, 2)})
    fill(cluster, registry, "c")
    wait_for(lambda: run("brokers", "list", *where).exit_code == 0)
    listed = run("brokers", "list", *where, "--json").json
    assert [row["broker"] for row in listed] == [1, 2, 3, 4]
    assert (listed[0]["leaders"], listed[0]["replicas"], listed[3]["rack"]) == (3, 4, "c")
    assert listed[1]["bytes"] > 15_000 and listed[2]["bytes"] == 0 and listed[0]["epoch"] > 0
    assert "would move 3 partitions" in run("brokers", "drain", 2, "--dry-run", *where).out
    assert not admin.replicas().drained

    drained = run("brokers", "drain", 2, "--timeout", "60s", *where)
    assert drained.exit_code == 0 and "broker 2 is drained: 3 partitions" in drained.out, drained
    assert "0 of 3 partitions left" in drained.err
    after = {row["broker"]: row for row in run("brokers", "list", *where, "--json").json}
    assert after[2]["drained"] and after[2]["alive"] and after[2]["replicas"] == 0

    registry.create("wide", uuid4(), {0: (1, 3, 4)})
    refused = run("brokers", "drain", 1, *where)
    assert refused.exit_code == 1 and "wide-0: its 3 replicas need 1 other broker that is" in refused.err
    assert run("brokers", "drain", 77, *where).err == ("error: there is no broker 77; known are 1, 2, 3, 4\n")
    assert run("brokers", "drain", 1, "--timeout", "soon", *where).exit_code == 2

    assert "gets new replicas again" in run("brokers", "undrain", 2, *where).out
    assert "was not drained" in run("brokers", "undrain", 2, *where).out
    planned = run("brokers", "balance", "--dry-run", "--json", *where).json
    assert planned["dry_run"] and planned["partitions"] == len(planned["moves"]) > 0
    assert run("brokers", "balance", "--dry-run", *where).exit_code == 0
    balanced = run("brokers", "balance", *where)
    assert balanced.exit_code == 0 and f"{planned['partitions']} partition" in balanced.out
    counts = [row["replicas"] for row in run("brokers", "list", *where, "--json").json]
    assert max(counts) - min(counts) <= 1 and sum(counts) == 11
    assert "nothing has to move" in run("brokers", "balance", "--dry-run", *where).out


@pytest.fixture
def session(cluster: BrokerCluster) -> Iterator[ZooKeeperSession]:
    with cluster.zookeeper.session() as session:
        yield session
