"""What every experiment is given: the size of the run, the cores, the folders and the brokers that run."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from peers.peer import KafkaPeer, Peer
from side_by_side.bars import Bar
from side_by_side.figures import Row, Sample
from side_by_side.machine import Cores
from side_by_side.measuring import Command, Contender, run_clients, run_rounds
from side_by_side.profiling import profiled

HEADRACE: Final = "headrace"
BEFORE: Final = "headrace, before"
"""Today's clients, and brokers of an earlier commit (`experiments.since`)."""
KAFKA: Final = "Apache Kafka"
KAFKA_FSYNC: Final = "Apache Kafka, fsync"
VALUE_BYTES: Final = 200
"""The paper's message size, and that of most of its tests."""


@dataclass(frozen=True)
class Scale:
    """The size of a run."""

    rounds: int
    seconds: float
    warmup_s: float
    mirror_bytes: int
    small_log_bytes: int
    large_log_bytes: int
    restart_bytes: int
    partitions: int
    connections: int
    queue_s: float
    """A message queue is filled to last about so long when it is consumed."""
    broker_warmup_s: float
    """How long each broker works before the first row: a JVM compiles meanwhile."""
    long_rounds: int
    """Rounds of the rows where a round takes most of its time to begin: the mirror's, the message queues'."""

    def produced_bytes(self, seconds: float) -> int:
        """Returns what one round of producing for so long may write."""
        return int(PRODUCED_MAX_BYTES_PER_S * (seconds + self.warmup_s))


GB: Final = 1_000_000_000
PRODUCED_MAX_BYTES_PER_S: Final = 600_000_000
FULL: Final = Scale(5, 10.0, 2.0, 2 * GB, GB, 20 * GB, 10 * GB, 500, 1000, 10.0, 12.0, 5)
QUICK: Final = Scale(2, 3.0, 0.8, GB // 8, GB // 4, 2 * GB, GB // 2, 100, 200, 2.0, 6.0, 1)
SMOKE: Final = Scale(1, 0.7, 0.3, GB // 100, GB // 100, GB // 50, GB // 100, 8, 20, 0.1, 0.0, 1)


@dataclass
class Bench:
    """A run in progress. `brokers`: those that run now, by the name that tables show."""

    scale: Scale
    cores: Cores
    home: Path
    is_profiling: bool = False
    brokers: dict[str, KafkaPeer] = field(default_factory=dict)
    others: dict[str, Peer] = field(default_factory=dict)
    _topics: Iterator[int] = field(default_factory=itertools.count)

    def log(self, name: str) -> Path:
        """Returns the log file of a client."""
        return self.home / "logs" / f"{name}.log"

    def new_topic(self, key: str) -> str:
        """Returns a name that no topic of this run has."""
        return f"{key}-{next(self._topics)}"

    def present(self, names: Iterable[str]) -> list[str]:
        """Returns which of these brokers run; with headrace's own those of an earlier commit, too."""
        present = [name for name in names if name in self.brokers]
        return [*present, BEFORE] if HEADRACE in present and BEFORE in self.brokers else present

    def clients(self, key: str, peer: Peer, arguments: Sequence[Sequence[str]]) -> Sample:
        """Runs clients at once on the clients' cores; returns the figures of the round."""
        commands = [
            Command(each, self.cores.client, self.log(f"{key}-{number}"))
            for number, each in enumerate(arguments)
        ]
        with ExitStack() as stack:
            if self.is_profiling and peer.name.startswith(HEADRACE):
                stack.enter_context(profiled(peer.pids(), self.home / "profiles", key, self.cores.client))
            return run_clients(commands, peer.pids())


MakeClients = Callable[[KafkaPeer, str], Sequence[Sequence[str]]]
"""From a broker and a topic to the command lines of the clients of one round."""


def fresh_topic_rows(
    bench: Bench, row: Row, names: Iterable[str], clients: MakeClients, *, partitions: int = 1
) -> Row:
    """Measures clients that produce, each round into a topic of its own, which is deleted afterwards."""

    def contender(name: str) -> Contender:
        peer = bench.brokers[name]
        topics: dict[int, str] = {}

        def before(number: int) -> None:
            topics[number] = bench.new_topic(row.key)
            peer.create_topic(topics[number], partitions)

        def work(number: int) -> Sample:
            return bench.clients(row.key, peer, clients(peer, topics[number]))

        return Contender(name, work, before, lambda number: peer.delete_topic(topics[number]))

    run_rounds(row, [contender(name) for name in bench.present(names)], bench.scale.rounds)
    return row


def shared_topic_rows(
    bench: Bench,
    row: Row,
    names: Iterable[str],
    fill: Callable[[KafkaPeer, str], None],
    clients: MakeClients,
    *,
    partitions: int = 1,
) -> Row:
    """Measures clients that consume: each broker gets one topic, filled once, read in every round."""
    present = bench.present(names)
    topics: Mapping[str, str] = {name: bench.new_topic(row.key) for name in present}
    try:
        for name in present:
            bench.brokers[name].create_topic(topics[name], partitions)
            fill(bench.brokers[name], topics[name])

        def contender(name: str) -> Contender:
            peer = bench.brokers[name]
            return Contender(name, lambda _: bench.clients(row.key, peer, clients(peer, topics[name])))

        run_rounds(row, [contender(name) for name in present], bench.scale.rounds)
    finally:
        for name in present:
            bench.brokers[name].delete_topic(topics[name])
    return row


@dataclass(frozen=True)
class Experiment:
    """One row of the run: how it is measured, and its bars. `room_bytes`: what it may write to the disk; by
    default one round of producing.
    """

    key: str
    run: Callable[[Bench], Row]
    bars: tuple[Bar, ...] = ()
    room_bytes: Callable[[Scale], int] = lambda scale: scale.produced_bytes(scale.seconds)

    def missing_room(self, bench: Bench) -> str:
        """Returns why the disk is too full for the row, or ""."""
        wanted_bytes = self.room_bytes(bench.scale)
        free_bytes = shutil.disk_usage(bench.home).free
        if free_bytes >= wanted_bytes:
            return ""
        return (
            f"{self.key} may write {wanted_bytes / 1e9:.0f} GB, and {bench.home} has "
            f"{free_bytes / 1e9:.0f} GB left"
        )


@contextmanager
def running(bench: Bench, brokers: Mapping[str, KafkaPeer], others: Mapping[str, Peer]) -> Iterator[None]:
    """Starts brokers, for the rows of the block, and stops them and deletes their data afterwards."""
    with ExitStack() as stack:
        for name, broker in brokers.items():
            stack.callback(broker.stop)
            broker.start()
            bench.brokers[name] = broker
            stack.callback(bench.brokers.pop, name)
        for name, other in others.items():
            stack.callback(other.stop)
            other.start()
            bench.others[name] = other
            stack.callback(bench.others.pop, name)
        yield
