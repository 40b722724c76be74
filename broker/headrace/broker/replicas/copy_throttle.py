"""How fast this broker copies replicas that are not in sync (KIP-73): the follower's half.

It never holds up what an in-sync replica has to follow. The leader's half: `follower_fetch.Allowance`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.state import BrokerState
from headrace.replication.throttling import SHARE_MIN_BYTES


class CopyThrottle:
    """What `follower.replication.throttled.rate` leaves. Its topic says whether it covers a partition."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def covers(self, followed: FollowedPartition) -> bool:
        """Whether a partition is copied no faster than the throttle says."""
        own = self._state.broker_id
        if not self._state.throttles.follower.is_bounded:
            return False
        if not followed.config.follower_throttled.cover(followed.name.partition, own):
            return False
        known = self._state.view.partition(*followed.name)
        return known is None or own not in known.isr

    def wait_ms(self, now_ms: float) -> float:
        """Returns after how long more may be copied."""
        return self._state.throttles.follower.wait_ms(now_ms)

    def took(self, size_bytes: int) -> None:
        """Notes what was copied of a partition that the throttle covers."""
        self._state.throttles.follower.took(size_bytes)

    def shares_bytes(
        self, followed: Sequence[FollowedPartition], share_max_bytes: int
    ) -> dict[FollowedPartition, int]:
        """Returns how much to ask for of each partition that the throttle covers."""
        throttle = self._state.throttles.follower
        covered = [each for each in followed if self.covers(each)] if throttle.is_bounded else []
        if not covered:
            return {}
        share = throttle.available_bytes(self._state.monotonic_ms()) // len(covered)
        return dict.fromkeys(covered, max(SHARE_MIN_BYTES, min(share_max_bytes, share)))
