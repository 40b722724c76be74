"""What this broker knows of the whole datacenter: live brokers and topics, as one immutable value.

A new one replaces it when ZooKeeper reports a change; it is never edited, so any thread may read it. While
ZooKeeper is unreachable, the last one is still used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from headrace.broker.settings.dynamic import is_drained
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState

NO_BROKER: Final = -1
NO_EPOCH: Final = -1

OfflineName = tuple[int, str, int]


def metric_name(topic: str) -> str:
    """Returns what Kafka's tools call a topic in the names of metrics."""
    return topic.replace(".", "_")


def stopping_of(brokers: Iterable[BrokerRegistration]) -> frozenset[int]:
    """Returns those of these brokers that say that they stop."""
    return frozenset(each.broker_id for each in brokers if each.is_stopping)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The live brokers and all topics. `version` grows with every change. `offline`: logs of other
    brokers that are offline, as (broker, topic, partition). `names_by_metric` has one topic for each
    name that topics have in metrics. `broker_configs`: settings of brokers that were set while they ran.
    `stopping`: the live brokers that say that they stop.
    """

    version: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    names_by_id: Mapping[UUID, str] = field(default_factory=dict)
    offline: frozenset[OfflineName] = frozenset()
    names_by_metric: Mapping[str, str] = field(default_factory=dict)
    controller: int = NO_BROKER
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()

    def with_brokers(self, brokers: list[BrokerRegistration]) -> ClusterView:
        return replace(
            self,
            version=self.version + 1,
            brokers={each.broker_id: each for each in brokers},
            stopping=stopping_of(brokers),
        )

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

    def with_broker_configs(self, configs: Mapping[int, Mapping[str, str]]) -> ClusterView:
        return replace(self, version=self.version + 1, broker_configs=configs)

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

    @property
    def drained(self) -> frozenset[int]:
        """The brokers, also dead ones, that get no new replicas."""
        return frozenset(each for each, config in self.broker_configs.items() if is_drained(config))

    @property
    def placeable(self) -> dict[int, BrokerRegistration]:
        """The live brokers that new partitions are placed on."""
        drained = self.drained
        return {each: broker for each, broker in self.brokers.items() if each not in drained}

    def away(self) -> frozenset[int]:
        """Returns the brokers that are dead at present: they have replicas, and are not drained. They get new
        replicas where there are more to place than live brokers, and follow when they are back.
        """
        return self._with_replicas() - self.brokers.keys() - self.drained

    def _with_replicas(self) -> frozenset[int]:
        return frozenset(
            each
            for topic in self.topics.values()
            for state in topic.partitions.values()
            for each in state.replicas
        )

    def known_brokers(self) -> frozenset[int]:
        """Returns the brokers that are alive, have replicas, or have settings of their own."""
        return frozenset((*self.brokers, *self.broker_configs, *self._with_replicas()))

    def lacking(self, broker_id: int) -> dict[str, int]:
        """Returns how many partitions lack what they should have: `under_replicated`, of those that this
        broker leads, a replica in sync (one that a reassignment adds need not be yet); `leaderless`, of the
        whole cluster, a leader that is alive.
        """
        states = [state for topic in self.topics.values() for state in topic.partitions.values()]
        under_replicated = sum(
            not set(state.replicas) - set(state.adding) <= set(state.isr)
            for state in states
            if state.leader == broker_id
        )
        leaderless = sum(state.leader not in self.brokers for state in states)
        return {"under_replicated": under_replicated, "leaderless": leaderless}

    def controller_id(self) -> int:
        """Returns the elected controller, and while there is none the lowest live id: any broker takes what
        tools send to the controller."""
        return self.controller if self.controller in self.brokers else min(self.brokers, default=NO_BROKER)
