"""Three broker processes beside one: headrace uses more cores by running more brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.context import VALUE_BYTES, Bench, Experiment, fresh_topic_rows
from peers.peer import KafkaPeer
from side_by_side.figures import BROKER_CPU, RECORDS_PER_S, Row

from clients import rdkafka

ONE: Final = "headrace, 1 broker"
THREE: Final = "headrace, 3 brokers"
BROKERS: Final = 3
PARTITIONS: Final = 3
BATCH: Final = 50


def three(bench: Bench) -> Row:
    cores = len(bench.cores.broker)

    def commands(peer: KafkaPeer, topic: str) -> Sequence[Sequence[str]]:
        return [
            rdkafka.produce_command(
                peer.bootstrap,
                topic,
                seconds=bench.scale.seconds,
                warmup_s=bench.scale.warmup_s,
                batch=BATCH,
                value_bytes=VALUE_BYTES,
                partitions=PARTITIONS,
            )
        ]

    row = Row(
        "more-brokers",
        f"librdkafka, {BATCH} records a batch: three brokers and one",
        (RECORDS_PER_S, BROKER_CPU),
        f"The brokers have {cores} core(s) in all: where they have more, three can be faster than one.",
    )
    return fresh_topic_rows(bench, row, (THREE, ONE), commands, partitions=PARTITIONS)


def experiments() -> list[Experiment]:
    return [Experiment("more-brokers", three)]
