"""Writes changes of in-sync sets to ZooKeeper, for the partitions that this broker leads.

Owns their order: one proposal a partition at a time, each by compare-and-set on the whole state. While its
outcome is unknown it counts for the high watermark. What is decided is `replication.in_sync`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.coordination.errors import CoordinationError, TopicNotRegisteredError
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError, StaleStateError
from headrace.coordination.topics import PartitionState, TopicRegistry, TopicState
from headrace.replication.in_sync import InSyncReplicas

logger = logging.getLogger(__name__)

CHECK_MAX_MS: Final = 1_000.0  # how often lagging followers are looked for, at least
CHECK_MIN_MS: Final = 50.0
CHANGES_PER_JOB_MAX: Final = 200  # the others follow in the next one
RETRY_MS: Final = 200.0


class _Change(NamedTuple):
    """A proposal, as ZooKeeper gets it; or, if it changes nothing, a question what ZooKeeper holds."""

    partition: Partition
    change: PartitionChange


Outcome = PartitionState | CoordinationError | None
"""What ZooKeeper holds afterwards; None if the partition is gone; the error if that is not known."""


class InSyncChanges:
    """Called on the loop's thread; ZooKeeper is written by `jobs`."""

    def __init__(self, state: BrokerState, registry: TopicRegistry, jobs: Jobs, lag_max_ms: float) -> None:
        self._state = state
        self._registry = registry
        self._jobs = jobs
        self._lag_max_ms = lag_max_ms
        self._queue: dict[Partition, _Change] = {}
        self._is_writing = False
        self._looked_ms: float = state.monotonic_ms()
        state.follower_asked = self._follower_asked
        state.in_sync_seen = self._seen

    @property
    def check_ms(self) -> float:
        """How often to call `check`."""
        return min(CHECK_MAX_MS, max(CHECK_MIN_MS, self._lag_max_ms / 4))

    def check(self) -> None:
        """Looks for followers that lag, or are dead."""
        self._notice_standstill()
        for session in list(self._state.follower_sessions.values()):
            session.refresh()
        for partition in self._state.partitions:
            if partition.replicas is not None:
                self._consider(partition)
        self._write()

    def _follower_asked(self, partition: Partition, replica: int) -> None:
        replicas = partition.replicas
        if replicas is not None and replica not in replicas.stored and replicas.proposed is None:
            self._notice_standstill()
            self._consider(partition)
            self._write()

    def _seen(self, partition: Partition) -> None:
        """Others have changed the set, such as a broker that stops. Until ZooKeeper was read again the high
        watermark waits for a replica that is gone.
        """
        self._notice_standstill()
        self._consider(partition)
        self._write()

    def _notice_standstill(self) -> None:
        """A process that was stopped, or waited long for its disk, would else take all its followers out, and
        be alone with what was acknowledged.
        """
        now_ms = self._state.monotonic_ms()
        stood_ms = now_ms - self._looked_ms - self.check_ms
        self._looked_ms = now_ms
        if stood_ms > self.check_ms:
            for partition in self._state.partitions:
                if partition.replicas is not None:
                    partition.replicas.stood_still(stood_ms, now_ms)

    def _consider(self, partition: Partition) -> None:
        replicas = partition.replicas
        if replicas is None or partition.failure is not None:
            return
        topic = self._state.view.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return  # deleted, and perhaps made again under its name: this log is about to be closed
        known = topic.partitions.get(partition.index)
        if known is None or known.leader_epoch != partition.leader_epoch:
            return
        elr_below = partition.config.elr_below(known.settled_count)
        wanted = replicas.stored if replicas.is_doubtful else self._wanted(partition, replicas, elr_below)
        if wanted is None:
            return
        expected = replace(known, leader=self._state.broker_id, isr=replicas.stored, elr=replicas.elr)
        new = expected.with_isr(wanted, lambda _: elr_below, replicas.unfit)
        joining = replicas.joining(wanted)
        change = PartitionChange(partition.topic, partition.index, expected, new, joining)
        replicas.propose(wanted)
        self._queue[partition] = _Change(partition, change)

    def _wanted(
        self, partition: Partition, replicas: InSyncReplicas, elr_below: int
    ) -> tuple[int, ...] | None:
        view = self._state.view
        live: Set[int] = view.brokers.keys()
        if view.offline:  # a log that is offline gets nothing more, and could not lead
            live = {r for r in live if (r, partition.topic, partition.index) not in view.offline}
        now_ms = self._state.monotonic_ms()
        return replicas.wanted(now_ms, self._lag_max_ms, live, elr_below, view.stopping)

    def _write(self) -> None:
        if self._is_writing or not self._queue:
            return
        names = list(self._queue)[:CHANGES_PER_JOB_MAX]
        changes = [self._queue.pop(name) for name in names]
        self._is_writing = True
        self._jobs.submit(
            lambda: _store(self._registry, [change for _, change in changes]),
            lambda outcomes, error: self._written(changes, outcomes, error),
        )

    def _written(
        self, changes: Sequence[_Change], outcomes: Sequence[Outcome] | None, error: Exception | None
    ) -> None:
        self._is_writing = False
        if outcomes is None:
            logger.warning("in-sync replicas are not stored yet: %s", error)
        for at, change in enumerate(changes):
            if not self._is_current(change):
                continue
            if outcomes is None:
                self._retry(change)
            else:
                self._take(change, outcomes[at])
        self._write()

    def _is_current(self, change: _Change) -> bool:
        partition = change.partition
        led = self._state.partitions.get(partition.topic, partition.index)
        return led is partition and partition.leader_epoch == change.change.expected.leader_epoch

    def _take(self, change: _Change, outcome: Outcome) -> None:
        partition, (expected, new) = change.partition, (change.change.expected, change.change.new)
        replicas = partition.replicas
        if replicas is None:
            return
        if isinstance(outcome, CoordinationError):
            # Stored or not: the same again finds out.
            logger.warning("%s: its in-sync replicas are not stored yet: %s", partition.name, outcome)
            self._retry(change)
        elif outcome is None:
            # The watch tells that it is gone; or it was put back by hand, and is another node.
            replicas.has_stored(replicas.stored, replicas.elr, self._state.monotonic_ms())
        elif (outcome.leader, outcome.leader_epoch) == (
            expected.leader,
            expected.leader_epoch,
        ):
            if set(outcome.isr) != set(replicas.stored):
                why = "" if outcome.isr == new.isr else ", as others have written"
                logger.info(
                    "%s: in sync are %s, were %s%s%s",
                    partition.name,
                    list(outcome.isr),
                    list(replicas.stored),
                    why,
                    f"; eligible to lead: {list(outcome.elr)}" if outcome.elr else "",
                )
            replicas.has_stored(outcome.isr, outcome.elr, self._state.monotonic_ms())
            self._state.partitions.in_sync_changed(partition)
        elif outcome.leader_epoch <= expected.leader_epoch:
            # No watch tells of it, since nobody believes it. Once the present one is back, this one goes on.
            logger.warning(
                "%s: its in-sync replicas are not stored yet: ZooKeeper holds a state of before, leader %d "
                "in epoch %d; the present epoch is %d",
                *(partition.name, outcome.leader, outcome.leader_epoch, expected.leader_epoch),
            )
            self._retry(change)
        # Else there is another leader: the watch tells.

    def _retry(self, change: _Change) -> None:
        def again() -> None:
            if self._is_current(change):
                self._queue[change.partition] = change
                self._write()

        self._state.loop.call_later(RETRY_MS, again)


