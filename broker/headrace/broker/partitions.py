"""The partitions this broker leads: staged appends, waiting producers and readers, flush scheduling.

Owns the order of steps: stage during a wakeup, one writev per partition at its end (`commit`), then the
fsync on a worker, then a call to everything that waits for durable or visible bytes. Knows no protocol:
waiters are called back with error codes.
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
from headrace.log.flush import Flushed, FlushJob, Gathering
from headrace.log.partition import PartitionLog
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LAZY_FLUSH_MS: Final = 10  # adaptive flushing, while neither a producer nor a consumer waits
APPEND_WAIT_MAX_MS: Final = 300_000  # for a flush, whatever the producer's own timeout is
TIMEOUT_CHECK_MS: Final = 50  # how late a producer may get its timeout


def _index_written(_starts: object, error: Exception | None) -> None:
    """An index that is missing costs a scan later: that is all."""
    if error is not None:
        logger.warning("an index was not written: %s", error)


class AppendWaiter(Protocol):
    """An append in progress, which ends at `end_address`; `appended` is called once, with its outcome.

    `durable`: it waits for the flush (acks=all), not only for the write. After `timeout_ms` the outcome is
    REQUEST_TIMED_OUT, but its bytes may still become durable.
    """

    @property
    def end_address(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def timeout_ms(self) -> int: ...

    def appended(self, code: ErrorCode, message: str | None) -> None: ...


class ReadWaiter(Protocol):
    """A fetch in progress: `more` is called when a partition that it reads has more or fewer bytes, or was
    removed.
    """

    def more(self, partition: Partition) -> None: ...


class Partition:
    """One partition led here. `failure` is set when its log went offline or its topic was deleted: appends
    are then refused, and reads of an offline log, too.
    """

    __slots__ = (
        "config",
        "durable_waiting",
        "failure",
        "flush_timer",
        "flushing",
        "gathering",
        "index",
        "is_plain",
        "leader_epoch",
        "log",
        "name",
        "oldest_unflushed_ms",
        "read_problem",
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
        self.lead(leader_epoch)
        self.failure: str | None = None
        self.read_problem: str | None = None  # the last one that was reported
        self.set_config(config)
        self.waiting: list[AppendWaiter] = []
        self.durable_waiting: deque[tuple[float, AppendWaiter]] = deque()  # with their deadlines
        self.soonest_deadline_ms = math.inf  # the earliest of their deadlines, or before it
        self.readers: dict[ReadWaiter, None] = {}
        self.flushing = False
        self.gathering = Gathering()
        self.flush_timer: Timer | None = None
        self.unflushed_records = 0
        self.oldest_unflushed_ms = 0.0

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        self.log.config = config.log
        # Whether batches are stored as they come: the fast path of Produce relies on it.
        self.is_plain = not (config.mirror or config.log_append_time or self.failure)

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
    def visible_address(self) -> int:
        """The end of what consumers see."""
        return self.log.flushed_address


class Partitions:
    """All partitions. `call_later(delay_ms, fn)` is the loop's timer; `monotonic_ms` gives a time that nobody
    sets.
    """

    def __init__(
        self,
        workers: Workers,
        call_later: Callable[[float, Callable[[], None]], Timer],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._workers = workers
        self._call_later = call_later
        self._monotonic_ms = monotonic_ms
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._dirty: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}  # producers may wait for their flush
        self._checks_timeouts = False
        self.on_offline: Callable[[Partition], None] = lambda _: None

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, partition: Partition) -> None:
        self._by_name[partition.topic, partition.index] = partition

    def remove(self, partition: Partition) -> None:
        """Removes a partition; everything that waits for it fails."""
        self._by_name.pop((partition.topic, partition.index), None)
        partition.fail("the topic was deleted")
        self._dirty.pop(partition, None)
        waiting = [*partition.waiting, *(waiter for _, waiter in partition.durable_waiting)]
        partition.waiting.clear()
        partition.durable_waiting.clear()
        for waiter in waiting:
            waiter.appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        self._wake_readers(partition)

    def staged(self, partition: Partition, waiting: AppendWaiter | None, records: int) -> None:
        """Schedules the write of what was staged in its log, at the end of this wakeup."""
        if waiting is not None:
            partition.waiting.append(waiting)
        if not partition.unflushed_records:
            partition.oldest_unflushed_ms = self._monotonic_ms()
        partition.unflushed_records += records
        self._dirty[partition] = None

    def commit(self) -> None:
        """Ends a wakeup: writes what is staged, calls those that wait for the write, starts the flushes."""
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
        """Calls the waiters once nothing is staged any more: their bytes are in the file, or failed."""
        if partition.log.offline is not None and not partition.failure:
            self._fail(partition, str(partition.log.offline))
        waiting, partition.waiting = partition.waiting, []
        end = partition.log.end_address
        flushed = partition.log.flushed_address
        for waiter in waiting:
            if waiter.end_address > end:
                waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, "writing to the disk failed")
            elif waiter.durable and waiter.end_address > flushed:
                if partition.failure:
                    waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
                else:
                    self._await_flush(partition, waiter)
            else:
                waiter.appended(ErrorCode.NONE, None)

    def _await_flush(self, partition: Partition, waiter: AppendWaiter) -> None:
        deadline_ms = self._monotonic_ms() + min(max(0, waiter.timeout_ms), APPEND_WAIT_MAX_MS)
        partition.durable_waiting.append((deadline_ms, waiter))
        partition.soonest_deadline_ms = min(partition.soonest_deadline_ms, deadline_ms)
        self._awaited[partition] = None
        if not self._checks_timeouts:
            self._checks_timeouts = True
            self._call_later(TIMEOUT_CHECK_MS, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Repeats while a producer waits: one timer for all requests instead of one per request."""
        now_ms = self._monotonic_ms()
        checked, self._awaited = self._awaited, {}
        try:
            for partition in checked:
                if partition.soonest_deadline_ms <= now_ms:
                    self._time_out(partition, now_ms)
                if partition.durable_waiting:
                    self._awaited[partition] = None
        finally:
            self._checks_timeouts = bool(self._awaited)
            if self._checks_timeouts:
                self._call_later(TIMEOUT_CHECK_MS, self._check_timeouts)

    @staticmethod
    def _time_out(partition: Partition, now_ms: float) -> None:
        waiting, partition.durable_waiting = partition.durable_waiting, deque()
        partition.durable_waiting.extend(entry for entry in waiting if entry[0] > now_ms)
        partition.soonest_deadline_ms = min(
            (deadline_ms for deadline_ms, _ in partition.durable_waiting), default=math.inf
        )
        for deadline_ms, waiter in waiting:
            if deadline_ms <= now_ms:
                waiter.appended(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{partition.name}: written, but not flushed to the disk within "
                    f"{min(waiter.timeout_ms, APPEND_WAIT_MAX_MS)} ms; it may be flushed later",
                )

    # --- flush ---

    def request_flush(self, partition: Partition) -> None:
        """Flushes what is not visible yet, as soon as the flush settings allow: a reader waits for it."""
        if partition.log.flushed_address < partition.log.end_address:
            self._schedule_flush(partition)

    def _schedule_flush(self, partition: Partition, *, follows: bool = False) -> None:
        """Starts the next flush, now or later. `follows`: the last one has just ended."""
        if partition.flushing or partition.failure:
            return
        config = partition.log.config
        if config.flush_messages is None and config.flush_ms is None:
            is_awaited = partition.durable_waiting or partition.readers
            wait_ms = 0 if is_awaited else LAZY_FLUSH_MS
        else:
            wait_ms = flush_wait_ms(config, partition.unflushed_records, self._age_ms(partition))
        if wait_ms <= 0:
            gathers = bool(partition.durable_waiting)
            self._start_flush(partition, partition.gathering.wait_s(follows=follows) if gathers else 0.0)
        elif partition.flush_timer is None:
            partition.flush_timer = self._call_later(wait_ms, lambda: self._flush_due(partition))

    def _flush_due(self, partition: Partition) -> None:
        partition.flush_timer = None
        if self.get(partition.topic, partition.index) is not partition or partition.flushing:
            return
        if flush_wait_ms(partition.log.config, partition.unflushed_records, self._age_ms(partition)) > 0:
            self._schedule_flush(partition)
        elif partition.log.flushed_address < partition.log.end_address and not partition.failure:
            self._start_flush(partition)

    def _age_ms(self, partition: Partition) -> int:
        return int(self._monotonic_ms() - partition.oldest_unflushed_ms)

    def _start_flush(self, partition: Partition, gather_s: float = 0.0) -> None:
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        job = partition.log.begin_flush(gather_s)
        if job is None:
            return
        partition.flushing = True
        partition.unflushed_records = 0
        self._workers.submit(
            job.run, lambda flushed, error: self._on_flush_ended(partition, job, flushed, error)
        )

    def _on_flush_ended(
        self, partition: Partition, job: FlushJob, flushed: Flushed | None, error: Exception | None
    ) -> None:
        partition.flushing = False
        if self.get(partition.topic, partition.index) is not partition or partition.log.offline is not None:
            return
        log = partition.log
        if flushed is None:
            problem = error.strerror if isinstance(error, OSError) else str(error)
            self._fail(partition, str(log.take_offline(f"fsync failed: {problem}")))
            return
        partition.gathering.note(job.gather_s, flushed)
        log.end_flush(flushed)
        while (indexing := log.begin_index()) is not None:
            self._workers.submit(indexing.run, _index_written)
        self._complete_durable(partition)
        self._wake_readers(partition)
        if log.flushed_address < log.end_address:
            self._schedule_flush(partition, follows=True)

    @staticmethod
    def _complete_durable(partition: Partition) -> None:
        flushed = partition.log.flushed_address
        durable = partition.durable_waiting
        while durable and durable[0][1].end_address <= flushed:
            _, waiter = durable.popleft()
            waiter.appended(ErrorCode.NONE, None)

    def _fail(self, partition: Partition, problem: str) -> None:
        """Fails everything that waits for a partition whose log is offline."""
        partition.fail(problem)
        logger.error("%s: %s", partition.name, problem)
        self.on_offline(partition)
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        while partition.durable_waiting:
            _, waiter = partition.durable_waiting.popleft()
            waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, problem)
        self._wake_readers(partition)

    def _wake_readers(self, partition: Partition) -> None:
        for reader in list(partition.readers):
            reader.more(partition)

    # --- upkeep ---

    def enforce_retention(self, now_ms: int) -> None:
        """Deletes the expired segments of every log."""
        for partition in self:
            try:
                deleted = partition.log.delete_expired_segments(now_ms)
            except (LogError, OSError) as error:
                logger.error("%s: retention failed: %s", partition.name, error)
                continue
            if deleted:
                logger.info(
                    "%s: retention deleted %d segments up to %s", partition.name, len(deleted), deleted[-1]
                )
                self._wake_readers(partition)  # their offsets may have been in these segments

    def checkpoint(self) -> None:
        """Saves every log's checkpoint with its next flush, or now if nothing is to be flushed."""
        for partition in self:
            if partition.log.request_checkpoint() and not partition.flushing and not partition.failure:
                self._start_flush(partition)

    def close(self) -> None:
        """Flushes and closes every log."""
        self.commit()
        for partition in self:
            try:
                partition.log.close()
            except (LogError, OSError) as error:
                logger.error("%s: closing failed: %s", partition.name, error)
            self._complete_durable(partition)
