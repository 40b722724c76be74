"""What a leader does whose log is offline, or whose followers do not reach it: it gives the partition to
another replica, in sync or eligible.

Brokers see each other's sessions, not their disks and links: nobody else would notice. If no other replica
can lead, the partition waits for this log; once that is open again, its epoch begins anew, since the log may
have lost what followers have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.broker.leadership.config_of import elr_below_of
from headrace.broker.leadership.decisions import without
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.coordination.errors import CoordinationError
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError, StaleStateError
from headrace.coordination.topics import NO_LEADER, ElrBelow, PartitionState, TopicRegistry
from headrace.log.directory import PartitionName

logger = logging.getLogger(__name__)

RETRY_MS: Final = 500.0
BUSY_MAX: Final = 200  # partitions that are being given away, before `check` begins with further ones
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
        self._busy: set[PartitionName] = set()  # being given away now
        self._gave_ms: dict[PartitionName, float] = {}  # when to an eligible replica last

    def check(self) -> None:
        """Tries again what nobody could take before: brokers have returned, or logs are open again. To be
        called every few seconds."""
        now_ms = self._state.monotonic_ms()
        self._gave_ms = {name: at for name, at in self._gave_ms.items() if now_ms - at < GIVE_AGAIN_MS}
        for name in list(self._state.unopened):
            if len(self._busy) >= BUSY_MAX:
                break
            self.resign(name)

    def resign(self, name: PartitionName) -> None:
        """Gives a partition away whose log is offline, if this broker leads it and another one can. If the
        log is damaged this broker is not eligible to lead it any more."""
        if name in self._busy:
            return
        self._busy.add(name)
        unfit: set[int] = set()  # they have registered again, and no controller has seen that yet
        self._change(
            name,
            lambda known: self._resigned(name, known, unfit),
            lambda: name in self._state.unopened,
            unfit.add,
            lambda: self._busy.discard(name),
        )

    def hand_over(self, name: PartitionName, takers: Callable[[], Set[int]]) -> None:
        """Gives a partition to one of its `takers`, as long as there are any."""
        if name in self._busy or len(self._busy) >= BUSY_MAX:
            return
        self._busy.add(name)
        unfit: set[int] = set()

        def handed_over(known: PartitionState) -> PartitionState:
            if known.leader != self._state.broker_id:
                return known
            lasting = (self._able(name, known) & takers()) - unfit - self._state.view.stopping
            return without(known, known.leader, lasting, self._elr_below(name))

        self._change(name, handed_over, lambda: bool(takers()), unfit.add, lambda: self._busy.discard(name))

    def _resigned(self, name: PartitionName, known: PartitionState, unfit: Set[int]) -> PartitionState:
        own = self._state.broker_id
        damaged = frozenset({own}) if name in self._state.damaged else frozenset[int]()
        if known.leader == own:
            able = self._able(name, known) - unfit
            lasting = able - self._state.view.stopping
            new = without(known, own, lasting, self._elr_below(name), damaged)
            return new if new != known else without(known, own, able, self._elr_below(name), damaged)
        return replace(known, elr=tuple(r for r in known.elr if r not in damaged))

    def _able(self, name: PartitionName, known: PartitionState) -> Set[int]:
        """Returns the brokers that could lead a partition, as far as it is known."""
        view = self._state.view
        able = {r for r in known.replicas if r in view.brokers and (r, *name) not in view.offline}
        was_given = name in self._gave_ms and self._state.monotonic_ms() - self._gave_ms[name] < GIVE_AGAIN_MS
        return able - set(known.elr) if was_given else able

    def _elr_below(self, name: PartitionName) -> ElrBelow:
        topic = self._state.view.topics.get(name.topic)
        return (lambda _: 0) if topic is None else elr_below_of(topic, self._state.topic_config)

    def renew(self, name: PartitionName) -> None:
        """Begins a new epoch of a partition that this broker leads, and could not serve until now."""

        def renewed(known: PartitionState) -> PartitionState:
            leads = known.leader == self._state.broker_id
            return replace(known, leader_epoch=known.leader_epoch + 1) if leads else known

        self._change(name, renewed, lambda: self._state.partitions.get(*name) is None)

    def _change(
        self,
        name: PartitionName,
        decide: Decide,
        is_wanted: Callable[[], bool],
        refused: Callable[[int], None] = lambda _: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`refused` gets a broker that cannot lead now, before it is decided again. `ended` is called when
        nothing is written any more."""
        known = self._state.view.partition(*name)
        new = None if known is None or len(known.replicas) == 1 else decide(known)
        if known is None or new is None or new == known or not is_wanted():
            ended()
            return
        change = PartitionChange(name.topic, name.partition, known, new, handled_only=True)

        def done(problem: CoordinationError | None, error: Exception | None) -> None:
            failure = error or problem
            if failure is None:
                logger.warning(
                    "%s: %s leads it in epoch %d, in sync %s, eligible %s",
                    name,
                    "nobody" if new.leader == NO_LEADER else f"broker {new.leader}",
                    new.leader_epoch,
                    list(new.isr),
                    list(new.elr),
                )
                if new.leader in known.elr:
                    self._gave_ms[name] = self._state.monotonic_ms()
            elif not isinstance(failure, StaleStateError):
                # With another state the watch tells, and it is decided again.
                logger.warning("%s: its leader is not changed yet: %s", name, failure)
                if isinstance(failure, StaleBrokerError):
                    refused(failure.broker_id)
                again = partial(self._change, name, decide, is_wanted, refused, ended)
                self._state.loop.call_later(RETRY_MS, again)
                return
            ended()

        self._jobs.submit(lambda: self._registry.set_partition_states([change])[0], done)
