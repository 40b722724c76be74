"""What a leader does whose log is offline: it gives the partition to another replica, in sync or eligible.

Brokers see each other's sessions, not their disks: nobody else would notice. If no other replica can lead,
the partition waits for this log; once that is open again, its epoch begins anew, since the log may have lost
what followers have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.broker.leadership.decisions import without_log
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.coordination.errors import CoordinationError
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError, StaleStateError
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.log.directory import PartitionName

logger = logging.getLogger(__name__)

RETRY_MS: Final = 500.0

Decide = Callable[[PartitionState], PartitionState]


class Resigning:
    """Called on the loop's thread; ZooKeeper is written by `jobs`."""

    def __init__(self, state: BrokerState, registry: TopicRegistry, jobs: Jobs) -> None:
        self._state = state
        self._registry = registry
        self._jobs = jobs

    def resign(self, name: PartitionName) -> None:
        """Gives a partition away whose log is offline, if this broker leads it and another one can."""
        unfit: set[int] = set()  # they have registered again, and no controller has seen that yet
        self._change(
            name,
            lambda known: without_log(
                known,
                self._state.broker_id,
                self._state.view.brokers.keys() - unfit,
                lambda state: self._elr_below(name, state),
            ),
            lambda: name in self._state.unopened,
            unfit.add,
        )

    def _elr_below(self, name: PartitionName, state: PartitionState) -> int:
        topic = self._state.view.topics.get(name.topic)
        return 0 if topic is None else self._state.topic_config(topic).elr_below(state.settled_count)

    def renew(self, name: PartitionName) -> None:
        """Begins a new epoch of a partition that this broker leads, and could not serve until now."""
        self._change(
            name,
            lambda known: replace(known, leader_epoch=known.leader_epoch + 1),
            lambda: self._state.partitions.get(*name) is None,
        )

    def _change(
        self,
        name: PartitionName,
        decide: Decide,
        is_wanted: Callable[[], bool],
        refused: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`refused` gets a broker that cannot lead now, before it is decided again."""
        known = self._state.view.partition(*name)
        if known is None or known.leader != self._state.broker_id or len(known.replicas) == 1:
            return
        new = decide(known)
        if new == known or not is_wanted():
            return
        change = PartitionChange(name.topic, name.partition, known, new, handled_only=True)

        def done(problem: CoordinationError | None, error: Exception | None) -> None:
            failure = error or problem
            if failure is None:
                logger.warning(
                    "%s: broker %d leads it from epoch %d on, in sync %s",
                    name,
                    new.leader,
                    new.leader_epoch,
                    list(new.isr),
                )
            elif not isinstance(failure, StaleStateError):
                # With another state the watch tells, and it is decided again.
                logger.warning("%s: its leader is not changed yet: %s", name, failure)
                if isinstance(failure, StaleBrokerError):
                    refused(failure.broker_id)
                self._state.loop.call_later(RETRY_MS, lambda: self._change(name, decide, is_wanted, refused))

        self._jobs.submit(lambda: self._registry.set_partition_states([change])[0], done)
