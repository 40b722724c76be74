"""Consumers of a log that lies in the page cache: librdkafka, and two Python libraries."""

from __future__ import annotations

from typing import Final

from clients.running import run
from experiments.context import (
    HEADRACE,
    KAFKA,
    VALUE_BYTES,
    Bench,
    Experiment,
    fresh_topic_rows,
    shared_topic_rows,
)
from peers.peer import KafkaPeer
from side_by_side.bars import Bar, beside_kafka
from side_by_side.figures import BROKER_CPU, CLIENT_MEMORY_MB, RECORDS_PER_S, Row

from clients import python, rdkafka

SHOWN: Final = (RECORDS_PER_S, BROKER_CPU)
CONFLUENT_SETTINGS: Final = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 10}
"""Else librdkafka rests: half a second at the end of the log, and a second whenever its queue is full."""
PYTHON_BAR_RECORDS_PER_S: Final = 400_000.0
"""The paper's headline: its producer, in batches of 50."""


def fill(bench: Bench, peer: KafkaPeer, topic: str, size_bytes: int, partitions: int = 1) -> None:
    """Produces records of `VALUE_BYTES` until the topic holds about `size_bytes`."""
    records = size_bytes // VALUE_BYTES
    command = rdkafka.produce_command(
        peer.bootstrap, topic, records=records, partitions=partitions, value_bytes=VALUE_BYTES
    )
    run(command, cores=bench.cores.client, log=bench.log("fill"))


def librdkafka(bench: Bench) -> Row:
    def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
        return [
            rdkafka.consume_command(
                peer.bootstrap,
                topic,
                seconds=bench.scale.seconds,
                warmup_s=bench.scale.warmup_s,
                value_bytes=VALUE_BYTES,
            )
        ]

    row = Row("consume", "librdkafka consumes a log in the page cache", SHOWN)
    size_bytes = bench.scale.small_log_bytes
    return shared_topic_rows(
        bench, row, (HEADRACE, KAFKA), lambda peer, topic: fill(bench, peer, topic, size_bytes), commands
    )


def _python(bench: Bench, mode: str, library: str, peer: KafkaPeer, topic: str) -> list[str]:
    return python.command(
        mode,
        library,
        peer.bootstrap,
        topic,
        seconds=bench.scale.seconds,
        value_bytes=VALUE_BYTES,
        settings=CONFLUENT_SETTINGS if library == "confluent" else None,
    )


def _python_consumer(
    key: str, title: str, library: str, names: tuple[str, ...], bars: tuple[Bar, ...]
) -> Experiment:
    def run(bench: Bench) -> Row:
        def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
            return [_python(bench, "consume", library, peer, topic)]

        row = Row(key, title, (*SHOWN, CLIENT_MEMORY_MB))
        size_bytes = bench.scale.small_log_bytes
        return shared_topic_rows(
            bench, row, names, lambda peer, topic: fill(bench, peer, topic, size_bytes), commands
        )

    return Experiment(key, run, bars)


def headrace_producer(bench: Bench) -> Row:
    def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
        return [_python(bench, "produce", "headrace", peer, topic)]

    row = Row("python-produce", "headrace's Python producer, acks=all", (*SHOWN, CLIENT_MEMORY_MB))
    return fresh_topic_rows(bench, row, (HEADRACE,), commands)


def experiments() -> list[Experiment]:
    return [
        Experiment("consume", librdkafka, beside_kafka(HEADRACE, KAFKA, None)),
        Experiment(
            "python-produce",
            headrace_producer,
            (Bar(RECORDS_PER_S, HEADRACE, None, PYTHON_BAR_RECORDS_PER_S),),
        ),
        _python_consumer(
            "python-consume",
            "headrace's Python consumer",
            "headrace",
            (HEADRACE,),
            (Bar(RECORDS_PER_S, HEADRACE, None, PYTHON_BAR_RECORDS_PER_S),),
        ),
        _python_consumer(
            "confluent-consume",
            "confluent-kafka's Python consumer",
            "confluent",
            (HEADRACE, KAFKA),
            (Bar(RECORDS_PER_S, HEADRACE, KAFKA, 1.0),),
        ),
    ]
