"""Producers: librdkafka in batches of 1, of 50 (the paper's) and of its defaults; Kafka's own Java tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clients.running import run
from experiments.context import (
    HEADRACE,
    KAFKA,
    KAFKA_FSYNC,
    VALUE_BYTES,
    Bench,
    Experiment,
    fresh_topic_rows,
)
from peers.peer import KafkaPeer
from side_by_side.bars import Bar, beside_kafka
from side_by_side.figures import BROKER_CPU, P99_MS, RECORDS_PER_S, Row

from clients import kafka_java, rdkafka

SHOWN: Final = (RECORDS_PER_S, BROKER_CPU)
ALL: Final = (HEADRACE, KAFKA, KAFKA_FSYNC)
DEFAULT_BATCHES: Final = 0
SMALL_QUEUE: Final = {"queue.buffering.max.messages": "10000"}
"""For single records: at 1,500 a second, librdkafka's default of 100,000 would take a minute to drain."""


def _librdkafka(
    key: str, title: str, batch: int, *, clients: int = 1, names: Sequence[str] = ALL
) -> Experiment:
    def run(bench: Bench) -> Row:
        def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
            one = rdkafka.produce_command(
                peer.bootstrap,
                topic,
                seconds=bench.scale.seconds,
                warmup_s=bench.scale.warmup_s,
                batch=batch,
                value_bytes=VALUE_BYTES,
                settings=_settings(batch),
            )
            return [one] * clients

        row = Row(key, title, SHOWN)
        return fresh_topic_rows(bench, row, names, commands)

    bars = beside_kafka(HEADRACE, KAFKA, KAFKA_FSYNC if KAFKA_FSYNC in names else None)
    return Experiment(key, run, bars)


def _java(key: str, title: str, properties: dict[str, str], names: Sequence[str] = ALL) -> Experiment:
    def run(bench: Bench) -> Row:
        def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
            return [
                kafka_java.produce_command(
                    peer.bootstrap,
                    topic,
                    seconds=bench.scale.seconds,
                    warmup_s=bench.scale.warmup_s,
                    value_bytes=VALUE_BYTES,
                    properties=properties,
                )
            ]

        row = Row(key, title, (*SHOWN, P99_MS))
        return fresh_topic_rows(bench, row, names, commands)

    return Experiment(key, run, beside_kafka(HEADRACE, KAFKA, KAFKA_FSYNC if KAFKA_FSYNC in names else None))


def _settings(batch: int) -> dict[str, str]:
    return SMALL_QUEUE if batch == 1 else {}


def warm_up(bench: Bench, peer: KafkaPeer, topic: str) -> None:
    """Produces in small batches and in large ones, then consumes: `broker_warmup_s` in all."""
    seconds = bench.scale.broker_warmup_s / 3
    commands = [
        rdkafka.produce_command(
            peer.bootstrap,
            topic,
            seconds=seconds,
            batch=batch,
            value_bytes=VALUE_BYTES,
            settings=_settings(batch),
        )
        for batch in (1, DEFAULT_BATCHES)
    ]
    commands.append(rdkafka.consume_command(peer.bootstrap, topic, seconds=seconds, value_bytes=VALUE_BYTES))
    for command in commands:
        run(command, cores=bench.cores.client, log=bench.log("warm-up"))


TWO_CLIENTS_BARS: Final = (Bar(RECORDS_PER_S, HEADRACE, KAFKA, 8.0),)


def experiments() -> list[Experiment]:
    two = _librdkafka(
        "produce-batch-1-two-clients",
        "two producers at once, one record a batch, acks=all",
        1,
        clients=2,
        names=(HEADRACE, KAFKA),
    )
    return [
        _librdkafka("produce-batch-1", "librdkafka, one record a batch, acks=all", 1),
        _librdkafka("produce-batch-50", "librdkafka, 50 records a batch, acks=all", 50),
        _librdkafka("produce-default", "librdkafka, its default batches, acks=all", DEFAULT_BATCHES),
        Experiment(two.key, two.run, (*TWO_CLIENTS_BARS, *two.bars[1:])),
        _java(
            "java-default", "Kafka's ProducerPerformance, its defaults (acks=all, 16 kB, five in flight)", {}
        ),
        _java(
            "java-256k",
            "Kafka's ProducerPerformance, batches of 256 kB, acks=all",
            {"batch.size": "262144", "linger.ms": "10"},
        ),
        _java("java-acks-1", "Kafka's ProducerPerformance, acks=1", {"acks": "1"}, (HEADRACE, KAFKA)),
    ]
