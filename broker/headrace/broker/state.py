"""The parts of this broker that handlers work with, in one value. Owns no logic except lookups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import Refused
from headrace.broker.lookups import Lookups
from headrace.broker.loop import EventLoop
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.produce.checks import RecordChecks
from headrace.broker.produce.refusals import Refusals
from headrace.broker.promise import Promise
from headrace.broker.topics import TopicAdmin
from headrace.broker.workers import Workers
from headrace.process.clock import now_ms
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


@dataclass
class BrokerState:
    """Used on the loop's thread only. `control`: threads for calls to ZooKeeper and to other brokers."""

    broker_id: int
    datacenter: str
    cluster_id: str
    config: BrokerConfig
    loop: EventLoop
    partitions: Partitions
    control: Workers
    topics: TopicAdmin
    lookups: Lookups
    clock_ms: Callable[[], int] = now_ms
    peer: str = ""  # the client of the request being handled
    view: ClusterView = field(default_factory=ClusterView)
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

    def storage_failed(self, partition: Partition, error: Exception) -> None:
        """Reports that a log could not be read, once per partition and cause."""
        if partition.failure != str(error):
            partition.fail(str(error))
            logger.error("%s: %s", partition.name, error)

    def later(self, field_name: str, job: Callable[[], list[Tree]]) -> Promise[Tree | Exception]:
        """Runs a blocking job on a control thread; the tree has its results as the only field."""
        promise: Promise[Tree | Exception] = Promise()
        self.control.submit(
            job, lambda found, error: promise.resolve({field_name: found} if error is None else error)
        )
        return promise
