"""A mirror of one topic between two clusters: headrace's, and MirrorMaker 2 between Apache Kafka's brokers.

Each round starts its two clusters and removes them afterwards, so that the others use nothing meanwhile. Both
clusters share the brokers' cores; the mirror has the clients'.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from experiments.context import HEADRACE, VALUE_BYTES, Bench, Experiment
from peers.headrace_broker import HeadraceBroker
from peers.kafka import ApacheKafka
from peers.peer import KafkaPeer
from side_by_side.bars import Bar
from side_by_side.figures import CPU_PER_GB, MB_PER_S, Row, Sample
from side_by_side.measuring import Contender, run_rounds

from clients import mirror

MIRROR_MAKER: Final = "MirrorMaker 2"
NETWORK: Final = "127.106.1"

MakeBroker = Callable[[Path, str], KafkaPeer]


def _contender(
    bench: Bench, name: str, make: MakeBroker, start: mirror.StartMirror, first_host: int
) -> Contender:
    home = bench.home / f"mirror-{first_host}"
    source = make(home / "source", f"{NETWORK}.{first_host}")
    target = make(home / "target", f"{NETWORK}.{first_host + 1}")
    job = mirror.Job("mirrored", bench.scale.mirror_bytes, VALUE_BYTES)
    cores = bench.cores.client

    def work(_: int) -> Sample:
        try:
            source.start()
            target.start()
            mirror.fill(source, job, cores=cores, log=bench.log("mirror-fill"))
            return mirror.measure(start, source, target, job, cores=cores, home=home / "mirror")
        finally:
            source.stop()
            target.stop()

    return Contender(name, work)


def between_clusters(bench: Bench) -> Row:
    cores = bench.cores.broker
    row = Row(
        "mirror",
        f"a mirror of {bench.scale.mirror_bytes / mirror.GB:g} GB, from its first copied byte to its last",
        (MB_PER_S, CPU_PER_GB),
        "The CPU is that of the mirror and of both clusters' brokers. MirrorMaker's brokers do not fsync.",
    )
    ours = _contender(
        bench, HEADRACE, lambda home, host: HeadraceBroker(home, host, cores), mirror.start_headrace, 1
    )
    theirs = _contender(
        bench, MIRROR_MAKER, lambda home, host: ApacheKafka(home, host, cores), mirror.start_mirror_maker, 3
    )
    run_rounds(row, [ours, theirs], bench.scale.rounds)
    return row


def experiments() -> list[Experiment]:
    return [
        Experiment(
            "mirror",
            between_clusters,
            (
                Bar(MB_PER_S, HEADRACE, MIRROR_MAKER, 10.0),
                Bar(CPU_PER_GB, HEADRACE, MIRROR_MAKER, 0.5, at_least=False),
            ),
        )
    ]
