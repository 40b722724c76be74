"""One partition that this broker leads: its log, its settings, its replicas, and what waits for it.

Owns what the fast paths of Produce and Fetch ask of a partition. `partitions` owns the order of steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from headrace.broker.loop import Timer
from headrace.broker.settings.config import TopicConfig
from headrace.log.directory import PartitionName
from headrace.log.flush import Gathering
from headrace.log.partition import PartitionLog
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode

APPEND_WAIT_MAX_MS: Final = 300_000  # for a flush, whatever the producer's own timeout is


class AppendWaiter(Protocol):
    """An append in progress, which ends at `end_address`; `appended` is called once, with its outcome.

    `durable`: it waits until its bytes are visible (acks=all), not only for the write. After `timeout_ms` the
    outcome is REQUEST_TIMED_OUT, but its bytes may still become durable.
    """

    @property
    def end_address(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def timeout_ms(self) -> int: ...

    def appended(self, code: ErrorCode, message: str | None) -> None: ...


class ReadWaiter(Protocol):
    """A fetch in progress: `more` is called when a partition that it reads, led or followed here, has more or
    fewer bytes, or was removed.
    """

    def more(self, partition: Any) -> None: ...


class FollowerReader(ReadWaiter, Protocol):
    """A follower's fetch, or its session. `risen` is called when the high watermark rose."""

    def risen(self, partition: Any) -> None: ...


class Partition:
    """One partition led here. `failure` is set when its log went offline, its topic was deleted, or another
    broker leads it: appends are then refused, and reads of an offline log, too.

    `replicas`: what this leader knows of its followers; None without any. `follower_readers`: fetches of
    followers, which wait for what is written; `readers` wait for what is visible. `told`: the high watermark
    of the last answer to each follower, where consumers may read from followers.
    """

    __slots__ = (
        "config",
        "cut_off",
        "durable_waiting",
        "failure",
        "flush_timer",
        "flushing",
        "follower_readers",
        "gathering",
        "index",
        "is_plain",
        "leader_epoch",
        "log",
        "name",
        "oldest_unflushed_ms",
        "read_problem",
        "readers",
        "replicas",
        "soonest_deadline_ms",
        "told",
        "topic",
        "topic_id",
        "unflushed_records",
        "waiting",
        "when_flushed",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        config: TopicConfig,
        log: PartitionLog,
        leader_epoch: int,
        replicas: InSyncReplicas | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.name = PartitionName(topic, index)
        self.topic_id = topic_id
        self.log = log
        self.replicas = replicas
        self.lead(leader_epoch)
        self.failure: str | None = None
        self.cut_off = False
        self.read_problem: str | None = None  # the last one that was reported
        self.set_config(config)
        self.waiting: list[AppendWaiter] = []
        self.durable_waiting: deque[tuple[float, AppendWaiter]] = deque()  # with their deadlines
        self.soonest_deadline_ms = math.inf  # the earliest of their deadlines, or before it
        self.readers: dict[ReadWaiter, None] = {}
        self.follower_readers: dict[FollowerReader, None] = {}
        self.told: dict[int, int] = {}
        self.flushing = False
        self.when_flushed: Callable[[], None] | None = None  # once nobody leads it here any more
        self.gathering = Gathering()
        self.flush_timer: Timer | None = None
        self.unflushed_records = 0
        self.oldest_unflushed_ms = 0.0

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        self.log.config = config.log
        self.see_plain()

    def see_plain(self) -> None:
        """Works out whether batches are stored as they come: the fast path of Produce relies on it."""
        config = self.config
        refuses = self.failure or self.cut_off or self.is_below_min
        is_looked_into = config.mirror or config.log_append_time or config.cleanup.compacts
        self.is_plain = not (is_looked_into or refuses)

    def lead(self, epoch: int) -> None:
        """Leads in this epoch, which is written into every batch that is staged from now on.

        If ZooKeeper's data is older than the log, the log's last epoch is written: epochs never descend.
        """
        self.leader_epoch = epoch
        self.log.leader_epoch = max(epoch, self.log.epochs.latest)

    def fail(self, problem: str) -> None:
        """Refuses appends from now on."""
        self.failure = problem
        self.is_plain = False

    @property
    def is_below_min(self) -> bool:
        """Whether fewer replicas are in sync than `min.insync.replicas` asks for."""
        return self.replicas is not None and self.replicas.is_below_min

    @property
    def stored_address(self) -> int:
        """How far the leader's own copy counts for the high watermark."""
        log = self.log
        return log.flushed_address if self.config.acks_all_waits_for_fsync else log.end_address

    @property
    def visible_address(self) -> int:
        """The end of what consumers see: the high watermark."""
        replicas = self.replicas
        return self.log.flushed_address if replicas is None else replicas.high_watermark

    def await_visible(self, waiting: Sequence[AppendWaiter], now_ms: float) -> None:
        """Takes appends whose bytes are written, and not yet visible. They wait from now on."""
        entries = [(now_ms + min(max(0, each.timeout_ms), APPEND_WAIT_MAX_MS), each) for each in waiting]
        self.durable_waiting += entries
        self.soonest_deadline_ms = min([self.soonest_deadline_ms, *(entry[0] for entry in entries)])

    def time_out(self, now_ms: float) -> None:
        """Ends the appends that have waited as long as their producers want to wait."""
        waiting, self.durable_waiting = self.durable_waiting, deque()
        self.durable_waiting.extend(entry for entry in waiting if entry[0] > now_ms)
        self.soonest_deadline_ms = min((entry[0] for entry in self.durable_waiting), default=math.inf)
        lacks = "flushed to the disk" if self.replicas is None else "stored on every in-sync replica"
        for deadline_ms, waiter in waiting:
            if deadline_ms <= now_ms:
                waiter.appended(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{self.name}: written, but not {lacks} within "
                    f"{min(waiter.timeout_ms, APPEND_WAIT_MAX_MS)} ms; it may be {lacks.split()[0]} later",
                )
