"""Leaders that may be none any more, and followers that do not hear their leaders.

A leader: ZooKeeper does not answer, and no follower that could lead asks it any more.

A broker that is cut off from ZooKeeper alone does not hear that its session has ended and another broker
leads. What it gets with acks=all waits for followers that follow another leader, and its Metadata names it
as the leader. So it sends clients to ask another broker, and if it leads nothing else, tells them that it is
not there: librdkafka asks for metadata where it is connected, which may be here alone.

While ZooKeeper is down for all brokers followers go on asking, and so do leaders serving.

A follower that serves consumers of its rack, and whose leader does not answer, or answers that it is none,
has nothing new to show them: those that have read all are sent to the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed import FollowedPartitions
from headrace.broker.state import CUT_OFF, BrokerState

logger = logging.getLogger(__name__)

CHECK_MS: Final = 500.0
FOLLOWERS_SILENT_MS: Final = 3_000.0
"""Followers ask again after half a second when there is nothing new."""
LEADER_SILENT_MS: Final = FOLLOWERS_SILENT_MS


class CutOff:
    """Called on the loop's thread. `is_connected`: whether ZooKeeper answers this broker."""

    def __init__(
        self,
        state: BrokerState,
        fetchers: Fetchers,
        followed: FollowedPartitions,
        is_connected: Callable[[], bool],
    ) -> None:
        self._state = state
        self._fetchers = fetchers
        self._followed = followed
        self._is_connected = is_connected

    def check(self) -> None:
        """Finds what has changed."""
        self._check_followed()
        self._check_led()

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
