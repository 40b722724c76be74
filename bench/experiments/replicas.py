"""Three brokers and three replicas, beside Apache Kafka; and what a follower costs beside an append.

Every replica is on this machine, and all brokers share the cores for brokers: CPU says more than throughput.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from clients.outcome import ClientFailedError
from experiments.context import (
    HEADRACE,
    KAFKA,
    KAFKA_FSYNC,
    VALUE_BYTES,
    Bench,
    Experiment,
    Scale,
    fresh_topic_rows,
)
from peers.headrace_broker import HeadraceBroker
from peers.kafka import ApacheKafka
from peers.peer import KafkaPeer
from side_by_side.bars import Bar
from side_by_side.figures import BROKER_CPU, CPU_PER_GB, OTHER_CORES, RECORDS_PER_S, Row
from side_by_side.machine import snapshot
from side_by_side.measuring import settle

from clients import rdkafka
from headrace.client import Admin

REPLICAS: Final = 3
IN_MEMORY: Final = "headrace, acks.all=replicated"
"""As Apache Kafka's default: a batch is acknowledged when it is in the memory of every in-sync replica."""
CONFIG: Final[Mapping[str, str]] = {"min.insync.replicas": "2"}
ALL: Final = (HEADRACE, IN_MEMORY, KAFKA, KAFKA_FSYNC)
ALONE: Final = "a broker alone, one replica"
LEADER: Final = "a leader of three replicas"
FOLLOWER: Final = "a follower"
THROUGHPUT_LEAST: Final = 1.0
CPU_MOST: Final = 0.7
RECORDS_16K: Final = 75
"""Of 200 bytes in a batch of 16 kB, the default `batch.size` of Apache Kafka's own producer."""
FOLLOWER_MOST: Final = 0.4
"""The issue's bounds: throughput and CPU beside Kafka, a follower's CPU a GB beside a lone broker's."""


def brokers(bench: Bench, network: str, *, with_peers: bool) -> dict[str, KafkaPeer]:
    """Returns the clusters of these rows, each of three brokers."""
    cores = bench.cores.broker

    def headrace(name: str, host: int, config: Mapping[str, str]) -> KafkaPeer:
        home, address = bench.home / name, f"{network}.{host}"
        return HeadraceBroker(home, address, cores, REPLICAS, replicas=REPLICAS, topic_config=config)

    ours: dict[str, KafkaPeer] = {HEADRACE: headrace("replicas", 11, CONFIG)}
    if not with_peers:
        return ours
    ours[IN_MEMORY] = headrace("replicas-memory", 12, {**CONFIG, "headrace.acks.all": "replicated"})

    def kafka(name: str, host: int, *, fsync: bool) -> KafkaPeer:
        return ApacheKafka(
            bench.home / name,
            f"{network}.{host}",
            cores,
            fsync=fsync,
            count=REPLICAS,
            replicas=REPLICAS,
            topic_config=CONFIG,
        )

    return {
        **ours,
        KAFKA: kafka("replicas-kafka", 13, fsync=False),
        KAFKA_FSYNC: kafka("replicas-kafka-fsync", 14, fsync=True),
    }


def _command(bench: Bench, peer: KafkaPeer, topic: str, batch: int) -> list[str]:
    return rdkafka.produce_command(
        peer.bootstrap,
        topic,
        seconds=bench.scale.seconds,
        warmup_s=bench.scale.warmup_s,
        batch=batch,
        value_bytes=VALUE_BYTES,
        settings={"queue.buffering.max.messages": "10000"} if batch == 1 else {},
    )


def _produce(key: str, title: str, batch: int) -> Experiment:
    def run(bench: Bench) -> Row:
        row = Row(key, title, (RECORDS_PER_S, BROKER_CPU), "CPU is that of all three brokers.")
        return fresh_topic_rows(bench, row, ALL, lambda peer, topic: [_command(bench, peer, topic, batch)])

    bars = tuple(
        bar
        for ours, theirs in ((HEADRACE, KAFKA), (IN_MEMORY, KAFKA), (HEADRACE, KAFKA_FSYNC))
        for bar in (
            Bar(RECORDS_PER_S, ours, theirs, THROUGHPUT_LEAST, unless_client_limits=True),
            Bar(BROKER_CPU, ours, theirs, CPU_MOST, at_least=False),
        )
    )
    return Experiment(key, run, bars, _room_bytes)


def _room_bytes(scale: Scale) -> int:
    return REPLICAS * scale.produced_bytes(scale.seconds)


# --- a follower's cost ---


def _follower_cost(key: str, batches: str, batch: int) -> Experiment:
    """Measures the CPU of each broker by itself, for each GB of a log, warm-up included."""

    def run(bench: Bench) -> Row:
        row = Row(
            key,
            f"CPU for a GB of log, {batches}: a follower beside a broker alone",
            (CPU_PER_GB,),
            "A leader's figure holds the Fetches that it answers for two followers.",
        )
        peer = bench.brokers[HEADRACE]
        assert isinstance(peer, HeadraceBroker), "only headrace's own brokers are measured one by one"
        for _ in range(bench.scale.rounds):
            for replicas in (1, REPLICAS):
                _measure_each(bench, row, peer, replicas, batch)
        return row

    bar = Bar(CPU_PER_GB, FOLLOWER, ALONE, FOLLOWER_MOST, at_least=False)
    return Experiment(key, run, (bar,), _room_bytes)


def _measure_each(bench: Bench, row: Row, peer: HeadraceBroker, replicas: int, batch: int) -> None:
    topic = bench.new_topic(row.key)
    peer.create_topic(topic, replicas=replicas)
    try:
        settle()
        before = snapshot()
        sample = bench.clients(row.key, peer, [_command(bench, peer, topic, batch)])
        after = snapshot()
        with Admin(peer.bootstrap, client_id="bench-admin") as admin:
            leader = admin.topic(topic).partitions[0].leader
            end_bytes = admin.list_offsets(topic)[0].offset
    finally:
        peer.delete_topic(topic)
    if not end_bytes:
        raise ClientFailedError(f"{topic}: nothing was produced")

    def cost(pids: Collection[int]) -> dict[str, float]:
        used_s = after.cpu_s(pids) - before.cpu_s(pids)
        return {CPU_PER_GB: used_s * 1e9 / end_bytes / len(pids), OTHER_CORES: sample[OTHER_CORES]}

    leading = [pid for number, pid in enumerate(peer.pids(), 1) if number == leader]
    if replicas == 1:
        row.add(ALONE, cost(leading))
        return
    row.add(LEADER, cost(leading))
    row.add(FOLLOWER, cost([pid for pid in peer.pids() if pid not in leading]))


def experiments() -> list[Experiment]:
    return [
        _produce("replicas-batch-1", "three replicas, one record a batch, acks=all", 1),
        _produce("replicas-batch-50", "three replicas, 50 records a batch, acks=all", 50),
        _produce("replicas-default", "three replicas, librdkafka's default batches, acks=all", 0),
        _follower_cost("follower-cost", "librdkafka's default batches", 0),
        _follower_cost("follower-cost-16k", "batches of 16 kB", RECORDS_16K),
    ]
