"""What a leader does whose log is offline: it gives the partition to another replica, in sync or eligible.

Brokers see each other's sessions, not their disks: nobody else would notice. If no other replica can lead,
the partition waits for this log; once that is open again, its epoch begins anew, since the log may have lost
what followers have.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.broker.leadership.config_of import elr_below_of
from headrace.broker.leadership.decisions import without
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.coordination.errors import CoordinationError
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError, StaleStateError
from headrace.coordination.topics import ElrBelow, PartitionState, TopicRegistry
from headrace.log.directory import PartitionName

logger = logging.getLogger(__name__)

RETRY_MS: Final = 500.0
GIVE_AGAIN_MS: Final = 10_000.0
"""How soon a partition is given to an eligible replica again. Of two brokers neither may know yet that the
other one's log is offline, too.
"""

Decide = Callable[[PartitionState], PartitionState]


class Resigning:
    """Called on the loop's thread; ZooKeeper is written by `jobs`."""

    def __init__(self, state: BrokerState, registry: TopicRegistry, jobs: Jobs) -> None:
        self._state = state
        self._registry = registry
        self._jobs = jobs
        self._gave_ms: dict[PartitionName, float] = {}  # when to an eligible replica last

    def resign(self, name: PartitionName) -> None:
        """Gives a partition away whose log is offline, if this broker leads it and another one can."""
        unfit: set[int] = set()  # they have registered again, and no controller has seen that yet
        self._change(
            name,
            lambda known: without(
                known, self._state.broker_id, self._able(name, known) - unfit, self._elr_below(name)
            ),
            lambda: name in self._state.unopened,
            unfit.add,
        )

    def resign_again(self) -> None:
        """Tries to give away what nobody could take before: brokers have returned, or logs are open again."""
        for name in list(self._state.unopened):
            self.resign(name)

    def _able(self, name: PartitionName, known: PartitionState) -> set[int]:
        """Returns the brokers that could lead a partition, as far as it is known."""
        view, offline = self._state.view, self._state.offline_logs()
        able = {r for r in known.replicas if r in view.brokers and (r, *name) not in offline}
        now_ms, gave_ms = self._state.monotonic_ms(), self._gave_ms.get(name, -math.inf)
        return able - set(known.elr) if now_ms - gave_ms < GIVE_AGAIN_MS else able

    def _elr_below(self, name: PartitionName) -> ElrBelow:
        topic = self._state.view.topics.get(name.topic)
        return (lambda _: 0) if topic is None else elr_below_of(topic, self._state.topic_config)

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
        if new.leader in known.elr:
            self._gave_ms[name] = self._state.monotonic_ms()

        def done(problem: CoordinationError | None, error: Exception | None) -> None:
            failure = error or problem
            if failure is None:
                logger.warning(
                    "%s: broker %d leads it from epoch %d on, in sync %s, eligible %s",
                    name,
                    new.leader,
                    new.leader_epoch,
                    list(new.isr),
                    list(new.elr),
                )
            elif not isinstance(failure, StaleStateError):
                # With another state the watch tells, and it is decided again.
                logger.warning("%s: its leader is not changed yet: %s", name, failure)
                if isinstance(failure, StaleBrokerError):
                    refused(failure.broker_id)
                self._gave_ms.pop(name, None)
                self._state.loop.call_later(RETRY_MS, lambda: self._change(name, decide, is_wanted, refused))

        self._jobs.submit(lambda: self._registry.set_partition_states([change])[0], done)
