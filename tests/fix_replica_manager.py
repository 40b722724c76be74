"""The replica manager of a broker, with real logs and no ZooKeeper: `ReplicaManagerBench`, and its topics.

Fixture: `bench`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from headrace.broker.cluster import ClusterView
from headrace.broker.leadership.resigning import Resigning
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.manager import ReplicaManager
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.state import BrokerState
from headrace.broker.workers import Outcome, Workers
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import CoordinationError
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import LogDirectory
from headrace.wire.errors import ErrorCode

ME = 1


class CountingWorkers:
    """Threads whose jobs run when `run` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Outcome]] = []
        self.most = 0

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self.jobs.append((job, done))
        self.most = max(self.most, len(self.jobs))

    def run(self) -> None:
        while self.jobs:
            job, done = self.jobs.pop(0)
            try:
                result, error = job(), None
            except Exception as caught:
                result, error = None, caught
            done(result, error)
            del job, done, result, error  # as `Workers` does


class Waiter:
    """A producer that waits for all replicas."""

    durable, timeout_ms = True, 1_000

    def __init__(self, end_address: int) -> None:
        self.end_address = end_address
        self.codes: list[ErrorCode] = []

    def appended(self, code: ErrorCode, message: str | None) -> None:
        self.codes.append(code)


class SilentPeers:
    """Links to other brokers that never answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def ask(self, host: str, port: int, *_: object, **_options: object) -> bool:
        self.asked.append((host, port))
        return True


class SilentRegistry:
    """ZooKeeper's topics: notes changes of partitions, which come to nothing. `held`: what it holds.
    `problem`: why it does not take changes. `reads`: how many topics were read.
    """

    def __init__(self) -> None:
        self.changes: list[PartitionChange] = []
        self.problem: CoordinationError | None = None
        self.held: dict[str, TopicState] = {}
        self.reads = 0

    def get(self, name: str) -> TopicState:
        self.reads += 1
        return self.held[name]

    def set_partition_states(self, changes: list[PartitionChange]) -> list[CoordinationError | None]:
        self.changes += changes
        return [self.problem] * len(changes)


class ReplicaManagerBench:
    """A replica manager with real logs; `apply` gives it the topics that ZooKeeper would report."""

    def __init__(self, folder: Path) -> None:
        self.workers = CountingWorkers()
        self.timers: list[Callable[[], None]] = []
        workers = cast(Workers, self.workers)
        self.directory = LogDirectory(folder)
        self.directory.claim(ME)
        nothing = cast(Any, None)
        self.state = BrokerState(
            broker_id=ME,
            datacenter="test",
            cluster_id="test",
            config=BrokerConfig(),
            loop=cast(
                Any,
                SimpleNamespace(
                    post=None,
                    at_wakeup_end=lambda _: None,
                    call_later=lambda _delay_ms, call: self.timers.append(call),
                ),
            ),
            partitions=Partitions(workers, lambda *_: nothing),
            control=nothing,
            codec=nothing,
            topics=nothing,
            on_demand=nothing,
            lookups=nothing,
            cold_reads=nothing,
        )
        self.followed = FollowedPartitions(workers, lambda *_: nothing)
        self.peers = SilentPeers()
        self.fetchers = Fetchers(self.state, self.followed, cast(Any, self.peers))
        self.registry = SilentRegistry()
        resigning = Resigning(self.state, cast(Any, self.registry), workers)
        self.manager = ReplicaManager(
            self.state, self.directory, workers, self.followed, self.fetchers, resigning
        )

    def apply(self, *topics: TopicState, may_delete: bool = True) -> None:
        by_name = {topic.name: topic for topic in topics}
        self.state.view = ClusterView().with_topics(by_name)
        self.manager.apply(by_name, may_delete=may_delete)

    @staticmethod
    def brokers(*ids: int) -> list[BrokerRegistration]:
        return [BrokerRegistration(broker_id, "127.0.0.1", 9092, "test", "", 7) for broker_id in ids]

    @property
    def open(self) -> set[str]:
        return {str(partition.name) for partition in self.state.partitions}


def topic(
    name: str,
    partitions: int,
    *,
    topic_id: UUID | None = None,
    leader: int = ME,
    epoch: int = 0,
    **config: str,
) -> TopicState:
    states = {index: PartitionState(leader, epoch, (leader,), (leader,)) for index in range(partitions)}
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return TopicState(name, topic_id or uuid4(), states, settings)


def led_elsewhere(like: TopicState) -> TopicState:
    """The same topic, led by another broker. Not all of its replicas are in sync, so files here are kept."""
    states = {
        index: PartitionState(9, state.leader_epoch, (9, 8), (9,)) for index, state in like.partitions.items()
    }
    return TopicState(like.name, like.topic_id, states, like.config)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ReplicaManagerBench]:
    made = ReplicaManagerBench(tmp_path / "data")
    yield made
    made.state.partitions.close()
    made.directory.close()
