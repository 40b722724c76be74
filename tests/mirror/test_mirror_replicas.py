"""Mirror partitions with replicas: whoever leads them, they take exactly what follows their end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fix_audit import StartMirror
from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.client import Admin, Producer
from headrace.client.cluster import PartitionInfo
from headrace.replication.gaps import SETTING
from headrace.wire.batch import readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 60.0
FAST = {"zookeeper.session.timeout.ms": "4000", "replica.lag.time.max.ms": "3000"}
PARTITIONS = 3


def wait_for(what: str, condition: Callable[[], object], explain: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}; {explain()}"
        time.sleep(0.05)


def held(cluster: BrokerCluster, broker_id: int, topic: str, partition: int) -> bytes:
    """What the files of one broker hold of a partition."""
    folder = cluster[broker_id].data_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


@pytest.fixture
def analysis(broker_cluster: StartCluster) -> BrokerCluster:
    """Three brokers; topics have two replicas, as in the built-in site's analysis datacenter."""
    return broker_cluster(count=3, datacenter="analysis", config={**FAST, "default.replication.factor": "2"})


@pytest.mark.kill
def test_a_copy_goes_on_byte_for_byte_when_the_leader_of_its_partition_dies(
    broker_cluster: StartCluster, analysis: BrokerCluster, start_mirror: StartMirror
) -> None:
    east = broker_cluster(datacenter="east", config={"log.segment.bytes": "1048576"})
    with Admin(east.bootstrap) as admin:
        admin.create_topic("t", PARTITIONS)
    done = threading.Event()

    def load() -> None:
        rng = random.Random(5)
        with Producer(east.bootstrap, linger_ms=1, batch_size_bytes=4096) as producer:
            index = 0
            while not done.is_set():
                producer.send("t", rng.randbytes(300), partition=index % PARTITIONS)
                index += 1
                if index % 200 == 0:
                    time.sleep(0.01)
            producer.flush(WAIT_MAX_S)

    loader = threading.Thread(target=load)
    loader.start()
    mirror = start_mirror(east, analysis)
    try:
        with Admin(analysis.bootstrap, timeout_ms=5_000) as admin:
            wait_for(
                "the copies began", lambda: "t" in admin.topics() and len(admin.topic("t").partitions) == 3
            )

            def copied(partition: int) -> int:
                return mirror.partitions()["t", partition]["address"] if mirror.partitions() else 0

            wait_for("all copies run", lambda: all(copied(each) > 500_000 for each in range(PARTITIONS)))
            targets = {each: mirror.partitions()["t", each]["target_partition"] for each in range(PARTITIONS)}
            found = admin.topic("t").partitions
            dead = found[targets[0]].leader
            assert all(len(each.replicas) == 2 for each in found.values())
            before = copied(0)
            analysis[dead].kill()
            wait_for(
                "another one leads", lambda: admin.topic("t").partitions[targets[0]].leader not in (-1, dead)
            )
            wait_for("the copy goes on", lambda: copied(0) > before + 500_000, mirror.output)
    finally:
        done.set()
        loader.join()
    source = {each: held(east, 1, "t", each) for each in range(PARTITIONS)}

    def is_same(broker_id: int, partition: int) -> bool:
        return held(analysis, broker_id, "t", targets[partition]) == source[partition]

    pairs = [(each, partition) for partition in source for each in found[targets[partition]].replicas]
    alive = [pair for pair in pairs if pair[0] != dead]
    wait_for(
        "the live replicas are the source's", lambda: all(is_same(*pair) for pair in alive), mirror.status
    )
    assert "halted" not in {each["state"] for each in mirror.partitions().values()}
    analysis[dead].start()
    wait_for(
        "so is what the dead one had", lambda: all(is_same(*pair) for pair in pairs), analysis[dead].output
    )


def at(address: int) -> bytes:
    """A batch as a mirror sends it, at `address`."""
    raw = bytearray(encode_batch([Record(0, 1_000, None, b"v")]))
    readdress(raw, 0, address, leader_epoch=7)
    return bytes(raw)


