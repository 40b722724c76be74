"""A replica whose folder is gone, and nothing else of its disk: a repair of the file system left it out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from fix_broker import StartCluster
from fix_replicas import SETTINGS, ReplicatedCluster
from headrace.broker.replicas.high_watermarks import load
from headrace.coordination.brokers import BrokerRegistry
from headrace.log.directory import IDENTITY_FILE, PartitionName
from headrace.wire.errors import ErrorCode


@pytest.fixture(scope="module")
def replicas(module_clusters: StartCluster) -> Iterator[ReplicatedCluster]:
    settings = {**SETTINGS, "log.flush.offset.checkpoint.interval.ms": "500"}
    with ReplicatedCluster(module_clusters(count=3, config=settings)) as cluster:
        yield cluster


def lose(replicas: ReplicatedCluster, topic: str, broker: int) -> bytes:
    """All brokers die, and one of them loses the topic's folder; returns what was acknowledged."""
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "acknowledged")
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    folder, name = replicas.brokers[broker].data_dir, PartitionName(topic, 0)
    replicas.wait_for("it is noted", lambda: name in (known := load(folder)) and known[name].address > 0)
    for number in (1, 2, 3):
        replicas.brokers[number].kill()
    with replicas.brokers.zookeeper.session() as session:
        replicas.wait_for("all sessions end", lambda: not BrokerRegistry(session).live())
    assert set(replicas.state(topic).isr) == {1, 2, 3}, "as far as anybody knows"
    shutil.rmtree(folder / f"{topic}-0")
    return held


@pytest.mark.parametrize("is_emptied", [False, True], ids=["gone", "emptied"])
def test_it_does_not_lead_with_an_empty_log(replicas: ReplicatedCluster, is_emptied: bool) -> None:
    """It is the first to come back. Its followers would cut off what they have."""
    topic = replicas.topic(1, 2, 3, min_insync_replicas="2")
    held = lose(replicas, topic, 3)
    if is_emptied:
        (replicas.brokers[3].data_dir / f"{topic}-0").mkdir()
    replicas.brokers[3].start()
    assert f"{topic}-0: the folder is missing" in replicas.brokers[3].output()
    for number in (1, 2):
        replicas.brokers[number].start()
    replicas.wait_for("another one leads", lambda: replicas.state(topic).leader in (1, 2))
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


def test_where_nobody_else_counts_as_in_sync_it_says_so_and_another_one_can_lead(
    replicas: ReplicatedCluster,
) -> None:
    topic = replicas.topic(1, 2, 3, min_insync_replicas="1")
    held = lose(replicas, topic, 3)
    for number in (3, 1, 2):
        replicas.brokers[number].start()
    assert replicas.state(topic).isr == (3,)
    replicas.elect(topic, 1, in_sync=(1,))
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(held)


def test_an_administrator_can_let_it_begin_anew(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3, min_insync_replicas="1")
    identity = replicas.brokers[3].data_dir / f"{topic}-0" / IDENTITY_FILE
    said = identity.read_bytes()
    lose(replicas, topic, 3)
    identity.parent.mkdir()
    identity.write_bytes(said)
    replicas.brokers[3].start()
    replicas.wait_for("it leads", lambda: replicas.state(topic).leader == 3)
    replicas.produce(topic, "anew")
    for number in (1, 2):
        replicas.brokers[number].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert b"anew" in replicas.wait_until_equal(topic, 1, 2, 3)


def test_the_only_replica_gives_no_address_away_twice(replicas: ReplicatedCluster) -> None:
    """Nobody else has anything: to begin anew at address 0 is for an administrator to say."""
    topic = replicas.topic(1)
    end = replicas.produce(topic, "acknowledged").base_offset + 1
    broker, name = replicas.brokers[1], PartitionName(topic, 0)
    replicas.wait_for(
        "it is noted", lambda: name in (known := load(broker.data_dir)) and known[name].address >= end
    )
    broker.kill()
    folder = broker.data_dir / str(name)
    said = (folder / IDENTITY_FILE).read_bytes()
    shutil.rmtree(folder)
    broker.start()
    refused = replicas.try_to_produce(topic, "in the same place")
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    folder.mkdir()
    (folder / IDENTITY_FILE).write_bytes(said)
    assert replicas.produce(topic, "anew").base_offset < end - 1