def _store(registry: TopicRegistry, changes: Sequence[PartitionChange]) -> list[Outcome]:
    """Writes changes; returns what ZooKeeper holds then. Called on a control thread."""
    to_write = [change for change in changes if change.new != change.expected]
    problems = iter(registry.set_partition_states(to_write))
    present = _Present(registry)
    return [
        present.of(change) if change.new == change.expected else _outcome(present, change, next(problems))
        for change in changes
    ]


class _Present:
    """What ZooKeeper holds after the writes of one job: each topic is read once, however many of its
    partitions are asked for."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._topics: dict[str, TopicState | CoordinationError] = {}

    def of(self, change: PartitionChange) -> Outcome:
        found = self._topics.get(change.topic)
        if found is None:
            found = self._topics[change.topic] = self._read(change.topic)
        if isinstance(found, CoordinationError):
            return None if isinstance(found, TopicNotRegisteredError) else found
        return found.partitions.get(change.partition)

    def _read(self, topic: str) -> TopicState | CoordinationError:
        try:
            return self._registry.get(topic)
        except CoordinationError as error:
            return error


def _outcome(present: _Present, change: PartitionChange, problem: CoordinationError | None) -> Outcome:
    if problem is None:
        return change.new
    if isinstance(problem, StaleStateError):
        return problem.found
    if isinstance(problem, StaleBrokerError):
        return present.of(change)
    return None if isinstance(problem, TopicNotRegisteredError) else problem