def test_every_replica_begins_where_the_copy_begins_and_passes_its_accepted_gap(
    analysis: BrokerCluster,
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    size_bytes = len(at(0))
    with Admin(analysis.bootstrap) as admin:
        admin.create_topic(topic, 1, config={"headrace.mirror": "true"})
        first = admin.topic(topic).partitions[0]
        (other,) = set(first.replicas) - {first.leader}

        def are(data: bytes) -> bool:
            return all(held(analysis, each, topic, 0) == data for each in first.replicas)

        with RawClient(analysis[first.leader].address) as client:
            assert client.produce(topic, 0, at(700)).error_code == ErrorCode.NONE
            assert are(at(700)), "before it was acknowledged"
            end, to = 700 + size_bytes, 5_000
            admin.alter_configs(topic, {SETTING: f"0:{end}-{to}"})
            wait_for(
                "the gap is passed", lambda: client.produce(topic, 0, at(to)).error_code == ErrorCode.NONE
            )
            assert are(at(to))
            assert client.list_offset(topic, 0, -1)[0] == to + size_bytes
        analysis[first.leader].kill()
        wait_for("the other one leads", lambda: admin.topic(topic).partitions[0].leader == other)
        with RawClient(analysis[other].address) as client:
            for address in (to, to + 1, to + 2 * size_bytes):
                refused = client.produce(topic, 0, at(address))
                assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, address
            assert client.produce(topic, 0, at(to + size_bytes)).error_code == ErrorCode.NONE
            assert client.fetch(topic, 0, to).records == at(to) + at(to + size_bytes)
        analysis[first.leader].start()
        wait_for("both have it", lambda: are(at(to) + at(to + size_bytes)))


@pytest.mark.kill
def test_a_copy_halts_when_a_leader_that_was_elected_without_its_last_batch_has_written_as_many_bytes(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """It went on behind them: it kept what the source has lost, and never had what took its place."""
    config = {**FAST, "default.replication.factor": "2", "min.insync.replicas": "1"}
    east = broker_cluster(count=2, datacenter="east", config=config)
    analysis = broker_cluster(datacenter="analysis")
    topic = f"t-{uuid.uuid4().hex[:8]}"

    def publish(value: bytes) -> None:
        """One batch, of the same size whatever the value is."""
        with Producer(east.bootstrap, delivery_timeout_ms=60_000) as producer:
            producer.send(topic, value, timestamp_ms=1_431_860_400_000).result(WAIT_MAX_S)

    with Admin(east.bootstrap) as admin:
        admin.create_topic(topic, 1, config={"unclean.leader.election.enable": "true"})

        def partition() -> PartitionInfo:
            return admin.topic(topic).partitions[0]

        wait_for("both are in sync", lambda: len(partition().isr) == 2)
        first = partition().leader
        (other,) = set(partition().replicas) - {first}
        publish(b"both have it")
        east[other].kill()
        wait_for("one is in sync", lambda: partition().isr == (first,))
        publish(b"one has it..")
        mirror = start_mirror(east, analysis)

        def copy() -> dict[str, Any]:
            return mirror.partitions().get((topic, 0)) or {"address": 0, "source_end": -1, "state": ""}

        wait_for("all is copied", lambda: copy()["address"] == copy()["source_end"] > 0)
        copied = held(analysis, 1, topic, 0)
        os.kill(mirror.pid, signal.SIGSTOP)
        try:
            east[first].kill()
            east[other].start()
            wait_for("the other one leads", lambda: partition().leader == other)
            for value in (b"instead of it", b"behind it...."):
                publish(value[:12])
        finally:
            os.kill(mirror.pid, signal.SIGCONT)
        assert len(held(east, other, topic, 0)) > len(copied)
        wait_for("the copy halts", lambda: copy()["state"] == "halted", copy)
    assert "the copy is of another log" in copy()["reason"] or "have lost them" in copy()["reason"], copy()
    assert held(analysis, 1, topic, 0) == copied
