"""From the call that produces a record to the call that returns it, at a steady rate."""

from __future__ import annotations

from typing import Final

from experiments.context import HEADRACE, KAFKA, KAFKA_FSYNC, Bench, Experiment, fresh_topic_rows
from peers.peer import KafkaPeer
from side_by_side.bars import Bar
from side_by_side.figures import BROKER_CPU, P50_MS, P99_MS, Row

from clients import python

RECORDS_PER_S: Final = 1000


def end_to_end(bench: Bench) -> Row:
    def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
        return [
            python.latency_command(
                peer.bootstrap,
                topic,
                rate=RECORDS_PER_S,
                seconds=bench.scale.seconds,
            )
        ]

    row = Row(
        "latency",
        f"end to end at {RECORDS_PER_S:,} records/s, acks=all, without linger",
        (P50_MS, P99_MS, BROKER_CPU),
        "headrace shows a record to consumers once it is on the disk, Kafka as soon as it is in memory.",
    )
    return fresh_topic_rows(bench, row, (HEADRACE, KAFKA, KAFKA_FSYNC), commands)


def experiments() -> list[Experiment]:
    return [Experiment("latency", end_to_end, (Bar(P99_MS, HEADRACE, KAFKA, 0.5, at_least=False),))]
