"""The partitions this broker leads: staged appends, who waits for what, flush scheduling.

Owns the order of things: stage during a wakeup, one writev a partition at its end (`commit`), then the fsync
on a worker, then whoever waited for durability or for visible bytes is told. Knows no protocol: those who
wait are called back with error codes.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol
from uuid import UUID

from headrace.broker.config import TopicConfig
from headrace.broker.loop import Timer
from headrace.broker.workers import Workers
from headrace.log.config import flush_wait_ms
from headrace.log.directory import PartitionName
from headrace.log.errors import LogError, LogOfflineError, LogStorageError
from headrace.log.flush import FlushJob
from headrace.log.partition import PartitionLog
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LAZY_FLUSH_MS: Final = 10  # adaptive flushing, while neither a producer nor a consumer waits for it
APPEND_WAIT_MAX_MS: Final = 300_000  # for the flush, whatever the producer's own timeout is
TIMEOUT_LOOK_MS: Final = 50  # how late a producer may hear that its time is over


class AppendWaiter(Protocol):
    """Told once what became of its append, which ends at `end_address`.

    `durable`: it waits for the flush (acks=all), not only for the write; at most `timeout_ms`, then it is
    told REQUEST_TIMED_OUT, and its bytes may become durable all the same.
    """

    @property
    def end_address(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def timeout_ms(self) -> int: ...

    def appended(self, code: ErrorCode, message: str | None) -> None: ...


class ReadWaiter(Protocol):
    """Told when a partition has more visible bytes, or is gone."""

    def more(self) -> None: ...


class Partition:
    """One partition led here. `failure` is set when the disk failed under it: appends are then refused, and
    when its log is offline reads too.
    """

    __slots__ = (
        "config",
        "durable_waiting",
        "failure",
        "flush_timer",
        "flushing",
        "index",
        "is_plain",
        "leader_epoch",
        "log",
        "name",
        "oldest_unflushed_ms",
        "readers",
        "soonest_deadline_ms",
        "topic",
        "topic_id",
        "unflushed_records",
        "waiting",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        config: TopicConfig,
        log: PartitionLog,
        leader_epoch: int,
    ) -> None:
        self.topic = topic
        self.index = index
        self.name = PartitionName(topic, index)
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.failure: str | None = None
        self.set_config(config)
        self.waiting: list[AppendWaiter] = []
        self.durable_waiting: deque[tuple[float, AppendWaiter]] = deque()  # with their deadlines
        self.soonest_deadline_ms = math.inf  # no deadline of theirs is before it
        self.readers: dict[ReadWaiter, None] = {}
        self.flushing = False
        self.flush_timer: Timer | None = None
        self.unflushed_records = 0
        self.oldest_unflushed_ms = 0

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        self.log.config = config.log
        # Whether batches may be stored just as they come: what the Produce handler's short way relies on.
        self.is_plain = not (config.mirror or config.log_append_time or self.failure)

    def fail(self, reason: str) -> None:
        """Refuse appends from now on."""
        self.failure = reason
        self.is_plain = False

    @property
    def visible_address(self) -> int:
        """Consumers see nothing beyond it."""
        return self.log.flushed_address


class Partitions:
    """All of them. `call_later(delay_ms, fn)` is the loop's timer; `clock` gives the time of day in ms,
    `monotonic_ms` one that is never set back.
    """

    def __init__(
        self,
        workers: Workers,
        call_later: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], int],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._workers = workers
        self._call_later = call_later
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._dirty: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}  # some producer may wait for their flush
        self._looks_for_timeouts = False

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, partition: Partition) -> None:
        self._by_name[partition.topic, partition.index] = partition

    def remove(self, partition: Partition) -> None:
        """Whoever waits for it is told that it is gone."""
        self._by_name.pop((partition.topic, partition.index), None)
        partition.fail("the topic was deleted")
        self._dirty.pop(partition, None)
        waiting = [*partition.waiting, *(each for _, each in partition.durable_waiting)]
        partition.waiting.clear()
        partition.durable_waiting.clear()
        for each in waiting:
            each.appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        self._wake_readers(partition)

    def staged(self, partition: Partition, waiting: AppendWaiter | None, records: int) -> None:
        """Something was staged in its log: it will be written at the end of this wakeup."""
        if waiting is not None:
            partition.waiting.append(waiting)
        if not partition.unflushed_records:
            partition.oldest_unflushed_ms = self._clock()
        partition.unflushed_records += records
        self._dirty[partition] = None

    def commit(self) -> None:
        """The end of a wakeup: write what is staged, answer who waits for the write, start the flushes."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            try:
                partition.log.commit()
            except LogOfflineError:
                pass  # `complete_writes` reports it
            except LogStorageError as error:
                logger.error("%s: %s", partition.name, error)
            self.complete_writes(partition)
            if partition.log.flushed_address < partition.log.end_address:
                self._schedule_flush(partition)

    def complete_writes(self, partition: Partition) -> None:
        """Nothing is staged any more: tell who waits whether their bytes are in the file."""
        if partition.log.offline is not None and not partition.failure:
            self._fail(partition, str(partition.log.offline))
        waiting, partition.waiting = partition.waiting, []
        end = partition.log.end_address
        flushed = partition.log.flushed_address
        for each in waiting:
            if each.end_address > end:
                each.appended(ErrorCode.KAFKA_STORAGE_ERROR, "writing to the disk failed")
            elif each.durable and each.end_address > flushed:
                if partition.failure:
                    each.appended(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
                else:
                    self._await_flush(partition, each)
            else:
                each.appended(ErrorCode.NONE, None)

    def _await_flush(self, partition: Partition, waiter: AppendWaiter) -> None:
        deadline_ms = self._monotonic_ms() + min(max(0, waiter.timeout_ms), APPEND_WAIT_MAX_MS)
        partition.durable_waiting.append((deadline_ms, waiter))
        partition.soonest_deadline_ms = min(partition.soonest_deadline_ms, deadline_ms)
        self._awaited[partition] = None
        if not self._looks_for_timeouts:
            self._looks_for_timeouts = True
            self._call_later(TIMEOUT_LOOK_MS, self._look_for_timeouts)

    def _look_for_timeouts(self) -> None:
        """Again and again while somebody waits: one timer for all, so that none is made for a request."""
        now_ms = self._monotonic_ms()
        looked, self._awaited = self._awaited, {}
        try:
            for partition in looked:
                if partition.soonest_deadline_ms <= now_ms:
                    self._time_out(partition, now_ms)
                if partition.durable_waiting:
                    self._awaited[partition] = None
        finally:
            self._looks_for_timeouts = bool(self._awaited)
            if self._looks_for_timeouts:
                self._call_later(TIMEOUT_LOOK_MS, self._look_for_timeouts)

    @staticmethod
    def _time_out(partition: Partition, now_ms: float) -> None:
        waiting, partition.durable_waiting = partition.durable_waiting, deque()
        partition.durable_waiting.extend(each for each in waiting if each[0] > now_ms)
        partition.soonest_deadline_ms = min((each[0] for each in partition.durable_waiting), default=math.inf)
        for deadline_ms, each in waiting:
            if deadline_ms <= now_ms:
                each.appended(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{partition.name}: written, but not flushed to the disk within "
                    f"{min(each.timeout_ms, APPEND_WAIT_MAX_MS)} ms; it may still be",
                )

    # flush

    def wanted(self, partition: Partition) -> None:
        """Somebody waits for bytes that are not visible yet: flush now."""
        if partition.log.flushed_address < partition.log.end_address:
            self._schedule_flush(partition)

    def _schedule_flush(self, partition: Partition) -> None:
        if partition.flushing or partition.failure:
            return
        config = partition.log.config
        if config.flush_messages is None and config.flush_ms is None:
            somebody_waits = partition.durable_waiting or partition.readers
            wait_ms = 0 if somebody_waits else LAZY_FLUSH_MS
        else:
            wait_ms = flush_wait_ms(config, partition.unflushed_records, self._age_ms(partition))
        if wait_ms <= 0:
            self._flush(partition)
        elif partition.flush_timer is None:
            partition.flush_timer = self._call_later(wait_ms, lambda: self._flush_due(partition))

    def _flush_due(self, partition: Partition) -> None:
        partition.flush_timer = None
        if self.get(partition.topic, partition.index) is not partition or partition.flushing:
            return
        if flush_wait_ms(partition.log.config, partition.unflushed_records, self._age_ms(partition)) > 0:
            self._schedule_flush(partition)
        elif partition.log.flushed_address < partition.log.end_address and not partition.failure:
            self._flush(partition)

    def _age_ms(self, partition: Partition) -> int:
        return self._clock() - partition.oldest_unflushed_ms

    def _flush(self, partition: Partition) -> None:
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        job = partition.log.begin_flush()
        if job is None:
            return
        partition.flushing = True
        partition.unflushed_records = 0
        self._workers.submit(job.run, lambda _, error: self._flushed(partition, job, error))

    def _flushed(self, partition: Partition, job: FlushJob, error: Exception | None) -> None:
        partition.flushing = False
        if self.get(partition.topic, partition.index) is not partition or partition.log.offline is not None:
            return
        log = partition.log
        if error is not None:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._fail(partition, str(log.take_offline(f"fsync failed: {reason}")))
            return
        log.end_flush(job)
        flushed = log.flushed_address
        durable = partition.durable_waiting
        while durable and durable[0][1].end_address <= flushed:
            _, each = durable.popleft()
            each.appended(ErrorCode.NONE, None)
        self._wake_readers(partition)
        if flushed < log.end_address:
            self._schedule_flush(partition)

    def _fail(self, partition: Partition, reason: str) -> None:
        """The log is offline: whoever waits for it is told, readers too."""
        partition.fail(reason)
        logger.error("%s: %s", partition.name, reason)
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        while partition.durable_waiting:
            _, each = partition.durable_waiting.popleft()
            each.appended(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self._wake_readers(partition)

    def _wake_readers(self, partition: Partition) -> None:
        for reader in list(partition.readers):
            reader.more()

    # upkeep

    def retain(self, now_ms: int) -> None:
        """Let every log drop what retention no longer covers."""
        for partition in self:
            try:
                deleted = partition.log.retain(now_ms)
            except (LogError, OSError) as error:
                logger.error("%s: retention failed: %s", partition.name, error)
                continue
            if deleted:
                logger.info(
                    "%s: retention deleted %d segments up to %s", partition.name, len(deleted), deleted[-1]
                )

    def checkpoint(self) -> None:
        """Let every log save its checkpoint with its next flush, at once where nothing waits for one."""
        for partition in self:
            if partition.log.request_checkpoint() and not partition.flushing and not partition.failure:
                self._flush(partition)

    def close(self) -> None:
        """Flush and close every log."""
        self.commit()
        for partition in self:
            try:
                partition.log.close()
            except (LogError, OSError) as error:
                logger.error("%s: closing failed: %s", partition.name, error)
            self._flushed_at_close(partition)

    def _flushed_at_close(self, partition: Partition) -> None:
        durable = partition.durable_waiting
        while durable and durable[0][1].end_address <= partition.log.flushed_address:
            _, each = durable.popleft()
            each.appended(ErrorCode.NONE, None)
