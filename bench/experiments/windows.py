"""A producer whose rounds are all the same work: windows of the same requests. For small differences."""

from __future__ import annotations

from typing import Final

from experiments.context import HEADRACE, VALUE_BYTES, Bench, Experiment, fresh_topic_rows
from peers.peer import KafkaPeer
from side_by_side.figures import BROKER_CPU, RECORDS_PER_S, Row

from clients import python

WINDOWS: Final = ((1, 1000), (50, 200))
"""Records in a request, and requests in a window."""


def _windows(batch: int, requests: int) -> Experiment:
    key, records = f"windows-batch-{batch}", "one record" if batch == 1 else f"{batch} records"

    def run(bench: Bench) -> Row:
        def commands(peer: KafkaPeer, topic: str) -> list[list[str]]:
            one = python.windows_command(
                peer.bootstrap,
                topic,
                requests=requests,
                batch=batch,
                value_bytes=VALUE_BYTES,
                seconds=bench.scale.seconds,
                warmup_s=bench.scale.warmup_s,
            )
            return [one]

        title = f"the same {requests} requests of {records}, all answered, again and again; acks=all"
        return fresh_topic_rows(bench, Row(key, title, (RECORDS_PER_S, BROKER_CPU)), (HEADRACE,), commands)

    return Experiment(key, run)


def experiments() -> list[Experiment]:
    return [_windows(batch, requests) for batch, requests in WINDOWS]
