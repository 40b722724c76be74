"""The controller: the one elected broker that writes who leads which partition.

Owns a thread, the candidacy and the record of registrations that were handled. What to write is decided by
`decisions`; each transaction is guarded by the election, so that a controller that lost its session writes
nothing more. Brokers learn of new leaders by their watches, not from here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.broker.cluster import stopping_of
from headrace.broker.leadership.config_of import ConfigOf, elr_below_of
from headrace.broker.leadership.decisions import Brokers, complete, elect, is_unclean, prefer
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.election import ControllerElection, Reign
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    SessionClosedError,
    TooLargeError,
    TopicNotRegisteredError,
)
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.offline_logs import OfflineLogRegistry, OfflineNames
from headrace.coordination.partition_states import GuardError, PartitionChange, StaleBrokerError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import NO_LEADER, PartitionState, TopicRegistry, TopicState

logger = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.2
UNEXPECTED_RETRY_S: Final = 5.0
CLOSE_WAIT_MAX_S: Final = 5.0
LOOKS_MAX: Final = 3  # at the brokers, for one decision: they may change again and again
NAMED_MAX: Final = 10  # partitions in one line of the log

Topics = Mapping[str, TopicState]
Doubts = Mapping[str, Mapping[int, int]]
"""By topic, the brokers that came back with another disk while it could not be read, and their epochs."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the controller knows: all topics, the registered brokers, and their logs that are offline."""

    topics: Topics
    brokers: Mapping[int, BrokerRegistration]
    offline: OfflineNames = frozenset()


def decide(
    cluster: Cluster, every: Brokers, config_of: ConfigOf, *, rebalance: bool, doubts: Doubts | None = None
) -> list[PartitionChange]:
    """Returns the changes that the present state of all partitions asks for.

    `rebalance`: partitions go back to their preferred leaders. `every`: the brokers, as they are for every
    topic; for those of `doubts` there is more.
    """
    changes: list[PartitionChange] = []
    for topic in cluster.topics.values():
        below = elr_below_of(topic, config_of)
        brokers = every.with_other_disks((doubts or {}).get(topic.name, {}))
        for index, state in topic.partitions.items():
            offline = {r for r in state.replicas if (r, topic.name, index) in cluster.offline}
            new = elect(state, brokers, below, unclean=False, offline=offline)
            if new.leader == NO_LEADER and config_of(topic).unclean_leader_election:
                new = elect(state, brokers, below, unclean=True, offline=offline)
            able = brokers.alive - offline - brokers.stopping
            new = complete(new, able)
            if rebalance:
                new = prefer(new, able)
            if new != state:
                relied_on = _relied_on(cluster, state, new)
                changes.append(PartitionChange(topic.name, index, state, new, relied_on))
    return changes


def _relied_on(cluster: Cluster, before: PartitionState, after: PartitionState) -> Mapping[int, int]:
    """Returns the broker epoch that a leader must still have when its new epoch is written: registered again
    since, it may have an empty disk. Also if it led before: it leads only in a later epoch than the one that
    it found at its start."""
    is_elected = after.leader_epoch != before.leader_epoch
    known = cluster.brokers.get(after.leader) if is_elected else None
    return {} if known is None else {after.leader: known.epoch}


def leaderless_warnings(changes: Sequence[PartitionChange]) -> list[str]:
    """Returns what the log says of partitions that have lost their leaders, and what ends that."""
    waiting = [change for change in changes if change.new.isr or change.new.elr]
    bereft = [change for change in changes if not (change.new.isr or change.new.elr)]
    warnings = []
    if waiting:
        warnings.append(
            f"without a leader until a replica returns that was in sync, or is eligible: {_named(waiting)}"
        )
    if bereft:
        warnings.append(
            "without a leader, and the disks of all in-sync replicas are gone: "
            f"{_named(bereft)}; bring one of these disks back, or let another replica lead by "
            "`kafka-leader-election --election-type unclean`, without what only they had"
        )
    return warnings


def _named(changes: Sequence[PartitionChange]) -> str:
    named = ", ".join(f"{change.topic}-{change.partition}" for change in changes[:NAMED_MAX])
    return named + ("" if len(changes) <= NAMED_MAX else f" and {len(changes) - NAMED_MAX} more")


