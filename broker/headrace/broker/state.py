"""The parts of this broker that handlers work with, in one value. Owns no logic except lookups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView, OfflineName
from headrace.broker.cold_reads import ColdReads
from headrace.broker.errors import Refused
from headrace.broker.expiry_clock import ExpiryClock
from headrace.broker.fair_workers import FairWorkers
from headrace.broker.lookups import Lookups
from headrace.broker.loop import EventLoop
from headrace.broker.on_demand import TopicsOnDemand
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.produce.checks import RecordChecks
from headrace.broker.produce.refusals import Refusals
from headrace.broker.promise import Promise
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.scrubber import Damage
from headrace.broker.settings.config import BrokerConfig, TopicConfig
from headrace.broker.settings.dynamic import BrokerSettings, Throttles
from headrace.broker.settings.usable import usable
from headrace.broker.topics import TopicAdmin
from headrace.coordination.topics import TopicState
from headrace.log.directory import PartitionName
from headrace.process.clock import monotonic_ms, now_ms
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")

STEPS_MAX_S: Final = 0.02  # of one request, before other clients' work has its turn
OFFLINE_SHOWN_MAX: Final = 100  # on the status page
CHECK_MS: Final = 20  # how often `when` checks
WHEN_MAX_S: Final = 30.0  # whatever time a client gives


class StoredReplica(NamedTuple):
    """A replica on this broker's disk. `behind_bytes`: what it lacks of its leader's high watermark."""

    name: PartitionName
    size_bytes: int
    start_address: int
    end_address: int
    behind_bytes: int


class FollowerSession(Protocol):
    """A follower's Fetch session. `refresh` notes what its last request said of all its partitions;
    `asked_ms`: when that came.
    """

    asked_ms: float

    def refresh(self) -> None: ...
    def close(self) -> None: ...


CUT_OFF: Final = (
    "ZooKeeper does not answer this broker, and no follower that could lead asks it any more: "
    "another broker may lead"
)


@dataclass
class BrokerState:
    """Used on the loop's thread only. `control`: threads for calls to ZooKeeper and to other brokers;
    `codec`: a thread for large messages. `unopened`: the partitions whose logs are offline here, and why.
    `damaged`: those of them whose logs are damaged. `damage`: what the scrub knows of this broker's disk.
    `followed`: the replicas that are open here and led by others.

    `clock_ms` is the time of day, for timestamps; deadlines are measured by `monotonic_ms`, and events expire
    by `expiry_clock`.
    """

    broker_id: int
    datacenter: str
    cluster_id: str
    config: BrokerConfig
    loop: EventLoop
    partitions: Partitions
    control: FairWorkers
    codec: FairWorkers
    topics: TopicAdmin
    on_demand: TopicsOnDemand
    lookups: Lookups
    cold_reads: ColdReads
    damage: Callable[[], Damage] = Damage
    broker_settings: BrokerSettings | None = None
    followed: Callable[[], Iterable[StoredReplica]] = tuple
    clock_ms: Callable[[], int] = now_ms
    monotonic_ms: Callable[[], int] = monotonic_ms
    expiry_clock: ExpiryClock = field(default_factory=ExpiryClock)
    peer: str = ""  # the client of the request being handled
    view: ClusterView = field(default_factory=ClusterView)
    data_dir: Path = Path()
    unopened: dict[PartitionName, str] = field(default_factory=dict)
    damaged: set[PartitionName] = field(default_factory=set)
    offline_changed: Callable[[], None] = lambda: None
    follower_asked: Callable[[Partition, int], None] = lambda _partition, _replica: None
    find_followed: Callable[[PartitionName], FollowedPartition | None] = lambda _: None
    in_sync_seen: Callable[[Partition], None] = lambda _: None  # by a watch, and other than stored
    delete_before: Callable[[Partition, int], bool] = lambda _partition, _address: False  # see `Retention`
    refusals: Refusals = field(default_factory=Refusals)
    follower_sessions: dict[int, FollowerSession] = field(default_factory=dict)  # by the follower's id
    throttles: Throttles = field(default_factory=Throttles)
    cut_off: frozenset[PartitionName] = frozenset()  # see `replicas.cut_off`
    is_left: bool = False  # all that it leads is cut off
    append_refusal: str | None = None  # why no append is accepted at present
    keep: Callable[[int], None] = lambda _: None  # told how much more memory requests take that wait
    checks: RecordChecks = field(init=False)

    def __post_init__(self) -> None:
        self.checks = RecordChecks(self.loop)

    def topic_config(self, topic: TopicState) -> TopicConfig:
        """Returns a topic's settings; of each that is invalid, which is said in the log, the default, or what
        deletes nothing.
        """
        found, problems = usable(topic.config)
        for problem in problems:
            logger.error(
                "topic %s: %s; until it is set anew the default is used, and nothing is deleted by it",
                topic.name,
                problem,
            )
        return self.config.topic_config(found)

    def led_partition(self, topic: str, index: int) -> Partition:
        """Returns a partition that this broker leads and whose log is online. Raises `Refused`."""
        found = self.partitions.get(topic, index)
        if found is not None:
            if found.log.offline is not None:
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(found.log.offline))
            return found
        known = self.view.partition(topic, index)
        if known is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        problem = self.unopened.get(PartitionName(topic, index))
        if known.leader == self.broker_id and problem is not None:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, problem)
        if known.leader == self.broker_id:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{index} is not open here yet")
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is led by broker {known.leader}")

    def refuse_appends(self, reason: str | None) -> None:
        """Refuses all appends from now on, for this reason; None: accepts them again."""
        self.append_refusal = reason

    def check_leader_epoch(self, partition: Partition | FollowedPartition, epoch: int) -> None:
        """Raises `Refused` for a client that does not know the present epoch (KIP-320)."""
        if 0 <= epoch < partition.leader_epoch:
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH, f"{partition.name} has leader epoch {partition.leader_epoch}"
            )
        if epoch > partition.leader_epoch:
            raise Refused(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.name} has leader epoch {partition.leader_epoch}"
            )

    def is_past_epoch(self, broker_id: int, epoch: int) -> bool:
        """Whether a broker that asks with this broker epoch has registered again since (KIP-903)."""
        return 0 <= epoch < self.view.broker_epoch(broker_id)

    def is_registered_epoch(self, broker_id: int, epoch: int) -> bool:
        """Whether a broker is registered with this very broker epoch, as far as this one has seen."""
        return 0 <= epoch == self.view.broker_epoch(broker_id)

    @staticmethod
    def check_not_cut_off(partition: Partition) -> None:
        """Raises `Refused` if another broker may lead the partition by now."""
        if partition.cut_off:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name}: {CUT_OFF}")

    @staticmethod
    def check_in_sync(partition: Partition) -> None:
        """Raises `Refused` if acks=all could not be answered: too few replicas are in sync."""
        replicas = partition.replicas
        if replicas is not None and replicas.is_below_min:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{partition.name}: only the replicas {sorted(replicas.stored)} are in sync, and "
                f"min.insync.replicas is {replicas.min_in_sync}",
            )

    def read_failed(self, partition: Partition | FollowedPartition, error: Exception) -> None:
        """Reports that a batch could not be read, once in a row. Only the readers of that batch get an error:
        what is appended goes elsewhere.
        """
        if partition.read_problem != str(error):
            partition.read_problem = str(error)
            logger.error("%s: %s", partition.name, error)

    # --- partitions that are offline ---

    def note_unopened(self, name: PartitionName, problem: str, *, is_damaged: bool = False) -> None:
        """Notes that this broker's log of a partition is offline: it failed, or cannot be opened."""
        self.unopened[name] = problem
        if is_damaged:
            self.damaged.add(name)
        self._changed_offline()

    def forget_unopened(self, name: PartitionName) -> bool:
        """Returns whether the partition was noted."""
        self.damaged.discard(name)
        if self.unopened.pop(name, None) is None:
            return False
        self._changed_offline()
        return True

    def _changed_offline(self) -> None:
        self.view = self.view.changed()
        self.offline_changed()

    def note_cut_off(self, names: frozenset[PartitionName], *, is_left: bool) -> None:
        """Notes the partitions that another broker may lead by now: Metadata names no leader of them, and not
        this broker either if these are all (`is_left`).
        """
        if (names, is_left) != (self.cut_off, self.is_left):
            self.cut_off, self.is_left = names, is_left
            self.view = self.view.changed()

    def leaderless(self) -> frozenset[OfflineName]:
        """Returns the partitions of which this broker knows no leader that serves them."""
        own = ((self.broker_id, name.topic, name.partition) for name in self.cut_off)
        return self.offline_logs() | frozenset(own)

    def offline_logs(self) -> frozenset[OfflineName]:
        """Returns the logs of all brokers, of this one, too, that are known to be offline. Any thread."""
        return self.view.offline | self.own_offline()

    def see_offline(self, names: frozenset[OfflineName]) -> None:
        """Takes what ZooKeeper holds of logs that are offline."""
        others = frozenset(name for name in names if name[0] != self.broker_id)
        if others != self.view.offline:
            self.view = self.view.with_offline(others)

    def own_offline(self) -> frozenset[OfflineName]:
        """Returns what other brokers call the partitions that are offline here. Any thread."""
        return frozenset((self.broker_id, name.topic, name.partition) for name in self.unopened.copy())

    def offline_report(self) -> dict[str, Any]:
        """Returns what the status page says of them. Any thread."""
        partitions = [
            {"partition": str(name), "problem": problem} for name, problem in self.unopened.copy().items()
        ]
        return {"count": len(partitions), "partitions": partitions[:OFFLINE_SHOWN_MAX]}

    # --- blocking work ---

    def in_steps(self, steps: Sequence[Callable[[Refused | None], T]]) -> Promise[list[T] | Exception]:
        """Runs blocking steps one after the other on control threads, and resolves with their results.

        After `STEPS_MAX_S` other clients have their turn. A step gets None; when too much work waits already,
        it gets the refusal, and must not block.
        """
        promise: Promise[list[T] | Exception] = Promise()
        results: list[T] = []

        def run() -> list[T]:
            until_s = time.monotonic() + STEPS_MAX_S
            done = [steps[len(results)](None)]
            while len(results) + len(done) < len(steps) and time.monotonic() < until_s:
                done.append(steps[len(results) + len(done)](None))
            return done

        def go_on(done: list[T] | None, error: Exception | None) -> None:
            results.extend(done or ())
            if isinstance(error, Refused):
                results.extend(step(error) for step in steps[len(results) :])
                error.kept()  # the steps have raised it, and have it among their variables
            elif error is not None:
                promise.resolve(error)
                return
            if len(results) < len(steps):
                self.control.submit(run, go_on)
            else:
                promise.resolve(results)

        go_on(None, None)
        return promise

    def later(
        self, field_name: str, steps: Sequence[Callable[[Refused | None], Tree]]
    ) -> Promise[Tree | Exception]:
        """Runs steps as `in_steps` does; the tree has their results as its only field."""
        promise: Promise[Tree | Exception] = Promise()
        self.in_steps(steps).then(
            lambda found: promise.resolve(found if isinstance(found, Exception) else {field_name: found})
        )
        return promise

    def when(self, reached: Callable[[], bool], deadline_s: float) -> Promise[None]:
        """Resolves when `reached()` returns True, at the deadline or after `WHEN_MAX_S`. It is called on
        control threads, again and again, and occupies none in between.
        """
        deadline_s = min(deadline_s, time.monotonic() + WHEN_MAX_S)
        promise: Promise[None] = Promise()
        client = self.control.client

        def check() -> None:
            self.control.client = client
            self.control.submit(reached, checked)

        def checked(is_reached: bool | None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, Refused):
                logger.error("waiting for a change failed", exc_info=error)
            if is_reached or time.monotonic() >= deadline_s:
                promise.resolve(None)
            else:
                self.loop.call_later(CHECK_MS, check)

        check()
        return promise
