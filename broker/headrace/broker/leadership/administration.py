"""Leaders and replicas as administrators change them: elections and reassignments of single partitions.

Runs on control threads, since calls to ZooKeeper block. Any broker writes these changes, by compare-and-set;
the controller completes a reassignment once its new replicas are in sync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.broker.cluster import ClusterView
from headrace.broker.errors import Refused
from headrace.broker.leadership.config_of import ConfigOf, elr_below_of
from headrace.broker.leadership.decisions import Brokers, cancel, complete, elect, prefer, reassign
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    TooLargeError,
    TopicNotRegisteredError,
)
from headrace.coordination.offline_logs import OfflineNames
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.topics import NO_LEADER, PartitionState, TopicRegistry, TopicState
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
REPLICAS_MAX: Final = 100  # of one partition

Decide = Callable[[TopicState, PartitionState], PartitionState]
"""Returns the new state of a topic's partition, or raises `Refused`."""
Outcome = dict[int, Refused | None]
"""By partition: why it was not changed, or None."""


class Stored(NamedTuple):
    """A change that ZooKeeper has. `seen`: what this broker knew of the partition before it."""

    change: PartitionChange
    seen: PartitionState | None


Made = list[Stored]


class LeadershipAdmin:
    """`view` returns the present view of the cluster, `offline` all logs that are known to be offline,
    `config_of` a topic's settings. Each call adds what ZooKeeper has stored to `made`.
    """

    def __init__(
        self,
        registry: TopicRegistry,
        view: Callable[[], ClusterView],
        offline: Callable[[], OfflineNames],
        config_of: ConfigOf,
    ) -> None:
        self._registry = registry
        self._view = view
        self._offline = offline
        self._config_of = config_of

    def elect_preferred(self, topic: str, partitions: Iterable[int], made: Made | None = None) -> Outcome:
        """Gives partitions to their preferred leaders."""

        def decide(_: TopicState, state: PartitionState) -> PartitionState:
            preferred = next(r for r in state.replicas if r not in state.removing)
            if state.leader == preferred:
                raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads it already")
            new = prefer(state, self._lasting)
            if new == state:
                raise Refused(
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    f"broker {preferred} stops now"
                    if preferred in self._view().stopping
                    else f"broker {preferred} is not alive, or not in sync: in sync are {list(state.isr)}",
                )
            return new

        return self._change(topic, dict.fromkeys(partitions, decide), made)

    def elect_unclean(self, topic: str, partitions: Iterable[int], made: Made | None = None) -> Outcome:
        """Gives partitions that have no leader, or one whose log is offline, to any replica that is alive, in
        sync or not."""

        def decide(index: int, known: TopicState, state: PartitionState) -> PartitionState:
            offline = self._offline()
            able = frozenset(r for r in self._alive if (r, topic, index) not in offline)
            if state.leader in able:
                raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {state.leader} leads it")
            brokers = Brokers(able, stopping=self._view().stopping)
            new = elect(state, brokers, elr_below_of(known, self._config_of), unclean=True)
            if new.leader == NO_LEADER or new.leader not in able:
                raise Refused(
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                    f"none of brokers {list(state.replicas)} is alive with this log online",
                )
            logger.warning(
                "%s: broker %d is made leader on request; in sync were %s", topic, new.leader, list(state.isr)
            )
            return new

        return self._change(topic, {index: partial(decide, index) for index in partitions}, made)

    def reassign(
        self,
        topic: str,
        wanted: Mapping[int, Sequence[int] | None],
        made: Made | None = None,
        *,
        may_resize: bool = True,
    ) -> Outcome:
        """Begins to move partitions to other replicas; None calls a reassignment off. `may_resize`: they may
        be more or fewer than before (KIP-860).
        """
        decisions = {
            index: self._call_off if targets is None else self._move_to(tuple(targets), may_resize=may_resize)
            for index, targets in wanted.items()
        }
        return self._change(topic, decisions, made)

    @property
    def _alive(self) -> frozenset[int]:
        return frozenset(self._view().brokers)

    @property
    def _lasting(self) -> frozenset[int]:
        """The live brokers that do not stop: only they are given something to lead."""
        view = self._view()
        return frozenset(view.brokers) - view.stopping

    def _call_off(self, _: TopicState, state: PartitionState) -> PartitionState:
        if not state.adding and not state.removing:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of it is under way")
        new = cancel(state, self._lasting)
        if new == state:
            raise Refused(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "none of its former replicas is alive and in sync, or it stops: let the reassignment end",
            )
        return new

    def _move_to(self, targets: tuple[int, ...], *, may_resize: bool) -> Decide:
        def decide(_: TopicState, state: PartitionState) -> PartitionState:
            alive = self._alive
            if not targets or len(set(targets)) != len(targets) or len(targets) > REPLICAS_MAX:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {list(targets)}: name 1 to {REPLICAS_MAX} brokers, each once",
                )
            if dead := set(targets) - set(state.replicas) - alive:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"broker {min(dead)} is not alive; alive: {sorted(alive)}",
                )
            if not may_resize and len(targets) != (count := len(set(state.replicas) - set(state.removing))):
                raise Refused(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"replicas {list(targets)} are not {count}, and the request forbids to change that",
                )
            return complete(reassign(state, targets), self._lasting)

        return decide

    def is_shown(self, made: Stored) -> bool:
        """Whether this broker sees what was stored, or what somebody stored after it."""
        change = made.change
        known = self._view().partition(change.topic, change.partition)
        return known == change.new or known not in (made.seen, change.expected)

    def _change(self, topic: str, decisions: Mapping[int, Decide], made: Made | None) -> Outcome:
        outcome: Outcome = {}
        left = dict(decisions)
        try:
            for _ in range(ATTEMPTS_MAX):
                changes = self._decided(topic, left, outcome)
                seen = [self._view().partition(topic, change.partition) for change in changes]
                problems = self._registry.set_partition_states(changes)
                left = {}
                for change, problem, before in zip(changes, problems, seen, strict=True):
                    if problem is None and made is not None:
                        made.append(Stored(change, before))
                    if isinstance(problem, BadVersionError):
                        left[change.partition] = decisions[change.partition]
                    else:
                        outcome[change.partition] = None if problem is None else _refused(problem)
                if not left:
                    return outcome
        except CoordinationError as error:
            return outcome | {index: _refused(error) for index in decisions if index not in outcome}
        busy = Refused(ErrorCode.REQUEST_TIMED_OUT, "its state changes all the time; retry")
        return outcome | dict.fromkeys(left, busy)

    def _decided(
        self, topic: str, decisions: Mapping[int, Decide], outcome: Outcome
    ) -> list[PartitionChange]:
        """Returns the changes to be made; the outcome of all other partitions is noted."""
        try:
            found = self._registry.get(topic)
        except TopicNotRegisteredError:
            found = None
        changes: list[PartitionChange] = []
        for index, decide in decisions.items():
            try:
                if found is None or index not in found.partitions:
                    problem = f"there is no partition {topic}-{index}"
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)
                state = found.partitions[index]
                new = decide(found, state)
            except Refused as refused:
                outcome[index] = refused.kept()
                continue
            if new == state:
                outcome[index] = None
            else:
                changes.append(PartitionChange(topic, index, state, new, handled_only=True))
        return changes


def _refused(error: CoordinationError) -> Refused:
    """What a later try can change is retriable; what somebody has to mend, or to ask differently, is not."""
    code = ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, TopicNotRegisteredError):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif isinstance(error, CorruptNodeError):
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    elif isinstance(error, TooLargeError):
        code = ErrorCode.POLICY_VIOLATION
    return Refused(code, str(error)).kept()