class Controller:
    """A broker's candidacy for controller, and its work as such. `on_reign` gets the controller's broker id,
    or None, on the session's callback thread. `config_of`: a topic's settings. `topics`: the registry of all
    parts of the broker, which knows what the topics were before; else one that knows nothing yet.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        broker_id: int,
        on_reign: Callable[[int | None], None],
        config_of: ConfigOf,
        *,
        rebalance_interval_s: float | None,
        topics: TopicRegistry | None = None,
    ) -> None:
        self._topics = topics or TopicRegistry(session)
        self._registry = BrokerRegistry(session)
        self._handled = HandledBrokers(session)
        self._offline = OfflineLogRegistry(session)
        self._config_of = config_of
        self._on_reign = on_reign
        self._rebalance_interval_s = rebalance_interval_s
        self._rebalance_at_s = time.monotonic() + (rebalance_interval_s or 0.0)
        self._election = ControllerElection(session, broker_id, self._elected)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._reign: Reign | None = None
        self._read_in = 0  # the controller epoch at whose beginning everything was read
        self._known = Cluster({}, {})
        self._doubts: Doubts = {}
        self._thread = threading.Thread(target=self._run, name=f"controller-{broker_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._election.start()

    def close(self) -> None:
        """Ends the candidacy; another broker is elected at once if this one was the controller."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_MAX_S)
        self._election.close()

    # --- any thread ---

    def offline_changed(self, offline: OfflineNames) -> None:
        with self._lock:
            self._known = replace(self._known, offline=offline)
        self._wake.set()

    def topics_changed(self, topics: Topics) -> None:
        with self._lock:
            self._known = replace(self._known, topics=topics)
        self._wake.set()

    def brokers_changed(self, brokers: list[BrokerRegistration]) -> None:
        with self._lock:
            self._known = replace(self._known, brokers={broker.broker_id: broker for broker in brokers})
        self._wake.set()

    def _elected(self, reign: Reign | None) -> None:
        """Called on the session's callback thread, as are the watches: so what they show later is newer."""
        if reign is not None and reign.is_own and reign.epoch != self._read_in:
            brokers = {broker.broker_id: broker for broker in self._registry.live()}
            topics, offline = self._topics.list(), self._offline.names()
            with self._lock:
                self._known = Cluster(topics, brokers, offline)
            self._read_in = reign.epoch
        self._reign = reign
        self._on_reign(None if reign is None else reign.broker_id)
        self._wake.set()

    # --- the controller's thread ---

    def _run(self) -> None:
        wait_s = self._rebalance_interval_s
        while not self._closing:
            self._wake.wait(wait_s)
            self._wake.clear()
            wait_s = self._rebalance_interval_s
            reign = self._reign
            if reign is None or not reign.is_own or self._closing:
                continue
            try:
                self._act(reign)
            except (GuardError, SessionClosedError) as error:
                logger.warning("this broker is no longer the controller (%s)", error)
            except CoordinationError as error:
                logger.warning("controller: %s; retrying", error)
                time.sleep(RETRY_PAUSE_S)
                self._wake.set()
            except Exception:
                logger.exception("controller: an unexpected error; retrying in %g s", UNEXPECTED_RETRY_S)
                wait_s = UNEXPECTED_RETRY_S

    def _act(self, reign: Reign) -> None:
        with self._lock:
            known = self._known
        rebalance = self._rebalance_interval_s is not None and time.monotonic() >= self._rebalance_at_s
        for _ in range(LOOKS_MAX):
            new = self._handled.new_among(known.brokers.values())
            if new:
                # The watch may be late for a topic that was made before such a registration. If it were left
                # out nobody would lead it: the broker leads only in later epochs than the process before it.
                known = replace(known, topics=self._topics.list())
            brokers_now = Brokers(
                alive=known.brokers.keys(),
                bounced={each.broker.broker_id for each in new},
                other_disks={each.broker.broker_id: each.broker.epoch for each in new if each.has_other_disk},
                stopping=stopping_of(known.brokers.values()),
            )
            changes = decide(known, brokers_now, self._config_of, rebalance=rebalance, doubts=self._doubts)
            if not changes:
                break
            # In the same way a topic may be newer than the brokers that are known, one of which leads it.
            brokers = {broker.broker_id: broker for broker in self._registry.live()}
            if brokers == known.brokers:
                break
            known = replace(known, brokers=brokers)
        all_written = self._write(reign, changes, brokers_now) if changes else True
        if all_written:
            self._note_doubts(brokers_now)
        if new and all_written:
            self._handled.note([each.broker for each in new], reign.guard)
        if rebalance:
            assert self._rebalance_interval_s is not None
            self._rebalance_at_s = time.monotonic() + self._rebalance_interval_s

    def _note_doubts(self, brokers: Brokers) -> None:
        """Notes which topics could not be read when brokers came back with other disks. Once their nodes are
        mended they say again that those were in sync, and these registrations are not new any more.
        """
        before, unread = self._doubts, self._topics.unread
        doubts = {topic: {**before.get(topic, {}), **brokers.other_disks} for topic in unread}
        self._doubts = {topic: found for topic, found in doubts.items() if found}

    def _write(self, reign: Reign, changes: list[PartitionChange], brokers: Brokers) -> bool:
        """Returns whether nothing is to be decided again: others may have changed a partition meanwhile, or
        made its topic again, or a new leader has registered again; then the watch brings what is now."""
        for change in changes:
            if is_unclean(change.expected, change.new, brokers):
                logger.warning(
                    "%s-%d: no in-sync replica is alive, nor an eligible one; broker %d leads it by an "
                    "unclean election: records that only brokers %s had are lost",
                    change.topic,
                    change.partition,
                    change.new.leader,
                    [*change.expected.isr, *change.expected.elr],
                )
        begun_s = time.monotonic()
        problems = self._topics.set_partition_states(changes, guard=reign.guard)
        stored = [change for change, problem in zip(changes, problems, strict=True) if problem is None]
        elected = [change for change in stored if change.new.leader_epoch != change.expected.leader_epoch]
        leaderless = [change for change in elected if change.new.leader == NO_LEADER]
        logger.info(
            "controller: %d partitions changed in %.2f s, %d have a new leader, %d have none",
            len(stored),
            time.monotonic() - begun_s,
            len(elected) - len(leaderless),
            len(leaderless),
        )
        for warning in leaderless_warnings(leaderless):
            logger.warning(warning)
        for problem in problems:
            if isinstance(problem, CorruptNodeError | TooLargeError):
                logger.error("controller: %s", problem)
        outdated = BadVersionError | StaleBrokerError | TopicNotRegisteredError
        return not any(isinstance(problem, outdated) for problem in problems)
