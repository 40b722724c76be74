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
MIRROR_MAKERS_SHARE: Final = 4
"""MirrorMaker copies so many times fewer bytes, at about 10 MB/s: its rounds would take most of the run."""

MakeBroker = Callable[[Path, str], KafkaPeer]


def _contender(
    bench: Bench, name: str, make: MakeBroker, start: mirror.StartMirror, first_host: int, size_bytes: int
) -> Contender:
    home = bench.home / f"mirror-{first_host}"
    source = make(home / "source", f"{NETWORK}.{first_host}")
    target = make(home / "target", f"{NETWORK}.{first_host + 1}")
    job = mirror.Job("mirrored", size_bytes, VALUE_BYTES)
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
    ours_bytes = bench.scale.mirror_bytes
    theirs_bytes = ours_bytes // MIRROR_MAKERS_SHARE
    row = Row(
        "mirror",
        f"a mirror of {ours_bytes / mirror.GB:g} GB (MirrorMaker: {theirs_bytes / mirror.GB:g} GB),"
        " from its first copied byte to its last",
        (MB_PER_S, CPU_PER_GB),
        "The CPU is that of the mirror and of both clusters' brokers. MirrorMaker's brokers do not fsync.",
    )

    def ours(home: Path, host: str) -> HeadraceBroker:
        return HeadraceBroker(home, host, cores)

    def theirs(home: Path, host: str) -> ApacheKafka:
        return ApacheKafka(home, host, cores)

    contenders = [
        _contender(bench, HEADRACE, ours, mirror.start_headrace, 1, ours_bytes),
        _contender(bench, MIRROR_MAKER, theirs, mirror.start_mirror_maker, 3, theirs_bytes),
    ]
    run_rounds(row, contenders, bench.scale.long_rounds)
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
