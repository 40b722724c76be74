"""One partition that this broker follows: what its log holds, what its leader has told, which consumers wait.

`followed_partitions` owns all of them, and what threads do with their logs; `fetcher` decides what is
appended and cut.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final
from uuid import UUID

from headrace.broker.partition import ReadWaiter
from headrace.broker.settings.config import TopicConfig
from headrace.log.directory import PartitionName
from headrace.log.partition import PartitionLog

PAUSE_MIN_MS: Final = 50.0
PAUSE_MAX_MS: Final = 1_000.0
NO_LEADER: Final = -1


class FollowedPartition:
    """One partition that another broker leads, or that waits for a leader.

    `high_watermark`: the greatest that a leader has told, as far as this log reaches.
    `leader_high_watermark`: what the leader told last. `leader_start_address`: where the leader's log begins.
    `heard_ms`: when the leader was last known to answer for this partition; `hears_leader`: whether it does.
    `then` is called when the present flush or cut ends, `when_idle` once no thread works on the log.
    `readers`: consumers' fetches that wait for more below the high watermark.
    """

    __slots__ = (
        "_pause_ms",
        "config",
        "cutting",
        "failure",
        "flush_waits",
        "flushing",
        "forgotten_address",
        "heard_ms",
        "hears_leader",
        "high_watermark",
        "leader",
        "leader_epoch",
        "leader_high_watermark",
        "leader_start_address",
        "log",
        "name",
        "problem",
        "read_problem",
        "readers",
        "retry_at_ms",
        "then",
        "topic_id",
        "when_idle",
    )

    def __init__(
        self,
        name: PartitionName,
        topic_id: UUID,
        config: TopicConfig,
        log: PartitionLog,
        *,
        high_watermark: int,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.set_config(config)
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.forgotten_address = log.end_address  # below it pages were given back
        self.high_watermark = high_watermark
        self.leader_high_watermark = self.leader_start_address = 0
        self.heard_ms = -inf
        self.hears_leader = True
        self.flushing = self.flush_waits = self.cutting = False
        self.failure: str | None = None
        self.problem: str | None = None  # the last one that was reported
        self.read_problem: str | None = None  # of a consumer's fetch
        self.readers: dict[ReadWaiter, None] = {}
        self.retry_at_ms = 0.0
        self._pause_ms = PAUSE_MIN_MS
        self.then: Callable[[FollowedPartition], None] | None = None
        self.when_idle: Callable[[], None] | None = None

    def __str__(self) -> str:
        return str(self.name)

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        self.log.config = config.log

    @property
    def is_working(self) -> bool:
        """Whether the next fetch must wait: it reports what this log holds, flushed."""
        return self.cutting or (self.flushing and self.config.acks_all_waits_for_fsync)

    @property
    def visible_address(self) -> int:
        """The end of what consumers see here."""
        return self.high_watermark

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read: not while the log is cut, or changes its role."""
        return not (self.cutting or self.failure or self.when_idle) and self.log.offline is None

    def saw(self, high_watermark: int, leader_start_address: int) -> bool:
        """Notes what the leader has told; returns whether it has deleted segments since it told last."""
        before, start_before = self.high_watermark, self.leader_start_address
        self.leader_high_watermark = high_watermark
        self.high_watermark = max(before, min(high_watermark, self.log.end_address))
        self.leader_start_address = max(self.leader_start_address, leader_start_address)
        if self.high_watermark > before:
            self.wake_readers()
        return self.leader_start_address > start_before

    def note_silence(self, now_ms: float, silent_ms: float) -> None:
        """Notes whether the leader has been silent for so long: then no consumer waits here for more."""
        heard, self.hears_leader = self.hears_leader, now_ms - self.heard_ms <= silent_ms
        if heard and not self.hears_leader:
            self.wake_readers()

    def wake_readers(self) -> None:
        for reader in list(self.readers):
            reader.more(self)

    def pause(self, now_ms: float) -> None:
        """Asks no more for a while, longer each time."""
        self.retry_at_ms = now_ms + self._pause_ms
        self._pause_ms = min(PAUSE_MAX_MS, 2 * self._pause_ms)

    def go_on(self) -> None:
        """Asks without a pause from now on."""
        self.retry_at_ms = 0.0
        self._pause_ms = PAUSE_MIN_MS
