"""Leaders that may be none any more, and followers that do not hear their leaders.

A leader: ZooKeeper does not answer, and no follower that could lead asks it any more.

A broker that is cut off from ZooKeeper alone does not hear that its session has ended and another broker
leads. What it gets with acks=all waits for followers that follow another leader, and its Metadata names it
as the leader. So it sends clients to ask another broker, and if it leads nothing else, tells them that it is
not there: librdkafka asks for metadata where it is connected, which may be here alone.

While ZooKeeper is down for all brokers followers go on asking, and so do leaders serving.

A leader that ZooKeeper answers, and whose followers live, and do not ask it: they do not reach it. It gives
them its partitions, where they can acknowledge acks=all and it alone cannot.

A follower that serves consumers of its rack, and whose leader does not answer, or answers that it is none,
has nothing new to show them: those that have read all are sent to the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from functools import partial
from math import inf
from typing import Final

from headrace.broker.partition import Partition
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.state import CUT_OFF, BrokerState
from headrace.log.directory import PartitionName

logger = logging.getLogger(__name__)

UNREACHED: Final = "its followers live, and do not reach this broker: one of them is to lead"

CHECK_MS: Final = 500.0
FOLLOWERS_SILENT_MS: Final = 3_000.0
"""Followers ask again after half a second when there is nothing new."""
LEADER_SILENT_MS: Final = FOLLOWERS_SILENT_MS
UNREACHED_MORE_MS: Final = 2_000.0
"""How long followers do not ask, beyond ZooKeeper's session timeout, until one of them gets the partition.
Those that died, or whose process is stopped, are registered no more by then.
"""
MIN_IN_SYNC_MIN: Final = 2
"""With fewer a leader is enough by itself."""
PAUSE_MAX_MS: Final = 4 * CHECK_MS
"""After a longer pause this broker may know of too little of what happened, and waits again."""

Takers = Callable[[], Set[int]]
HandOver = Callable[[PartitionName, Takers], None]


class CutOff:
    """Called on the loop's thread. `is_connected`: whether ZooKeeper answers this broker."""

    def __init__(
        self,
        state: BrokerState,
        fetchers: Fetchers,
        followed: FollowedPartitions,
        is_connected: Callable[[], bool],
        hand_over: HandOver,
    ) -> None:
        self._hand_over = hand_over
        self._unreached_ms = state.config["zookeeper.session.timeout.ms"] + UNREACHED_MORE_MS
        self._registered: dict[tuple[int, int], float] = {}
        """Since when each other broker is registered, by its number and broker epoch."""
        self._silent: Set[int] = frozenset()
        """The other brokers that live, and do not ask, by what this one saw for long without a pause."""
        self._reaching: Set[int] = frozenset()
        """Those that live, and ask."""
        self._looked_ms = -inf
        self._were_unreached = False
        self._state = state
        self._fetchers = fetchers
        self._followed = followed
        self._is_connected = is_connected

    def check(self) -> None:
        """Finds what has changed."""
        self._check_followed()
        self._check_led()
        self._check_unreached()

    def _check_followed(self) -> None:
        self._fetchers.note_heard()
        now_ms = self._state.monotonic_ms()
        for followed in self._followed:
            followed.note_silence(now_ms, LEADER_SILENT_MS)

    def _check_led(self) -> None:
        """Finds the partitions that another broker may lead by now, and those that this one still leads."""
        state = self._state
        is_connected = self._is_connected()
        if is_connected and not state.cut_off:
            return
        for session in list(state.follower_sessions.values()):
            session.refresh()
        now_ms = state.monotonic_ms()
        names, led_count = [], 0
        for partition in state.partitions:
            led_count += 1
            replicas = partition.replicas
            if replicas is None:
                continue
            is_cut_off = not is_connected and replicas.has_been_left(now_ms, FOLLOWERS_SILENT_MS)
            if is_cut_off or partition.cut_off:  # each time: a batch may have been staged just before
                state.partitions.set_cut_off(partition, CUT_OFF if is_cut_off else None)
            if is_cut_off:
                names.append(partition.name)
        if names and not state.cut_off:
            logger.warning("%s and %d more: %s", names[0], len(names) - 1, CUT_OFF)
        state.note_cut_off(frozenset(names), is_left=0 < len(names) == led_count)

    # --- followers that do not reach their leader ---

    def _check_unreached(self) -> None:
        """Hands partitions over whose followers live, and do not ask."""
        self._look()
        partitions = self._state.partitions if len(self._silent) >= MIN_IN_SYNC_MIN else ()
        unreached = [each for each in partitions if self._takers(each)]
        if unreached and not self._were_unreached:
            logger.warning("%s and %d more: %s", unreached[0].name, len(unreached) - 1, UNREACHED)
        self._were_unreached = bool(unreached)
        for partition in unreached:
            self._hand_over(partition.name, partial(self._takers, partition))

    def _look(self) -> None:
        """Finds the brokers that are neither dead, nor stopped, nor new processes, and which of them ask."""
        now_ms, own = self._state.monotonic_ms(), self._state.broker_id
        if now_ms - self._looked_ms > PAUSE_MAX_MS or not self._is_connected():
            self._registered = {}
        self._looked_ms = now_ms
        self._registered = {
            (number, broker.epoch): self._registered.get((number, broker.epoch), now_ms)
            for number, broker in self._state.view.brokers.items()
            if number != own
        }
        before_ms = now_ms - self._unreached_ms
        live = {number for (number, _), since_ms in self._registered.items() if since_ms < before_ms}
        sessions = self._state.follower_sessions
        self._reaching = {each for each in live if each in sessions and sessions[each].asked_ms >= before_ms}
        self._silent = live - self._reaching

    def _takers(self, partition: Partition) -> Set[int]:
        """Returns the brokers one of which is to lead a partition, because no follower reaches this one, and
        they would have what acks=all asks for then; none if it stays here.
        """
        state, replicas = self._state, partition.replicas
        is_led = state.partitions.get(*partition.name) is partition
        if replicas is None or partition.failure is not None or not is_led:
            return frozenset()
        if not self._reaching.isdisjoint(replicas.replicas):
            return frozenset()
        able = {number for number in self._silent if (number, *partition.name) not in state.view.offline}
        is_unreached = replicas.has_been_left(state.monotonic_ms(), self._unreached_ms)
        return able if is_unreached and replicas.others_suffice(able) else frozenset()
