"""Much of something: a long log, many partitions, many connections; memory, and a restart after SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from experiments.consume import fill
from experiments.context import (
    HEADRACE,
    KAFKA,
    VALUE_BYTES,
    Bench,
    Experiment,
    Scale,
    fresh_topic_rows,
    shared_topic_rows,
)
from peers.peer import KafkaPeer
from side_by_side.bars import Bar, beside_kafka
from side_by_side.figures import (
    BROKER_CPU,
    BROKER_MEMORY_MB,
    RECORDS_PER_S,
    RESTART_S,
    Row,
    Sample,
)
from side_by_side.measuring import Contender, run_rounds
from side_by_side.process import PinnedProcess

from clients import rdkafka

SHOWN: Final = (RECORDS_PER_S, BROKER_CPU)
LONG: Final = "a long log"
SHORT: Final = "a short log"


LONG_LOG_ROUND_MAX_S: Final = 4.0  # each round makes the long log longer


def _produce(
    bench: Bench, peer: KafkaPeer, topic: str, partitions: int = 1, *, seconds: float | None = None
) -> list[list[str]]:
    return [
        rdkafka.produce_command(
            peer.bootstrap,
            topic,
            seconds=bench.scale.seconds if seconds is None else seconds,
            warmup_s=bench.scale.warmup_s,
            batch=0,
            value_bytes=VALUE_BYTES,
            partitions=partitions,
        )
    ]


def _long_log_s(scale: Scale) -> float:
    return min(scale.seconds, LONG_LOG_ROUND_MAX_S)


def _long_log_room_bytes(scale: Scale) -> int:
    rounds = 2 * scale.rounds * scale.produced_bytes(_long_log_s(scale))
    return scale.large_log_bytes + scale.rounds * scale.small_log_bytes + rounds


def long_log(bench: Bench) -> Row:
    """Produces, by turns, at the end of a short log, which is new in each round, and of a long one of the
    same broker. All stay until the end: a deletion gives memory back that the next round would have for less.
    """
    peer = bench.brokers[HEADRACE]
    scale = bench.scale
    row = Row(
        "long-log",
        f"produce at the end of {scale.large_log_bytes / 1e9:g} GB and of {scale.small_log_bytes / 1e9:g} GB",
        SHOWN,
    )
    long = bench.new_topic(row.key)
    shorts: dict[int, str] = {}

    def work(topic: str) -> Sample:
        return bench.clients(row.key, peer, _produce(bench, peer, topic, seconds=_long_log_s(scale)))

    def make_short(number: int) -> None:
        shorts[number] = bench.new_topic(row.key)
        peer.create_topic(shorts[number])
        fill(bench, peer, shorts[number], scale.small_log_bytes)

    peer.create_topic(long)
    try:
        fill(bench, peer, long, scale.large_log_bytes)
        contenders = [
            Contender(LONG, lambda _: work(long)),
            Contender(SHORT, lambda number: work(shorts[number]), make_short),
        ]
        run_rounds(row, contenders, scale.rounds)
    finally:
        for topic in (long, *shorts.values()):
            peer.delete_topic(topic)
    return row


def memory_and_restart(bench: Bench) -> Row:
    """Fills a log, reads the broker's memory, kills the broker, measures the time until it serves again."""
    size_bytes = bench.scale.restart_bytes
    row = Row(
        "restart",
        f"after {size_bytes / 1e9:g} GB: memory, and the time of a restart after SIGKILL",
        (BROKER_MEMORY_MB, RESTART_S),
    )
    for name in (HEADRACE, KAFKA):
        peer = bench.brokers.get(name)
        if peer is None:
            continue
        topic = bench.new_topic(row.key)
        peer.create_topic(topic)
        try:
            fill(bench, peer, topic, size_bytes)
            memory_mb = peer.memory_bytes() / 1e6
            row.add(name, {BROKER_MEMORY_MB: memory_mb, RESTART_S: peer.restart_after_kill()})
        finally:
            peer.delete_topic(topic)
    return row


def many_partitions(bench: Bench) -> Row:
    partitions = bench.scale.partitions
    row = Row("partitions-produce", f"librdkafka produces to {partitions} partitions, acks=all", SHOWN)
    return fresh_topic_rows(
        bench,
        row,
        (HEADRACE, KAFKA),
        lambda peer, topic: _produce(bench, peer, topic, partitions),
        partitions=partitions,
    )


def many_partitions_consumed(bench: Bench) -> Row:
    partitions = bench.scale.partitions
    row = Row("partitions-consume", f"librdkafka consumes {partitions} partitions", SHOWN)

    def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
        return [
            rdkafka.consume_command(
                peer.bootstrap,
                topic,
                seconds=bench.scale.seconds,
                warmup_s=bench.scale.warmup_s,
                value_bytes=VALUE_BYTES,
                partitions=partitions,
            )
        ]

    return shared_topic_rows(
        bench,
        row,
        (HEADRACE, KAFKA),
        lambda peer, topic: fill(bench, peer, topic, bench.scale.small_log_bytes, partitions),
        commands,
        partitions=partitions,
    )


@contextmanager
def _idle_connections(bench: Bench, peers: Sequence[KafkaPeer]) -> Iterator[None]:
    """Keeps connections open to each broker that send nothing but their first request."""
    held: list[PinnedProcess] = []
    cores, count = bench.cores.client, bench.scale.connections
    try:
        for peer in peers:
            log = bench.log("connections")
            held.append(rdkafka.hold_connections(peer.bootstrap, count, cores=cores, log=log))
        yield
    finally:
        for process in held:
            process.stop()


def many_connections(bench: Bench) -> Row:
    count = bench.scale.connections
    row = Row("connections", f"librdkafka's default batches beside {count:,} other connections", SHOWN)
    names = [name for name in (HEADRACE, KAFKA) if name in bench.brokers]
    with _idle_connections(bench, [bench.brokers[name] for name in names]):
        return fresh_topic_rows(bench, row, names, lambda peer, topic: _produce(bench, peer, topic))


def experiments() -> list[Experiment]:
    beside = beside_kafka(HEADRACE, KAFKA, None)
    return [
        Experiment("long-log", long_log, (Bar(RECORDS_PER_S, LONG, SHORT, 0.97),), _long_log_room_bytes),
        Experiment("partitions-produce", many_partitions, beside),
        Experiment("partitions-consume", many_partitions_consumed, beside),
        Experiment("connections", many_connections, beside),
        Experiment(
            "restart",
            memory_and_restart,
            (
                Bar(BROKER_MEMORY_MB, HEADRACE, KAFKA, 0.2, at_least=False),
                Bar(RESTART_S, HEADRACE, KAFKA, 0.2, at_least=False),
            ),
            lambda scale: 2 * scale.restart_bytes,
        ),
    ]
