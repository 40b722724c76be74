"""What this broker knows of the whole datacenter: live brokers and topics, as one immutable value.

A new one replaces it when ZooKeeper reports a change; it is never edited, so any thread may read it. While
ZooKeeper is unreachable, the last one is still used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState

NO_BROKER: Final = -1
NO_EPOCH: Final = -1

OfflineName = tuple[int, str, int]


def metric_name(topic: str) -> str:
    """Returns what Kafka's tools call a topic in the names of metrics."""
    return topic.replace(".", "_")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The live brokers and all topics. `version` grows with every change. `offline`: partitions that other
    brokers lead and cannot serve, as (broker, topic, partition). `names_by_metric` has one topic for each
    name that topics have in metrics.
    """

    version: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    names_by_id: Mapping[UUID, str] = field(default_factory=dict)
    offline: frozenset[OfflineName] = frozenset()
    names_by_metric: Mapping[str, str] = field(default_factory=dict)
    controller: int = NO_BROKER

    def with_brokers(self, brokers: list[BrokerRegistration]) -> ClusterView:
        return replace(self, version=self.version + 1, brokers={b.broker_id: b for b in brokers})

    def with_topics(self, topics: Mapping[str, TopicState]) -> ClusterView:
        return replace(
            self,
            version=self.version + 1,
            topics=dict(topics),
            names_by_id={topic.topic_id: name for name, topic in topics.items()},
            names_by_metric={metric_name(name): name for name in topics},
        )

    def with_offline(self, offline: frozenset[OfflineName]) -> ClusterView:
        return replace(self, version=self.version + 1, offline=offline)

    def with_controller(self, broker_id: int) -> ClusterView:
        return replace(self, version=self.version + 1, controller=broker_id)

    def changed(self) -> ClusterView:
        """Returns the same with a new version, so that no answer made of the old one is used again."""
        return replace(self, version=self.version + 1)

    def partition(self, topic: str, index: int) -> PartitionState | None:
        state = self.topics.get(topic)
        return None if state is None else state.partitions.get(index)

    def broker_epoch(self, broker_id: int) -> int:
        """Returns the epoch of a broker's registration; `NO_EPOCH` if it is not known."""
        broker = self.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def controller_id(self) -> int:
        """Returns the elected controller, and while there is none the lowest live id: any broker takes what
        tools send to the controller."""
        return self.controller if self.controller in self.brokers else min(self.brokers, default=NO_BROKER)
