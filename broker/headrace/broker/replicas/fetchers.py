"""Which leader each followed partition is fetched from: one fetcher for each of them."""

from __future__ import annotations

import logging

from headrace.broker.network.peers import Peers
from headrace.broker.replicas.fetcher import Fetcher
from headrace.broker.replicas.followed import NO_LEADER, FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.state import BrokerState

logger = logging.getLogger(__name__)


class Fetchers:
    """One fetcher for each broker that leads a partition followed here."""

    def __init__(self, state: BrokerState, followed: FollowedPartitions, peers: Peers) -> None:
        self._state = state
        self._followed = followed
        self._peers = peers
        self._fetchers: dict[int, Fetcher] = {}

    def follow(self, followed: FollowedPartition, leader: int, leader_epoch: int) -> None:
        """Follows this leader from now on; a partition without one, or that this broker is to lead, waits."""
        if (followed.leader, followed.leader_epoch) == (leader, leader_epoch):
            return
        self.leave(followed)
        followed.leader, followed.leader_epoch = leader, leader_epoch
        followed.go_on()
        followed.problem = None
        followed.heard_ms = self._state.monotonic_ms()
        if leader in (NO_LEADER, self._state.broker_id):
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(leader, self._state, self._followed, self._peers)
        logger.info(
            "%s: follows broker %d in leader epoch %d from address %d on",
            followed,
            leader,
            leader_epoch,
            followed.log.end_address,
        )
        fetcher.add(followed)

    def leave(self, followed: FollowedPartition) -> None:
        """Asks for a partition no more."""
        fetcher = self._fetchers.get(followed.leader)
        if fetcher is not None:
            fetcher.discard(followed)
        followed.leader = NO_LEADER

    def note_heard(self) -> None:
        """Notes which leaders answer."""
        for fetcher in self._fetchers.values():
            fetcher.note_heard()

    def brokers_changed(self) -> None:
        """Called when brokers came or went."""
        for fetcher in list(self._fetchers.values()):
            fetcher.wake()
