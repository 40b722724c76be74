"""The parts of this broker that handlers work with, in one value. Owns no logic except lookups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.cold_reads import ColdReads
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import Refused
from headrace.broker.fair_workers import FairWorkers
from headrace.broker.lookups import Lookups
from headrace.broker.loop import EventLoop
from headrace.broker.on_demand import TopicsOnDemand
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.produce.checks import RecordChecks
from headrace.broker.produce.refusals import Refusals
from headrace.broker.promise import Promise
from headrace.broker.topics import TopicAdmin
from headrace.log.directory import PartitionName
from headrace.process.clock import monotonic_ms, now_ms
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


@dataclass
class BrokerState:
    """Used on the loop's thread only. `control`: threads for calls to ZooKeeper and to other brokers;
    `codec`: a thread for large messages.

    `clock_ms` is the time of day, for timestamps; deadlines are measured by `monotonic_ms`.
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
    clock_ms: Callable[[], int] = now_ms
    monotonic_ms: Callable[[], int] = monotonic_ms
    peer: str = ""  # the client of the request being handled
    view: ClusterView = field(default_factory=ClusterView)
    unopened: dict[PartitionName, str] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    checks: RecordChecks = field(init=False)

    def __post_init__(self) -> None:
        self.checks = RecordChecks(self.loop)

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
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the log of {topic}-{index} is not open yet")
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is led by broker {known.leader}")

    def check_leader_epoch(self, partition: Partition, epoch: int) -> None:
        """Raises `Refused` for a client that does not know the present epoch (KIP-320)."""
        if 0 <= epoch < partition.leader_epoch:
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH, f"{partition.name} has leader epoch {partition.leader_epoch}"
            )
        if epoch > partition.leader_epoch:
            raise Refused(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.name} has leader epoch {partition.leader_epoch}"
            )

    def read_failed(self, partition: Partition, error: Exception) -> None:
        """Reports that a batch could not be read, once in a row. Only the readers of that batch get an error:
        what is appended goes elsewhere.
        """
        if partition.read_problem != str(error):
            partition.read_problem = str(error)
            logger.error("%s: %s", partition.name, error)

    # --- partitions that cannot be opened ---

    def note_unopened(self, name: PartitionName, problem: str) -> None:
        """Notes that the log of a partition that this broker leads cannot be opened: it is offline."""
        self.unopened[name] = problem
        self.view = self.view.changed()

    def forget_unopened(self, name: PartitionName) -> bool:
        """Returns whether the partition was noted."""
        if self.unopened.pop(name, None) is None:
            return False
        self.view = self.view.changed()
        return True

    def later(
        self, field_name: str, job: Callable[[Refused | None], list[Tree]]
    ) -> Promise[Tree | Exception]:
        """Runs a blocking job on a control thread; the tree has its results as the only field.

        `job` gets None. If too much work waits already, it gets the refusal, and must not block.
        """
        promise: Promise[Tree | Exception] = Promise()
        refusal = self.control.refusal
        if refusal is not None:
            promise.resolve({field_name: job(refusal)})
            return promise
        self.control.submit(
            lambda: job(None),
            lambda found, error: promise.resolve({field_name: found} if error is None else error),
        )
        return promise
