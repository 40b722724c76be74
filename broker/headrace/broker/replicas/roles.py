"""Which of this broker's open logs it leads and which it follows, and the move from one to the other.

A log is in `state.partitions`, which handlers see, or in `FollowedPartitions`, or for a moment in neither,
until no thread works on it for its old role. `replicas.manager` opens and closes the logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.high_watermarks import HighWatermark, Known, of, still_known
from headrace.broker.settings.config import TopicConfig
from headrace.broker.state import BrokerState
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.directory import PartitionName
from headrace.log.partition import PartitionLog
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

NEVER: Final = -1  # no epoch: this broker has not led

Take = Callable[[PartitionLog], None]


def has_moved(before: PartitionState | None, after: PartitionState | None, broker_id: int) -> bool:
    """Whether a reassignment has taken a partition to other brokers, and a replica that was left behind here
    may be deleted: all of them have what it held, or it was neither in sync nor eligible to lead. A state of
    before the last one known, as of a ZooKeeper that lost writes, proves nothing.
    """
    if before is None or after is None or after.leader_epoch < before.leader_epoch:
        return False
    was_needed = broker_id in (*before.isr, *before.elr)
    return after.leader in after.isr and (not was_needed or set(after.replicas) == set(after.isr))


@dataclass(eq=False, slots=True)
class _Moving:
    """A log between two roles. `then` gets it instead, if it is no longer wanted here."""

    topic_id: UUID
    then: Take | None = None


class Roles:
    """`offline` gets a log that failed while it moved. `known`: the high watermarks of before the start."""

    def __init__(
        self,
        state: BrokerState,
        followed: FollowedPartitions,
        fetchers: Fetchers,
        offline: Callable[[PartitionName, UUID, PartitionLog], None],
        known: Known,
    ) -> None:
        self._state = state
        self._followed = followed
        self._fetchers = fetchers
        self._offline = offline
        self._known = dict(known)
        self._moving: dict[PartitionName, _Moving] = {}
        self._led: dict[PartitionName, tuple[UUID, int]] = {}  # epochs that are over for this broker

    # --- epochs that this broker must not lead in ---

    def has_led(self, name: PartitionName, topic_id: UUID, leader_epoch: int) -> None:
        """Notes an epoch in which this broker may have led with a log that has lost bytes since: its end was
        not durable, and followers may have it. It leads only in a later one, which the controller begins
        when this broker is registered again.
        """
        self._led[name] = (topic_id, leader_epoch)

    def begin(self, topics: Mapping[str, TopicState]) -> None:
        """Notes the epochs of the process before this one: called once, before this broker is registered."""
        for topic in topics.values():
            for index, state in topic.partitions.items():
                if state.leader == self._state.broker_id and len(state.replicas) > 1:
                    self.has_led(PartitionName(topic.name, index), topic.topic_id, state.leader_epoch)

    def leads(self, name: PartitionName, topic: TopicState) -> bool:
        """Whether this broker leads the partition now, as far as it knows."""
        state = topic.partitions[name.partition]
        if state.leader != self._state.broker_id:
            return False
        topic_id, epoch = self._led.get(name, (topic.topic_id, NEVER))
        return len(state.replicas) == 1 or topic_id != topic.topic_id or state.leader_epoch > epoch

    def held_to(self, name: PartitionName, topic: TopicState) -> int:
        """Returns how far a log that is not open here is known to have held what others rely on, since its
        replica counts as in sync, or as eligible; 0 if nobody does.
        """
        saved, state = self._known.get(name), topic.partitions[name.partition]
        is_known = saved is not None and saved.topic_id == topic.topic_id
        is_relied_on = self._state.broker_id in (*state.isr, *state.elr)
        return saved.address if saved is not None and is_known and is_relied_on else 0

    # --- roles ---

    def topic_id(self, name: PartitionName) -> UUID | None:
        """Returns whose log is open here; None if none is."""
        found = (
            self._state.partitions.get(name.topic, name.partition)
            or self._followed.get(name)
            or self._moving.get(name)
        )
        if found is None or (isinstance(found, _Moving) and found.then is not None):
            return None
        return found.topic_id

    def place(
        self,
        name: PartitionName,
        topic: TopicState,
        config: TopicConfig,
        log: PartitionLog,
        high_watermark: int | None = None,
    ) -> None:
        """Gives a log its role. `high_watermark`: what was known of it here; None after it was opened."""
        if high_watermark is None:
            saved = self._known.pop(name, None)
            known = log.start_address if saved is None else still_known(saved, topic.topic_id, log)
        else:
            known = max(log.start_address, min(high_watermark, log.end_address))
        state = topic.partitions[name.partition]
        if not self.leads(name, topic):
            followed = FollowedPartition(name, topic.topic_id, config, log, high_watermark=known)
            self._followed.add(followed)
            self._fetchers.follow(followed, state.leader, state.leader_epoch)
            return
        replicas = self._replicas(state, config, log, known)
        partition = Partition(
            name.topic, name.partition, topic.topic_id, config, log, state.leader_epoch, replicas
        )
        self._state.partitions.add(partition)
        self._state.partitions.in_sync_changed(partition)
        if replicas is not None:
            logger.info(
                "%s: leads in epoch %d from address %d on; high watermark %d, in sync %s",
                name,
                state.leader_epoch,
                log.end_address,
                replicas.high_watermark,
                list(state.isr),
            )

    def _replicas(
        self, state: PartitionState, config: TopicConfig, log: PartitionLog, high_watermark: int
    ) -> InSyncReplicas | None:
        if len(state.replicas) == 1:
            return None
        return InSyncReplicas(
            self._state.broker_id,
            state.replicas,
            state.isr,
            state.elr,
            min_in_sync=config.least_in_sync(state.settled_count),
            epoch_start=log.staged_end_address,
            high_watermark=high_watermark,
            now_ms=self._state.monotonic_ms(),
        )

    def settle(self, name: PartitionName, topic: TopicState, config: TopicConfig) -> None:
        """Gives an open log the role that it has now. One that moves, or is offline, gets it afterwards."""
        led = self._state.partitions.get(name.topic, name.partition)
        followed = self._followed.get(name)
        leads = self.leads(name, topic)
        if led is not None:
            led.set_config(config)
            if led.failure is not None:
                return
            self._state.partitions.config_changed(led)
            if leads:
                self._lead_on(led, topic.partitions[name.partition])
            else:
                self._demote(led, topic.partitions[name.partition])
        elif followed is not None:
            followed.set_config(config)
            if followed.failure is not None:
                return
            if leads:
                self._promote(followed)
            else:
                state = topic.partitions[name.partition]
                self._fetchers.follow(followed, state.leader, state.leader_epoch)

    def _lead_on(self, led: Partition, state: PartitionState) -> None:
        is_replicated = len(state.replicas) > 1
        is_new = led.leader_epoch != state.leader_epoch or (led.replicas is None) is is_replicated
        led.lead(state.leader_epoch)
        if is_new:
            led.replicas = self._replicas(state, led.config, led.log, led.visible_address)
        elif led.replicas is not None:
            now_ms = self._state.monotonic_ms()
            least = led.config.least_in_sync(state.settled_count)
            led.replicas.saw(state.replicas, state.isr, state.elr, least, now_ms)
            if led.replicas.is_doubtful or led.replicas.elr:
                self._state.in_sync_seen(led)
        self._state.partitions.in_sync_changed(led)

    def _demote(self, led: Partition, state: PartitionState) -> None:
        high_watermark = led.visible_address
        logger.info("%s: led by broker %d in epoch %d now", led.name, state.leader, state.leader_epoch)
        self._moving[led.name] = _Moving(led.topic_id)
        self._state.partitions.give_up(
            led,
            f"{led.name} is led by broker {state.leader} now",
            lambda: self._moved(led.name, led.log, high_watermark),
        )

    def _promote(self, followed: FollowedPartition) -> None:
        self._moving[followed.name] = _Moving(followed.topic_id)
        self._fetchers.leave(followed)
        self._followed.remove(
            followed, lambda: self._moved(followed.name, followed.log, followed.high_watermark)
        )

    def _moved(self, name: PartitionName, log: PartitionLog, high_watermark: int) -> None:
        moving = self._moving.pop(name)
        topic = self._state.view.topics.get(name.topic)
        if moving.then is not None:
            moving.then(log)
        elif log.offline is not None or topic is None or name.partition not in topic.partitions:
            self._offline(name, moving.topic_id, log)
        else:
            self.place(name, topic, self._state.topic_config(topic), log, high_watermark)

    def high_watermarks(self) -> dict[PartitionName, HighWatermark]:
        """Returns what is known now, for `high_watermarks.save`."""
        if self._state.view.topics:  # else nobody has told which replicas are here
            self._known = {name: each for name, each in self._known.items() if self._has_replica(name)}
        known = dict(self._known)
        for led in self._state.partitions:
            known[led.name] = of(led.topic_id, led.log, led.visible_address)
        for followed in self._followed:
            known[followed.name] = of(followed.topic_id, followed.log, followed.high_watermark)
        return known

    def _has_replica(self, name: PartitionName) -> bool:
        topic = self._state.view.topics.get(name.topic)
        state = None if topic is None else topic.partitions.get(name.partition)
        return state is not None and self._state.broker_id in state.replicas

    def take(self, name: PartitionName, then: Take, *, is_deleted: bool) -> None:
        """Ends a log's role, whichever it has; `then` gets it, once no thread works on it for that."""
        led = self._state.partitions.get(name.topic, name.partition)
        followed = self._followed.get(name)
        moving = self._moving.get(name)
        if led is not None:
            if not is_deleted:
                self._known[name] = of(led.topic_id, led.log, led.visible_address)
            if is_deleted:
                self._state.partitions.remove(led)
            else:
                code, problem = ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is no longer led here"
                self._state.partitions.remove(led, code, problem)
            if led.flushing:
                led.when_flushed = lambda: then(led.log)
            else:
                then(led.log)
        elif followed is not None:
            if not is_deleted:
                self._known[name] = of(followed.topic_id, followed.log, followed.high_watermark)
            self._fetchers.leave(followed)
            self._followed.remove(followed, lambda: then(followed.log))
        elif moving is not None:
            moving.then = then
